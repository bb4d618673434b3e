# cmake --install: the program, the facade's header, the libraries behind it, and what find_package(braid) reads.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Sets RESULT to all our libraries that a library links, itself included. What is hidden behind $<BUILD_INTERFACE:...> is not
# followed: who links the installed library has no use for it.
function(braid_libraries_behind target result)
  set(found ${target})
  set(open ${target})
  while(open)
    list(POP_FRONT open next)
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
      get_target_property(linked ${next} ${property})
      foreach(library ${linked})
        if(library MATCHES "^braid_" AND NOT library IN_LIST found)
          list(APPEND found ${library})
          list(APPEND open ${library})
        endif()
      endforeach()
    endforeach()
  endwhile()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/braid)
braid_libraries_behind(braid_api libraries)
install(TARGETS ${libraries} EXPORT braidTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/braid)
install(EXPORT braidTargets NAMESPACE braid:: DESTINATION ${package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/braid DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# Copies to read and to begin own files with: the program has them built in.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/hardware ${PROJECT_SOURCE_DIR}/stacks DESTINATION ${CMAKE_INSTALL_DATADIR}/braid COMPONENT program)
if(BRAID_PROGRAM)
  install(TARGETS braid RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
endif()
# What reads Parquet, with Apache Arrow's libraries beside it, which no package of Debian has.
if(TARGET braid_parquet)
  install(TARGETS braid_parquet LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/braid COMPONENT program)
  foreach(library ${PARQUET_LIBRARY} ${ARROW_LIBRARY})
    if(library MATCHES "\\.so\\.[0-9]+$")  # of scripts/fetch_arrow.sh: a library of the system is found without
      install(FILES ${library} DESTINATION ${CMAKE_INSTALL_LIBDIR}/braid COMPONENT program)
      get_filename_component(BRAID_ARROW_DIR ${library} DIRECTORY)
    endif()
  endforeach()
  if(BRAID_ARROW_DIR)
    file(GLOB licences ${BRAID_ARROW_DIR}/../licenses/*)
    install(FILES ${licences} DESTINATION ${CMAKE_INSTALL_DATADIR}/braid/arrow COMPONENT program)
  endif()
endif()

# The modules that found the libraries which ours need find them again where braid is used.
install(FILES cmake/FindOpenBlas.cmake cmake/FindPcre2.cmake cmake/FindSentencePiece.cmake cmake/FindUtf8proc.cmake cmake/FindXxHash.cmake
        cmake/FindZstd.cmake
        DESTINATION ${package_dir})
# Optional libraries that this build links.
get_target_property(linked braid_data LINK_LIBRARIES)
set(BRAID_HAS_ZLIB OFF)
set(BRAID_HAS_ZSTD OFF)
if("ZLIB::ZLIB" IN_LIST linked)
  set(BRAID_HAS_ZLIB ON)
endif()
if("braid::zstd" IN_LIST linked)
  set(BRAID_HAS_ZSTD ON)
endif()
if(BRAID_HAS_CUDA)
  install(FILES cmake/FindCudnn.cmake DESTINATION ${package_dir})
endif()
if(TARGET braid::sm90_kernels)
  get_target_property(sm90_objects braid::sm90_kernels INTERFACE_LINK_LIBRARIES)
  install(FILES ${sm90_objects} DESTINATION ${CMAKE_INSTALL_LIBDIR}/braid/sm90_kernels)
endif()
configure_package_config_file(cmake/braidConfig.cmake.in ${PROJECT_BINARY_DIR}/braidConfig.cmake
  INSTALL_DESTINATION ${package_dir} PATH_VARS CMAKE_INSTALL_LIBDIR NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/braidConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/braidConfig.cmake ${PROJECT_BINARY_DIR}/braidConfigVersion.cmake
  DESTINATION ${package_dir})
