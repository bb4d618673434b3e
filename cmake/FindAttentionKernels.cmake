# Target braid::attention_kernels: what scripts/build_attention_kernels.sh compiles from its folder attention_kernels into the user's
# cache. Elsewhere: set ATTENTION_KERNELS_ROOT to a folder with the same files.
set(name "attention-kernels")
foreach(source compile.py requirements.txt)
  set(path ${CMAKE_SOURCE_DIR}/scripts/attention_kernels/${source})
  set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(SHA256 ${path} checksum)
  string(SUBSTRING ${checksum} 0 8 checksum)
  string(APPEND name "-${checksum}")
endforeach()
if(DEFINED ENV{XDG_CACHE_HOME})
  set(user_cache $ENV{XDG_CACHE_HOME})
else()
  set(user_cache $ENV{HOME}/.cache)
endif()
# The name changes with the sources: a build folder may remember another.
unset(ATTENTION_KERNELS_DIR CACHE)
find_path(ATTENTION_KERNELS_DIR attention_forward_128.o
  HINTS ${ATTENTION_KERNELS_ROOT} $ENV{ATTENTION_KERNELS_ROOT} ${user_cache}/braid/${name} NO_DEFAULT_PATH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(AttentionKernels
  REQUIRED_VARS ATTENTION_KERNELS_DIR
  REASON_FAILURE_MESSAGE "run scripts/build_attention_kernels.sh or set ATTENTION_KERNELS_ROOT")

if(AttentionKernels_FOUND AND NOT TARGET braid::attention_kernels)
  set(objects "")
  foreach(kernel forward_64 backward_64 backward_64_grouped forward_128 backward_128 backward_128_grouped)
    list(APPEND objects ${ATTENTION_KERNELS_DIR}/attention_${kernel}.o)
  endforeach()
  add_library(braid::attention_kernels INTERFACE IMPORTED)
  set_target_properties(braid::attention_kernels PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES ${ATTENTION_KERNELS_DIR}
    INTERFACE_LINK_LIBRARIES "${objects};${ATTENTION_KERNELS_DIR}/libcuda_dialect_runtime_static.a")
endif()
mark_as_advanced(ATTENTION_KERNELS_DIR)
