# Target braid::arrow: Apache Arrow's libraries libarrow and libparquet, in the version that scripts/fetch_arrow.sh puts into the
# user's cache. Elsewhere: set ARROW_ROOT to a folder with include/parquet/file_reader.h and lib/.
file(STRINGS ${PROJECT_SOURCE_DIR}/scripts/fetch_arrow.sh version_line REGEX "^version=")
string(REGEX REPLACE "^version=([0-9.]+).*" "\\1" fetched_version "${version_line}")
if(DEFINED ENV{XDG_CACHE_HOME})
  set(user_cache $ENV{XDG_CACHE_HOME})
else()
  set(user_cache $ENV{HOME}/.cache)
endif()
# A build folder may remember a version that is there no longer.
if(ARROW_INCLUDE_DIR AND NOT EXISTS ${ARROW_INCLUDE_DIR}/parquet/file_reader.h)
  unset(ARROW_INCLUDE_DIR CACHE)
  unset(ARROW_LIBRARY CACHE)
  unset(PARQUET_LIBRARY CACHE)
endif()
find_path(ARROW_INCLUDE_DIR parquet/file_reader.h
  HINTS ${ARROW_ROOT} $ENV{ARROW_ROOT} ${user_cache}/braid/arrow-${fetched_version}
  PATH_SUFFIXES include)
if(ARROW_INCLUDE_DIR)
  file(STRINGS ${ARROW_INCLUDE_DIR}/arrow/util/config.h lines REGEX "define ARROW_(VERSION_STRING|SO_VERSION) ")
  string(REGEX REPLACE ".*VERSION_STRING \"([^\"]*)\".*" "\\1" ArrowParquet_VERSION "${lines}")
  string(REGEX REPLACE ".*SO_VERSION \"([^\"]*)\".*" "\\1" so_version "${lines}")
  # Wheels have no names without the version of the interface.
  get_filename_component(root ${ARROW_INCLUDE_DIR} DIRECTORY)
  find_library(ARROW_LIBRARY NAMES libarrow.so.${so_version} arrow HINTS ${root} PATH_SUFFIXES lib)
  find_library(PARQUET_LIBRARY NAMES libparquet.so.${so_version} parquet HINTS ${root} PATH_SUFFIXES lib)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ArrowParquet
  REQUIRED_VARS PARQUET_LIBRARY ARROW_LIBRARY ARROW_INCLUDE_DIR
  VERSION_VAR ArrowParquet_VERSION
  REASON_FAILURE_MESSAGE "run scripts/fetch_arrow.sh or set ARROW_ROOT")

if(ArrowParquet_FOUND AND NOT TARGET braid::arrow)
  add_library(braid::arrow INTERFACE IMPORTED GLOBAL)  # tests write such files
  set_target_properties(braid::arrow PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES ${ARROW_INCLUDE_DIR}
    INTERFACE_LINK_LIBRARIES "${PARQUET_LIBRARY};${ARROW_LIBRARY}")
endif()
mark_as_advanced(ARROW_INCLUDE_DIR ARROW_LIBRARY PARQUET_LIBRARY)
