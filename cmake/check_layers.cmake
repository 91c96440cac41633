# cmake -DROOT=<repository> -P check_layers.cmake
# Folder = layer, at every depth: an include that cmake/layers.txt does not
# allow fails, and so does a table that is not from the bottom up, whose
# folders would include each other in a circle. docs/architecture.md has the
# same table.
cmake_minimum_required(VERSION 3.25)
set(bad 0)
function(fault)
  message(SEND_ERROR ${ARGN})
  set(bad 1 PARENT_SCOPE)
endfunction()

# The table: folders in order, and what each may include.
file(STRINGS ${ROOT}/cmake/layers.txt rows REGEX "^[^#]")
set(folders "")
foreach(row ${rows})
  string(REGEX MATCH "^([a-z_/]+): ?(.*)$" matched "${row}")
  set(folder ${CMAKE_MATCH_1})
  string(REPLACE " " ";" may "${CMAKE_MATCH_2}")
  string(REGEX REPLACE "/.*" "" library ${folder})
  foreach(other ${may})
    string(REGEX REPLACE "/.*" "" other_library ${other})
    if(NOT other_library IN_LIST libraries AND NOT other IN_LIST folders)
      fault("cmake/layers.txt: ${folder} may include ${other}, which is not "
            "above it")
    endif()
    if(other_library STREQUAL library AND NOT other IN_LIST folders)
      fault("cmake/layers.txt: ${folder} may include ${other} of its own "
            "library, which is not above it")
    elseif(NOT other_library STREQUAL library
           AND NOT other_library STREQUAL other)
      fault("cmake/layers.txt: ${folder}: write ${other_library}, the "
            "library, for ${other}")
    endif()
  endforeach()
  list(APPEND folders ${folder})
  list(APPEND libraries ${library})
  set(may_${folder} ${may})
  # A library that has begun below another may not go on above it.
  foreach(other ${may})
    string(REGEX REPLACE "/.*" "" other_library ${other})
    if(NOT other_library STREQUAL library)
      list(APPEND closed ${other_library})
    endif()
  endforeach()
  if(library IN_LIST closed)
    fault("cmake/layers.txt: ${folder} stands above a folder that may include "
          "${library}")
  endif()
endforeach()
list(REMOVE_DUPLICATES libraries)

# The sources.
foreach(library ${libraries})
  file(GLOB_RECURSE files RELATIVE ${ROOT}
       ${ROOT}/${library}/*.h ${ROOT}/${library}/*.cpp ${ROOT}/${library}/*.cu)
  list(FILTER files EXCLUDE REGEX "/gloo_shim/")
  foreach(file ${files})
    cmake_path(GET file PARENT_PATH folder)
    if(NOT folder IN_LIST folders)
      fault("${file}: cmake/layers.txt has no folder ${folder}")
      continue()
    endif()
    file(STRINGS ${ROOT}/${file} lines REGEX "^ *# *include \"[a-z_]+/")
    foreach(line ${lines})
      string(REGEX REPLACE "^[^\"]*\"([^\"]+)\".*" "\\1" used "${line}")
      cmake_path(GET used PARENT_PATH used_folder)
      string(REGEX REPLACE "/.*" "" used_library ${used})
      if(NOT used_library IN_LIST libraries
         OR used_folder STREQUAL folder
         OR used_folder IN_LIST may_${folder}
         OR (NOT used_library STREQUAL library
             AND used_library IN_LIST may_${folder}))
        continue()
      endif()
      fault("${file}: ${folder} may not include ${used_folder} "
            "(cmake/layers.txt)")
    endforeach()
  endforeach()
endforeach()

# Model code knows nothing of meshes; the plans beside it do.
file(GLOB files ${ROOT}/models/*.h ${ROOT}/models/*.cpp)
list(FILTER files EXCLUDE REGEX "/models/(plans|registry)\\.")
foreach(file ${files})
  file(STRINGS ${file} lines
       REGEX "^#include \"(mesh|tp|data_parallel|ddp|fsdp|checkpoint)/")
  foreach(line ${lines})
    fault("${file}: a model may not use ${line}")
  endforeach()
endforeach()

# The same table where people read it.
file(READ ${ROOT}/docs/architecture.md document)
foreach(row ${rows})
  string(FIND "${document}" "\n${row}\n" place)
  if(place EQUAL -1)
    fault("docs/architecture.md lacks this row of cmake/layers.txt: ${row}")
  endif()
endforeach()
if(bad)
  message(FATAL_ERROR "layer violations")
endif()
