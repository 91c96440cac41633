# `cmake --install` and find_package(weft): the package files. Modules and
# programs have their install rules where they are defined.
include(CMakePackageConfigHelpers)
set(WEFT_DEFAULT_LIBTORCH ${Libtorch_ROOT_DIR})
if(WEFT_WHEEL) # site-packages/weft/lib/cmake/weft
  set(WEFT_DEFAULT_LIBTORCH "\${CMAKE_CURRENT_LIST_DIR}/../../../../torch")
  configure_file(${PROJECT_SOURCE_DIR}/packaging/libtorch_version.in
                 ${PROJECT_BINARY_DIR}/libtorch_version)
  install(FILES ${PROJECT_BINARY_DIR}/libtorch_version
          DESTINATION ${CMAKE_INSTALL_DATADIR}/weft)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/recipes
        DESTINATION ${CMAKE_INSTALL_DATADIR}/weft FILES_MATCHING PATTERN *.yaml)
# Installed headers include each other as <weft/...>, so that a folder of the
# same name in a user's project does not come first.
install(CODE "set(weft_include_dir \"${CMAKE_INSTALL_INCLUDEDIR}/weft\")")
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/prefix_includes.cmake)
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
