# weft_batch(): sources that are compiled together.

# weft_includes(<out> <file> <header>): whether a source or header includes
# <header>, itself or by way of headers of Weft.
function(weft_includes out file header)
  set(property "WEFT_INCLUDES ${header} ${file}")
  get_property(known GLOBAL PROPERTY ${property})
  if("${known}" STREQUAL "")
    set_property(GLOBAL PROPERTY ${property} OFF) # ends a circle of headers
    set(known OFF)
    file(STRINGS "${file}" headers REGEX "^#include [<\"]")
    list(TRANSFORM headers REPLACE "^#include .([^>\"]*).*" "\\1")
    foreach(name IN LISTS headers)
      if(name STREQUAL header)
        set(known ON)
      elseif(EXISTS "${PROJECT_SOURCE_DIR}/${name}")
        weft_includes(known "${PROJECT_SOURCE_DIR}/${name}" ${header})
      endif()
      if(known)
        break()
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY ${property} ${known})
  endif()
  set(${out} ${known} PARENT_SCOPE)
endfunction()

# _weft_bytes_of(<out> [<source> ...]): the bytes of all of them.
function(_weft_bytes_of out)
  set(bytes 0)
  foreach(source IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE file)
    file(SIZE "${file}" own)
    math(EXPR bytes "${bytes} + ${own}")
  endforeach()
  set(${out} ${bytes} PARENT_SCOPE)
endfunction()

# _weft_cut(<next> <bytes> [<source> ...]): makes batches of about equal size of
# the sources. ${<next>} is the number of the first, and then of the next one.
function(_weft_cut next most)
  _weft_bytes_of(all ${ARGN})
  math(EXPR share "${all} / (1 + ${all} / ${most})")
  set(batch ${${next}})
  set(bytes 0)
  foreach(source IN LISTS ARGN)
    _weft_bytes_of(own ${source})
    math(EXPR middle "${bytes} + ${own} / 2")
    if(bytes GREATER 0 AND middle GREATER share)
      math(EXPR batch "${batch} + 1")
      set(bytes 0)
    endif()
    math(EXPR bytes "${bytes} + ${own}")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${batch})
  endforeach()
  math(EXPR batch "${batch} + 1")
  set(${next} ${batch} PARENT_SCOPE)
endfunction()

# weft_batch(<target> [<bytes>]): compiles several sources at once. What several
# of them instantiate and emit, a batch does once. Sources of a target share
# their anonymous namespaces so; one that cannot is left out, with the reason,
# by SKIP_UNITY_BUILD_INCLUSION. The time of a batch grows with its bytes, which
# are therefore limited: 120 kB are some fifteen sources and take ten seconds.
#
# Three kinds of sources have batches of their own: those that include CLI11, which
# each batch that has one of them compiles again, where they fill half of one; those
# that know DTensorSpec; and the others, which a change of it does not compile again,
# where they fill a third of one.
function(weft_batch target)
  set(most ${ARGN})
  if(NOT most)
    set(most 120000)
  endif()
  math(EXPR half "${most} / 2")
  math(EXPR third "${most} / 3")
  set(cli11 "")
  set(specs "")
  set(others "")
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE file)
    if(NOT source MATCHES "[.]cpp$" OR NOT EXISTS "${file}")
      continue()
    endif()
    weft_includes(has_cli11 "${file}" CLI/CLI.hpp)
    weft_includes(knows_specs "${file}" dtensor/spec/spec.h)
    if(has_cli11)
      list(APPEND cli11 ${source})
    elseif(knows_specs)
      list(APPEND specs ${source})
    else()
      list(APPEND others ${source})
    endif()
  endforeach()
  _weft_bytes_of(bytes ${others})
  if(bytes LESS third)
    list(APPEND specs ${others})
    set(others "")
  endif()
  _weft_bytes_of(bytes ${cli11})
  if(bytes LESS half)
    set(joined others)
    if(specs)
      set(joined specs)
    endif()
    list(PREPEND ${joined} ${cli11})
    set(cli11 "")
  endif()

  set(batch 0)
  foreach(kind IN ITEMS cli11 specs others)
    if(${kind})
      _weft_cut(batch ${most} ${${kind}})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ${WEFT_UNITY} UNITY_BUILD_MODE GROUP)
endfunction()
