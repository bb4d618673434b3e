# Decides whether the CUDA backend is built: BRAID_HAS_CUDA, language CUDA, and targets CUDA::cudart_static,
# CUDA::cublasLt and braid::cudnn. AUTO builds it where nvcc and all libraries are found; ON fails without them.
#
# Sanitizer builds leave it out: they instrument host code that nvcc's host compiler would have to share, and
# compute-sanitizer checks the device code.
set(BRAID_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (if nvcc and its libraries are found), ON or OFF")
set_property(CACHE BRAID_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT BRAID_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "BRAID_CUDA is \"${BRAID_CUDA}\"; it may be AUTO, ON or OFF")
endif()

# Architectures of GPUs, as nvcc names them. "90a" has instructions that only Hopper has.
set(braid_known_architectures 80 86 89 90a 100 103 120)
set(BRAID_CUDA_ARCHITECTURES AUTO CACHE STRING
  "GPUs to compile kernels for: AUTO (those of this machine; if there are none, 90a) or a list of ${braid_known_architectures}")

# Sets `architectures` to those of BRAID_CUDA_ARCHITECTURES.
function(braid_find_architectures architectures)
  set(found ${BRAID_CUDA_ARCHITECTURES})
  if(found STREQUAL "AUTO")
    set(found "")
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE capabilities RESULT_VARIABLE status ERROR_QUIET)
    if(status EQUAL 0)
      string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${capabilities}")
      list(REMOVE_DUPLICATES capabilities)
      list(TRANSFORM capabilities REPLACE "\\." "")
      list(TRANSFORM capabilities REPLACE "^90$" "90a")
      foreach(capability ${capabilities})
        if(capability IN_LIST braid_known_architectures)
          list(APPEND found ${capability})
        endif()
      endforeach()
    endif()
    if(NOT found)
      set(found 90a)
    endif()
  endif()
  foreach(name ${found})
    if(NOT name IN_LIST braid_known_architectures)
      list(JOIN braid_known_architectures ", " known)
      message(FATAL_ERROR "BRAID_CUDA_ARCHITECTURES has \"${name}\"; it may be AUTO or a list of ${known}")
    endif()
  endforeach()
  set(${architectures} "${found}" PARENT_SCOPE)
endfunction()

# Sets `missing` to what is not there, in words.
function(braid_find_cuda missing)
  set(reasons "")
  if(BRAID_SANITIZE)
    list(APPEND reasons "a build without sanitizers (BRAID_SANITIZE is ${BRAID_SANITIZE})")
  endif()
  find_program(BRAID_NVCC nvcc HINTS $ENV{CUDA_PATH} $ENV{CUDA_HOME} /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(BRAID_NVCC)
  if(NOT BRAID_NVCC)
    list(APPEND reasons "nvcc (set CUDA_PATH)")
  else()
    find_package(Cudnn QUIET)
    if(NOT Cudnn_FOUND)
      list(APPEND reasons "cuDNN 9 (set CUDNN_ROOT)")
    endif()
  endif()
  list(JOIN reasons ", " reasons)
  set(${missing} "${reasons}" PARENT_SCOPE)
endfunction()

set(BRAID_HAS_CUDA OFF)
if(NOT BRAID_CUDA STREQUAL "OFF")
  braid_find_cuda(missing)
  if(NOT missing)
    set(BRAID_HAS_CUDA ON)
  elseif(BRAID_CUDA STREQUAL "ON")
    message(FATAL_ERROR "BRAID_CUDA is ON, but this is missing: ${missing}")
  else()
    message(STATUS "CUDA backend: not built, for want of ${missing}")
  endif()
endif()

if(BRAID_HAS_CUDA)
  # Real machine code alone: what a GPU cannot run is said at once (backends/cuda/architecture.h), and not compiled when braid starts.
  braid_find_architectures(braid_architectures)
  list(TRANSFORM braid_architectures APPEND "-real" OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_COMPILER ${BRAID_NVCC})
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # targets name the static one themselves; no kernel launches kernels
  enable_language(CUDA)
  # Targets that name /usr/include (fmt) would put it before the C++ library's own headers, which then miss math.h.
  list(APPEND CMAKE_CUDA_IMPLICIT_INCLUDE_DIRECTORIES ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
  # CMake 3.25 does not know that nvcc speaks C++20 since 12.0.
  foreach(kind STANDARD EXTENSION)
    if(NOT DEFINED CMAKE_CUDA20_${kind}_COMPILE_OPTION)
      set(CMAKE_CUDA20_${kind}_COMPILE_OPTION -std=c++20)
    endif()
  endforeach()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  if(BRAID_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
  # nvcc's front end cannot run fmt 9's checks of format strings while compiling: they run when a string is formatted.
  add_compile_definitions($<$<COMPILE_LANGUAGE:CUDA>:FMT_CONSTEVAL=> $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
  find_package(CUDAToolkit 12.9 REQUIRED)  # the first cuBLASLt with FP8 scales of blocks
  # Optional: without it there is no attention on CUDA.
  find_package(CudnnFrontend)
  # Optional: without it attention is cuDNN's alone, and no product has an activation in its epilogue.
  find_package(Sm90Kernels)
  # Optional, the header only, since the library is loaded at run time: without it timelines are measured by events.
  find_path(BRAID_CUPTI_INCLUDE_DIR cupti.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI
    PATH_SUFFIXES include)
  mark_as_advanced(BRAID_CUPTI_INCLUDE_DIR)
  # The same: without it a run has one GPU.
  find_path(BRAID_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${NCCL_ROOT} $ENV{NCCL_ROOT}
    PATH_SUFFIXES include)
  mark_as_advanced(BRAID_NCCL_INCLUDE_DIR)
  message(STATUS "CUDA backend: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, sm_${braid_architectures}")
endif()
