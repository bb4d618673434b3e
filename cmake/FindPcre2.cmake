# Target braid::pcre2: regular expressions over UTF-8. Elsewhere than in the system's folders: CMAKE_PREFIX_PATH.
find_path(PCRE2_INCLUDE_DIR pcre2.h)
find_library(PCRE2_LIBRARY pcre2-8)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Pcre2 REQUIRED_VARS PCRE2_LIBRARY PCRE2_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "on Debian: apt-get install libpcre2-dev")

if(Pcre2_FOUND AND NOT TARGET braid::pcre2)
  add_library(braid::pcre2 UNKNOWN IMPORTED)
  set_target_properties(braid::pcre2 PROPERTIES
    IMPORTED_LOCATION ${PCRE2_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${PCRE2_INCLUDE_DIR})
endif()
mark_as_advanced(PCRE2_INCLUDE_DIR PCRE2_LIBRARY)
