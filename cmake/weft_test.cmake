include(GoogleTest)

# weft_add_test(<module> SOURCES ... DEPS ... [NO_TORCH] [PROCESSORS n]): one
# dense binary build/bin/<module>_test per module; every TEST becomes a ctest.
# Ranks are threads of the test's process (tests/support/run_ranks.h).
function(weft_add_test module)
  cmake_parse_arguments(ARG "NO_TORCH" "PROCESSORS" "SOURCES;DEPS" ${ARGN})
  add_executable(${module}_test ${ARG_SOURCES})
  target_include_directories(${module}_test PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${module}_test
    PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main
            weft_warnings)
  if(NOT ARG_NO_TORCH)
    target_link_libraries(${module}_test PRIVATE libtorch::libtorch)
    weft_use_pch(${module}_test)
  else()
    weft_batch(${module}_test)
  endif()
  if(NOT ARG_PROCESSORS)
    set(ARG_PROCESSORS 1)
  endif()
  gtest_discover_tests(${module}_test
    TEST_PREFIX "${module}." DISCOVERY_TIMEOUT 60 DISCOVERY_MODE PRE_TEST
    PROPERTIES TIMEOUT 120 LABELS ${module}
      PROCESSORS ${ARG_PROCESSORS} ENVIRONMENT "OMP_NUM_THREADS=1")
endfunction()
