# Target braid::cudnn_frontend: NVIDIA's header-only C++ interface to cuDNN's graphs, in the version that
# scripts/fetch_cudnn_frontend.sh puts into the user's cache. Elsewhere: set CUDNN_FRONTEND_ROOT to a folder with
# include/cudnn_frontend.h.
file(STRINGS ${PROJECT_SOURCE_DIR}/scripts/fetch_cudnn_frontend.sh version_line REGEX "^version=")
string(REGEX REPLACE "^version=([0-9.]+).*" "\\1" CudnnFrontend_VERSION "${version_line}")
if(DEFINED ENV{XDG_CACHE_HOME})
  set(user_cache $ENV{XDG_CACHE_HOME})
else()
  set(user_cache $ENV{HOME}/.cache)
endif()
# A build folder may remember a version that is there no longer.
if(CUDNN_FRONTEND_INCLUDE_DIR AND NOT EXISTS ${CUDNN_FRONTEND_INCLUDE_DIR}/cudnn_frontend.h)
  unset(CUDNN_FRONTEND_INCLUDE_DIR CACHE)
endif()
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
  HINTS ${CUDNN_FRONTEND_ROOT} $ENV{CUDNN_FRONTEND_ROOT} ${user_cache}/braid/cudnn-frontend-${CudnnFrontend_VERSION}
  PATH_SUFFIXES include)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CudnnFrontend
  REQUIRED_VARS CUDNN_FRONTEND_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/fetch_cudnn_frontend.sh or set CUDNN_FRONTEND_ROOT")

if(CudnnFrontend_FOUND AND NOT TARGET braid::cudnn_frontend)
  add_library(braid::cudnn_frontend INTERFACE IMPORTED)
  set_target_properties(braid::cudnn_frontend PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES ${CUDNN_FRONTEND_INCLUDE_DIR}
    # Its JSON form of graphs, which needs a library of its own and is not used here.
    INTERFACE_COMPILE_DEFINITIONS CUDNN_FRONTEND_SKIP_JSON_LIB)
endif()
mark_as_advanced(CUDNN_FRONTEND_INCLUDE_DIR)
