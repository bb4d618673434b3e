# One library per folder of src/, one test program per folder of tests/.

# braid_use_options(TARGET): compiles a library with our flags, of which those who link it see nothing.
function(braid_use_options target)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:braid_options>)
endfunction()

# Sets RESULT to TARGETS, of which those that consist of headers are hidden from who links a library that uses them: an
# installed braid needs none of them.
function(braid_hide_headers result)
  set(hidden)
  foreach(target ${ARGN})
    if(TARGET ${target})
      get_target_property(type ${target} TYPE)
      get_target_property(linked ${target} INTERFACE_LINK_LIBRARIES)
      if(type STREQUAL INTERFACE_LIBRARY AND NOT linked)
        set(target $<BUILD_INTERFACE:${target}>)
      endif()
    endif()
    list(APPEND hidden ${target})
  endforeach()
  set(${result} ${hidden} PARENT_SCOPE)
endfunction()

# Makes the compiler optimise a library less, in a third less time: its code runs for moments. Sanitizers make slow code of it anyway.
function(braid_compile_quickly target)
  target_compile_options(${target} PRIVATE "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>")
  if(BRAID_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()

# braid_library(NAME [RECURSE] [RUNS_BRIEFLY] [FOLDER path] [DEPS targets...] [PRIVATE_DEPS targets...])
# Library braid_NAME out of all sources of src/FOLDER (default: NAME); RECURSE: and of the folders below it. RUNS_BRIEFLY: nobody
# waits for its code, so it is compiled quickly.
function(braid_library name)
  cmake_parse_arguments(ARG "RECURSE;RUNS_BRIEFLY" "FOLDER" "DEPS;PRIVATE_DEPS" ${ARGN})
  if(NOT ARG_FOLDER)
    set(ARG_FOLDER ${name})
  endif()
  set(glob GLOB)
  if(ARG_RECURSE)
    set(glob GLOB_RECURSE)
  endif()
  file(${glob} sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${ARG_FOLDER}/*.cpp)
  if(sources)
    add_library(braid_${name} STATIC ${sources})
    braid_use_options(braid_${name})
    if(ARG_RUNS_BRIEFLY)
      braid_compile_quickly(braid_${name})
    endif()
    braid_hide_headers(private_deps ${ARG_PRIVATE_DEPS})
    target_link_libraries(braid_${name} PUBLIC ${ARG_DEPS} PRIVATE ${private_deps})
  else()
    add_library(braid_${name} INTERFACE)
    target_link_libraries(braid_${name} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

# Every program that starts threads: what the TSan build makes and runs.
if(BRAID_TESTS)
  add_custom_target(braid_threaded_tests)
endif()

# braid_tests(NAME [FOLDER path] [DEPS targets...] [LABELS labels...] [COST seconds] [NO_THREADS patterns...]
#             [NOT_SANITIZED patterns...] [WITHOUT regex])
# Test program braid_NAME_tests out of all *_test.cpp of tests/FOLDER (default: NAME) and below, registered with ctest as NAME.
# COST: about what it takes in a Release build, if that is long; ctest starts what takes longest first, so that none is
# alone at the end.
# WITHOUT: files to leave out.
# NO_THREADS: cases, as GoogleTest's patterns, that ThreadSanitizer is spared: long work of one thread, or what others do as well.
# NOT_SANITIZED: cases that all sanitizers are spared: long searches and simulations, whose code shorter cases run as well.
# Labels: "threads" (run under TSan too), "slow" (left out by ./test.sh --quick), "gpu" (skips itself without a GPU).
# Each run leaves its cases in reports/NAME.json, where scripts/run_tests.py counts them.
function(braid_tests name)
  cmake_parse_arguments(ARG "" "FOLDER;COST;WITHOUT" "DEPS;LABELS;NO_THREADS;NOT_SANITIZED" ${ARGN})
  if(NOT ARG_FOLDER)
    set(ARG_FOLDER ${name})
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${ARG_FOLDER}/*_test.cpp)
  if(ARG_WITHOUT)
    list(FILTER sources EXCLUDE REGEX "${ARG_WITHOUT}")
  endif()
  if(NOT sources)
    return()
  endif()
  add_executable(braid_${name}_tests ${sources})
  target_include_directories(braid_${name}_tests PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(braid_${name}_tests PRIVATE ${ARG_DEPS} braid_test_support GTest::gtest_main)
  target_precompile_headers(braid_${name}_tests REUSE_FROM braid_test_support)
  add_test(NAME ${name} COMMAND braid_${name}_tests)
  set_tests_properties(${name} PROPERTIES
    ENVIRONMENT GTEST_OUTPUT=json:${PROJECT_BINARY_DIR}/reports/${name}.json
    LABELS "${ARG_LABELS}"
    TIMEOUT 1500)
  set(spared)
  if(BRAID_SANITIZE)
    list(APPEND spared ${ARG_NOT_SANITIZED})
  endif()
  if(BRAID_SANITIZE STREQUAL thread)
    list(APPEND spared ${ARG_NO_THREADS})
  endif()
  if(spared)
    list(JOIN spared ":" patterns)  # behind the cases that the caller asks for, which may be none
    set_tests_properties(${name} PROPERTIES ENVIRONMENT_MODIFICATION GTEST_FILTER=string_append:-${patterns})
  endif()
  if(ARG_COST)
    set_tests_properties(${name} PROPERTIES COST ${ARG_COST})
  endif()
  if("threads" IN_LIST ARG_LABELS)
    add_dependencies(braid_threaded_tests braid_${name}_tests)
  endif()
endfunction()
