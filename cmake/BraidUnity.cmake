# Sources that are compiled as one file (CMake calls that a unity build): most of what a compiler does for one of ours is in the
# headers (docs/testing.md has figures). scripts/group_sources.py says which do not get into each other's way.

# All targets of a folder and those below it that are compiled.
function(braid_compiled_targets folder result)
  get_property(here DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  set(compiled)
  foreach(target ${here})
    get_target_property(type ${target} TYPE)
    if(type MATCHES "^(STATIC_LIBRARY|EXECUTABLE)$")
      list(APPEND compiled ${target})
    endif()
  endforeach()
  get_property(children DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(child ${children})
    braid_compiled_targets(${child} below)
    list(APPEND compiled ${below})
  endforeach()
  set(${result} ${compiled} PARENT_SCOPE)
endfunction()

# braid_unity(REGEX): groups the C++ sources of all targets whose names match. Those with options of their own stay alone, and so
# do those of the CUDA backend: NVIDIA's headers have names that clash with ours, which group_sources.py does not read.
function(braid_unity regex)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  braid_compiled_targets(${PROJECT_SOURCE_DIR} targets)
  list(FILTER targets INCLUDE REGEX ${regex})
  list(REMOVE_ITEM targets braid_cuda)
  foreach(target ${targets})
    get_target_property(sources ${target} SOURCES)
    get_target_property(folder ${target} SOURCE_DIR)
    list(FILTER sources INCLUDE REGEX "\\.cpp$")
    list(FILTER sources EXCLUDE REGEX "^${PROJECT_BINARY_DIR}/")  # generated ones need not be there yet
    list(TRANSFORM sources PREPEND "${folder}/" REGEX "^[^/]")
    execute_process(
      COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/group_sources.py ${sources}
      OUTPUT_VARIABLE groups OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    string(REPLACE "\n" ";" groups "${groups}")
    foreach(line ${groups})
      string(REGEX MATCH "^([0-9]+) (.*)$" line "${line}")
      set_source_files_properties(${CMAKE_MATCH_2} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP group_${CMAKE_MATCH_1})
    endforeach()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  endforeach()
endfunction()
