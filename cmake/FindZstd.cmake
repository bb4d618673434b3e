# Target braid::zstd: reading text compressed with zstd. Elsewhere than in the system's folders: CMAKE_PREFIX_PATH.
find_path(ZSTD_INCLUDE_DIR zstd.h)
find_library(ZSTD_LIBRARY zstd)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Zstd REQUIRED_VARS ZSTD_LIBRARY ZSTD_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "on Debian: apt-get install libzstd-dev")

if(Zstd_FOUND AND NOT TARGET braid::zstd)
  add_library(braid::zstd UNKNOWN IMPORTED)
  set_target_properties(braid::zstd PROPERTIES
    IMPORTED_LOCATION ${ZSTD_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${ZSTD_INCLUDE_DIR})
endif()
mark_as_advanced(ZSTD_INCLUDE_DIR ZSTD_LIBRARY)
