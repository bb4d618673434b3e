# Target braid::sm90_kernels: what scripts/build_sm90_kernels.sh compiles from its folder sm90_kernels into the user's cache. Elsewhere:
# set SM90_KERNELS_ROOT to a folder with the same files. SM90_KERNELS_VERSION is a checksum of the sources.
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/scripts/sm90_kernels/*.py ${PROJECT_SOURCE_DIR}/scripts/sm90_kernels/*.txt)
list(SORT sources)
set(checksums "")
foreach(source ${sources})
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(SHA256 ${source} checksum)
  string(APPEND checksums ${checksum})
endforeach()
string(SHA256 checksum "${checksums}")
string(SUBSTRING ${checksum} 0 16 SM90_KERNELS_VERSION)
if(DEFINED ENV{XDG_CACHE_HOME})
  set(user_cache $ENV{XDG_CACHE_HOME})
else()
  set(user_cache $ENV{HOME}/.cache)
endif()
# The name changes with the sources: a build folder may remember another.
unset(SM90_KERNELS_DIR CACHE)
find_path(SM90_KERNELS_DIR products.inc
  HINTS ${SM90_KERNELS_ROOT} $ENV{SM90_KERNELS_ROOT} ${user_cache}/braid/sm90-kernels-${SM90_KERNELS_VERSION} NO_DEFAULT_PATH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Sm90Kernels
  REQUIRED_VARS SM90_KERNELS_DIR
  REASON_FAILURE_MESSAGE "run scripts/build_sm90_kernels.sh or set SM90_KERNELS_ROOT")

if(Sm90Kernels_FOUND AND NOT TARGET braid::sm90_kernels)
  file(GLOB objects ${SM90_KERNELS_DIR}/*.o)
  # GLOBAL, so that the install rules, which are in another folder, see it.
  add_library(braid::sm90_kernels INTERFACE IMPORTED GLOBAL)
  set_target_properties(braid::sm90_kernels PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES ${SM90_KERNELS_DIR}
    INTERFACE_LINK_LIBRARIES "${objects};${SM90_KERNELS_DIR}/libcuda_dialect_runtime_static.a")
endif()
mark_as_advanced(SM90_KERNELS_DIR)
