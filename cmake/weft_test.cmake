# weft_add_test(<module> SOURCES ... DEPS ... [NO_TORCH] [STARTS_PROCESSES]
#               [BY_FOLDER] [ALONE regex...] [WAITS regex...]): one binary
#               build/bin/<module>_test per module.
# Every suite is an entry of ctest, whose tests share a process
# (scripts/run_suite.sh). With BY_FOLDER, all suites of a folder of sources are one
# entry: a start of libtorch takes longer than most suites. A test Suite.Name that
# matches an ALONE has a process and an entry of its own. Ranks are threads of that
# process (tests/support/run_ranks.h). Suites that start processes start first
# (COST) and run beside other suites, but not beside each other. Suites that match a
# WAITS use little processor time: each is an entry that runs beside any other, and
# counts half as much (PROCESSORS) of what scripts/test.sh runs at once. The same
# holds for tests that add_test() adds: those that compute have PROCESSORS 2.
set(WEFT_STARTS_PROCESSES RESOURCE_LOCK processes COST 100 PROCESSORS 2)

# _weft_add_libraries_of(<list> <target>): adds the project's libraries that a target
# links, directly or not.
function(_weft_add_libraries_of list target)
  get_target_property(names ${target} LINK_LIBRARIES)
  foreach(name IN LISTS names)
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" name "${name}")
    if(NOT TARGET "${name}")
      continue()
    endif()
    get_target_property(aliased ${name} ALIASED_TARGET)
    if(aliased)
      set(name ${aliased})
    endif()
    get_target_property(imported ${name} IMPORTED)
    if(NOT imported AND NOT name IN_LIST ${list})
      list(APPEND ${list} ${name})
      _weft_add_libraries_of(${list} ${name})
    endif()
  endforeach()
  set(${list} "${${list}}" PARENT_SCOPE)
endfunction()

# weft_link_optimized_first(<target>): a program has one of each inline function and
# template that several of its objects compiled, the first. Those of the objects of a
# test are not optimised: with them, ranks that are threads of a test would take a
# quarter more processor time. The two libraries that have most of the others come
# before the objects.
function(weft_link_optimized_first target)
  set(libraries "")
  _weft_add_libraries_of(libraries ${target})
  set(first "")
  foreach(library weft_dtensor weft_mesh)
    if(library IN_LIST libraries)
      string(APPEND first ",$<TARGET_FILE:${library}>")
    endif()
  endforeach()
  if(first)
    target_link_options(${target} BEFORE PRIVATE
      "LINKER:--whole-archive${first},--no-whole-archive")
  endif()
endfunction()

function(weft_add_test module)
  cmake_parse_arguments(
    ARG "NO_TORCH;STARTS_PROCESSES;BY_FOLDER" "" "SOURCES;DEPS;ALONE;WAITS" ${ARGN})
  add_executable(${module}_test ${ARG_SOURCES})
  target_include_directories(${module}_test PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${module}_test
    PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest weft_test_main
            weft_warnings)
  if(NOT ARG_NO_TORCH)
    target_link_libraries(${module}_test PRIVATE libtorch::libtorch)
    weft_use_test_pch(${module}_test)
    weft_link_optimized_first(${module}_test)
  else()
    weft_batch(${module}_test)
    target_compile_options(${module}_test PRIVATE ${WEFT_TEST_OPTIONS})
  endif()
  set(properties PROCESSORS 2)
  if(ARG_STARTS_PROCESSES)
    set(properties ${WEFT_STARTS_PROCESSES})
  endif()
  list(JOIN properties " " properties)
  weft_discover_suites(
    ${module}_test ${module} "${properties}" "${ARG_BY_FOLDER}" "${ARG_ALONE}"
    "${ARG_WAITS}")
endfunction()

# The entries of a binary are found when ctest runs: see discover_suites.cmake.
function(weft_discover_suites binary module properties by_folder alone waits)
  list(JOIN alone "|" alone)
  list(JOIN waits "|" waits)
  set(definition ${CMAKE_CURRENT_BINARY_DIR}/${module}_suites.cmake)
  # What takes a test too long is run_suite.sh's to find out; the limit of an
  # entry is for when that fails.
  file(GENERATE OUTPUT ${definition} CONTENT
"set(WEFT_BINARY \"$<TARGET_FILE:${binary}>\")
set(WEFT_MODULE \"${module}\")
set(WEFT_BY_FOLDER \"${by_folder}\")
set(WEFT_ALONE [==[${alone}]==])
set(WEFT_WAITS [==[${waits}]==])
set(WEFT_PROPERTIES [==[TIMEOUT 1500 SKIP_RETURN_CODE 77 LABELS ${module} ${properties} ENVIRONMENT \"OMP_NUM_THREADS=1\"]==])
set(WEFT_SOURCE \"${PROJECT_SOURCE_DIR}\")
set(WEFT_FOLDER \"${PROJECT_BINARY_DIR}/tests/outcomes\")
set(WEFT_DEFINITION \"${definition}\")
include(\"${PROJECT_SOURCE_DIR}/cmake/discover_suites.cmake\")
")
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/tests/outcomes)
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${definition})
endfunction()
