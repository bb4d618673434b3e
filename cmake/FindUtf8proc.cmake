# Target braid::utf8proc: Unicode's normal forms. Elsewhere than in the system's folders: CMAKE_PREFIX_PATH.
find_path(UTF8PROC_INCLUDE_DIR utf8proc.h)
find_library(UTF8PROC_LIBRARY utf8proc)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Utf8proc REQUIRED_VARS UTF8PROC_LIBRARY UTF8PROC_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "on Debian: apt-get install libutf8proc-dev")

if(Utf8proc_FOUND AND NOT TARGET braid::utf8proc)
  add_library(braid::utf8proc UNKNOWN IMPORTED)
  set_target_properties(braid::utf8proc PROPERTIES
    IMPORTED_LOCATION ${UTF8PROC_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${UTF8PROC_INCLUDE_DIR})
endif()
mark_as_advanced(UTF8PROC_INCLUDE_DIR UTF8PROC_LIBRARY)
