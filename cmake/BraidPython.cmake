# Decides whether the Python module is built: BRAID_HAS_PYTHON, and why not: BRAID_NO_PYTHON. A module is a shared library, so all that it
# links is then compiled as position-independent code.
set(BRAID_PYTHON OFF CACHE STRING "Build the Python module: AUTO (if nanobind is found), ON or OFF")
set_property(CACHE BRAID_PYTHON PROPERTY STRINGS AUTO ON OFF)

set(BRAID_HAS_PYTHON OFF)
set(BRAID_NO_PYTHON "BRAID_PYTHON is OFF")
if(BRAID_SANITIZE)
  set(BRAID_NO_PYTHON "sanitizers must be loaded before Python")
elseif(BRAID_PYTHON)
  # What scripts/install_python_tools.sh made, unless another Python is asked for.
  set(tools ${PROJECT_SOURCE_DIR}/build/python_tools/bin/python)
  if(NOT Python_EXECUTABLE AND EXISTS ${tools})
    set(Python_EXECUTABLE ${tools} CACHE FILEPATH "The Python that the module is for")
  endif()
  set(BRAID_NO_PYTHON "there is no Python 3.9 or later with headers and nanobind (scripts/install_python_tools.sh)")
  find_package(Python 3.9 QUIET COMPONENTS Interpreter Development.Module)
  if(Python_FOUND)
    execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_ROOT
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      find_package(nanobind CONFIG QUIET)
      set(BRAID_HAS_PYTHON ${nanobind_FOUND})
    endif()
  endif()
  if(NOT BRAID_HAS_PYTHON AND NOT BRAID_PYTHON STREQUAL AUTO)
    message(FATAL_ERROR "BRAID_PYTHON is ON, but ${BRAID_NO_PYTHON}")
  endif()
endif()

if(BRAID_HAS_PYTHON)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
endif()
