# Sets WEFT_REPORT_ASSETS to a source that holds the text of page/: report.html
# needs no other file, and neither does the weft program.
function(weft_read_page out)
  set(text "")
  foreach(name ${ARGN})
    set(path ${CMAKE_CURRENT_LIST_DIR}/page/${name})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
    file(READ ${path} part)
    string(APPEND text "${part}")
  endforeach()
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

weft_read_page(WEFT_REPORT_PAGE page.html)
weft_read_page(WEFT_REPORT_STYLE report.css)
weft_read_page(WEFT_REPORT_SCRIPT format.js curve.js chart.js mesh.js groups.js report.js)
set(WEFT_REPORT_ASSETS ${CMAKE_CURRENT_BINARY_DIR}/report_assets.cpp)
configure_file(report/assets.cpp.in ${WEFT_REPORT_ASSETS} @ONLY)
