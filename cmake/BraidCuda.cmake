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
  # Real machine code of the one architecture that the kernels are written for (with its own instructions, hence "a").
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
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
  message(STATUS "CUDA backend: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, sm_90a")
endif()
