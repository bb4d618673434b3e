# Target braid::blas: the pthread build of OpenBLAS, with its cblas.h.
#
# Debian installs several BLAS libraries side by side and picks one by "alternatives". Results must not change when
# somebody switches an alternative, and the OpenMP and serial builds behave differently when called from our stream
# threads. So the pthread build is linked by its own path, and found again at run time by the same path (rpath).
# Other systems: set OPENBLAS_ROOT to a folder with include/cblas.h and lib/libopenblas.so.
set(openblas_hints ${OPENBLAS_ROOT} $ENV{OPENBLAS_ROOT})

find_path(OPENBLAS_INCLUDE_DIR cblas.h
  HINTS ${openblas_hints}
  PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread
  PATH_SUFFIXES include include/openblas
  NO_CMAKE_SYSTEM_PATH NO_SYSTEM_ENVIRONMENT_PATH)
find_library(OPENBLAS_LIBRARY openblas
  HINTS ${openblas_hints}
  PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread
  PATH_SUFFIXES lib
  NO_CMAKE_SYSTEM_PATH NO_SYSTEM_ENVIRONMENT_PATH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OpenBlas
  REQUIRED_VARS OPENBLAS_LIBRARY OPENBLAS_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "on Debian: apt-get install libopenblas-pthread-dev, elsewhere set OPENBLAS_ROOT")

if(OpenBlas_FOUND AND NOT TARGET braid::blas)
  get_filename_component(openblas_folder ${OPENBLAS_LIBRARY} DIRECTORY)
  add_library(braid::blas UNKNOWN IMPORTED)
  set_target_properties(braid::blas PROPERTIES
    IMPORTED_LOCATION ${OPENBLAS_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${OPENBLAS_INCLUDE_DIR}
    INTERFACE_LINK_OPTIONS "LINKER:-rpath,${openblas_folder}"
    INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()
mark_as_advanced(OPENBLAS_INCLUDE_DIR OPENBLAS_LIBRARY)
