# cpack -G DEB: the program as a package of Debian (scripts/build_deb.sh). Who links braid builds it from its sources (docs/library.md).
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME braid-train)
set(CPACK_PACKAGE_VENDOR "The braid authors")
set(CPACK_PACKAGE_CONTACT "The braid authors <braid@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains large language models and hides communication under compute")
set(CPACK_COMPONENTS_ALL program)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME braid-train)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
# The libraries that the program links, with their least versions; and the build of OpenBLAS that it finds by path: the others satisfy
# what dpkg-shlibdeps finds, too (cmake/FindOpenBlas.cmake).
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libopenblas0-pthread")
# Libraries that the package brings itself (cmake/BraidInstall.cmake).
if(BRAID_ARROW_DIR)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${BRAID_ARROW_DIR})
endif()
include(CPack)
