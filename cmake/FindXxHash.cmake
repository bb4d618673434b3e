# Target braid::xxhash. Elsewhere than in the system's folders: CMAKE_PREFIX_PATH.
find_path(XXHASH_INCLUDE_DIR xxhash.h)
find_library(XXHASH_LIBRARY xxhash)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(XxHash REQUIRED_VARS XXHASH_LIBRARY XXHASH_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "on Debian: apt-get install libxxhash-dev")

if(XxHash_FOUND AND NOT TARGET braid::xxhash)
  add_library(braid::xxhash UNKNOWN IMPORTED)
  set_target_properties(braid::xxhash PROPERTIES
    IMPORTED_LOCATION ${XXHASH_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${XXHASH_INCLUDE_DIR})
endif()
mark_as_advanced(XXHASH_INCLUDE_DIR XXHASH_LIBRARY)
