# cpack --config packaging/cpack.cmake -G TGZ|DEB: packs the folder in the
# environment variable WEFT_PACKAGE_TREE into WEFT_PACKAGE_OUT; see
# scripts/package.sh.
file(READ ${CMAKE_CURRENT_LIST_DIR}/../CMakeLists.txt text)
string(REGEX MATCH "project\\(weft VERSION ([0-9.]+)" found "${text}")
set(CPACK_PACKAGE_NAME weft)
set(CPACK_PACKAGE_VERSION ${CMAKE_MATCH_1})
set(CPACK_PACKAGE_VENDOR Weft)
set(CPACK_PACKAGE_CONTACT Weft)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY
    "trains transformers on libtorch, data parallel by tensor parallel")
set(CPACK_PACKAGE_DESCRIPTION ${CPACK_PACKAGE_DESCRIPTION_SUMMARY})
set(CPACK_INSTALLED_DIRECTORIES "$ENV{WEFT_PACKAGE_TREE};.")
set(CPACK_PACKAGE_DIRECTORY "$ENV{WEFT_PACKAGE_OUT}")
set(CPACK_PACKAGE_FILE_NAME weft-${CPACK_PACKAGE_VERSION}-linux-x86_64)
set(CPACK_CMAKE_GENERATOR Ninja)
set(CPACK_PACKAGING_INSTALL_PREFIX /)
set(CPACK_DEBIAN_PACKAGE_DEPENDS
    "libc6 (>= $ENV{WEFT_GLIBC}), libgomp1, libstdc++6")
