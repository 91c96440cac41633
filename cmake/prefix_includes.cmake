# An install script: in the installed headers, #include "mesh/world.h" becomes
# #include <weft/mesh/world.h>.
set(include_dir "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/include/weft")
file(GLOB folders LIST_DIRECTORIES true RELATIVE "${include_dir}"
     "${include_dir}/*")
list(JOIN folders "|" folders)
file(GLOB_RECURSE headers "${include_dir}/*.h")
foreach(header IN LISTS headers)
  file(READ "${header}" text)
  string(REGEX REPLACE "#include \"((${folders})/[^\"]+)\"" "#include <weft/\\1>"
         prefixed "${text}")
  if(NOT prefixed STREQUAL text)
    file(WRITE "${header}" "${prefixed}")
  endif()
endforeach()
