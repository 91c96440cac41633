# `cmake --install` and find_package(weft): the package files. Modules and
# programs have their install rules where they are defined.
include(CMakePackageConfigHelpers)
install(EXPORT weft-targets NAMESPACE weft::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/weftConfig.cmake.in
  ${PROJECT_BINARY_DIR}/weftConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/weftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/weftConfig.cmake
              ${PROJECT_BINARY_DIR}/weftConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindLibtorch.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindPCRE2.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindSentencePiece.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
