# Target braid::cudnn. Elsewhere than in CUDA's folder: set CUDNN_ROOT.
if(BRAID_NVCC)
  get_filename_component(cuda_root "${BRAID_NVCC}" DIRECTORY)
  get_filename_component(cuda_root "${cuda_root}" DIRECTORY)
endif()
find_path(BRAID_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDNN_ROOT} $ENV{CUDNN_ROOT} ${cuda_root} PATH_SUFFIXES include)
find_library(BRAID_CUDNN_LIBRARY cudnn HINTS ${CUDNN_ROOT} $ENV{CUDNN_ROOT} ${cuda_root} PATH_SUFFIXES lib64 lib)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Cudnn REQUIRED_VARS BRAID_CUDNN_LIBRARY BRAID_CUDNN_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "set CUDNN_ROOT to a folder with include/cudnn.h and lib/libcudnn.so")

if(Cudnn_FOUND AND NOT TARGET braid::cudnn)
  add_library(braid::cudnn UNKNOWN IMPORTED)
  set_target_properties(braid::cudnn PROPERTIES
    IMPORTED_LOCATION ${BRAID_CUDNN_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${BRAID_CUDNN_INCLUDE_DIR})
endif()
mark_as_advanced(BRAID_CUDNN_INCLUDE_DIR BRAID_CUDNN_LIBRARY)
