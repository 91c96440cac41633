# ctest includes this for each GoogleTest binary before it runs tests:
#   WEFT_BINARY      the binary
#   WEFT_MODULE      the first part of the names of its entries
#   WEFT_BY_FOLDER   whether the suites of a folder of sources share an entry
#   WEFT_ALONE       a regular expression: tests (Suite.Name) that need a process
#                    of their own
#   WEFT_WAITS       a regular expression: entries that mostly wait
#   WEFT_PROPERTIES  the properties of every entry
#   WEFT_SOURCE, WEFT_FOLDER  Weft's sources; where lists and outcomes go
#   WEFT_DEFINITION  the file that sets all this
# An entry is a suite, the suites of a folder, or one test that needs a process of
# its own.
set(_entries "${WEFT_FOLDER}/${WEFT_MODULE}.cmake")
set(_newer OFF)
foreach(_file "${WEFT_BINARY}" "${WEFT_DEFINITION}"
        "${WEFT_SOURCE}/cmake/suites.awk")
  if(NOT EXISTS "${_entries}" OR "${_file}" IS_NEWER_THAN "${_entries}")
    set(_newer ON)
  endif()
endforeach()
if(NOT EXISTS "${WEFT_BINARY}")
  # Fails, by its name.
  add_test("${WEFT_MODULE}.is_not_built" "${WEFT_BINARY}")
  return()
endif()
if(_newer)
  execute_process(COMMAND "${WEFT_BINARY}" --gtest_list_tests
                          "--gtest_output=json:${_entries}.list"
                  OUTPUT_QUIET RESULT_VARIABLE _code TIMEOUT 60)
  if(NOT _code EQUAL 0)
    message(FATAL_ERROR "${WEFT_BINARY} --gtest_list_tests: ${_code}")
  endif()
  file(GLOB _old "${WEFT_FOLDER}/${WEFT_MODULE}.*")
  list(REMOVE_ITEM _old "${_entries}.list")
  if(_old)
    file(REMOVE ${_old})
  endif()
  execute_process(
    COMMAND awk -v "module=${WEFT_MODULE}" -v "binary=${WEFT_BINARY}"
            -v "runner=${WEFT_SOURCE}/scripts/run_suite.sh"
            -v "folder=${WEFT_FOLDER}" -v "by_folder=${WEFT_BY_FOLDER}"
            -v "alone=${WEFT_ALONE}" -v "waits=${WEFT_WAITS}"
            -v "properties=${WEFT_PROPERTIES}"
            -f "${WEFT_SOURCE}/cmake/suites.awk" "${_entries}.list"
    OUTPUT_FILE "${_entries}" COMMAND_ERROR_IS_FATAL ANY)
endif()
include("${_entries}")
