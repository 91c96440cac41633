# An install script: in the installed headers, #include "mesh/world.h" becomes
# #include <weft/mesh/world.h>.
cmake_path(ABSOLUTE_PATH weft_include_dir BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}"
           OUTPUT_VARIABLE include_dir)
set(include_dir "$ENV{DESTDIR}${include_dir}")
file(GLOB folders LIST_DIRECTORIES true RELATIVE "${include_dir}"
     "${include_dir}/*")
list(JOIN folders "|" folders)
file(GLOB_RECURSE headers "${include_dir}/*.h")
if(NOT headers)
  message(FATAL_ERROR "${include_dir} has no headers")
endif()
foreach(header IN LISTS headers)
  file(READ "${header}" text)
  string(REGEX REPLACE "#include \"((${folders})/[^\"]+)\"" "#include <weft/\\1>"
         prefixed "${text}")
  if(NOT prefixed STREQUAL text)
    file(WRITE "${header}" "${prefixed}")
  endif()
endforeach()
