# Targets that every module shares: warnings, sanitizers, the precompiled
# header; and weft_add_module(), one library per folder.
include(${CMAKE_CURRENT_LIST_DIR}/batches.cmake)

add_library(weft_warnings INTERFACE)
target_compile_options(weft_warnings INTERFACE -Wall -Wextra -Werror
  # Clang reports what libstdc++'s own stable_sort() calls. GCC does not, and
  # still reports what Weft calls.
  $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>
  # In a batch every source is an included file; the linker sees one name.
  $<$<AND:$<BOOL:${WEFT_UNITY}>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>)
if(WEFT_SANITIZE)
  target_compile_options(weft_warnings INTERFACE
    -fsanitize=${WEFT_SANITIZE} -fno-omit-frame-pointer
    # It keeps clang from the vectors that WEFT_IVDEP asks for.
    $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)
  target_link_options(weft_warnings INTERFACE -fsanitize=${WEFT_SANITIZE})
endif()

# Without them ccache could not use a precompiled header.
if(WEFT_IS_CLANG)
  set(WEFT_PCH_OPTIONS "SHELL:-Xclang -fno-pch-timestamp")
else()
  set(WEFT_PCH_OPTIONS -fpch-preprocess)
endif()

# Compiles a target with the precompiled header of another, which is made of
# `headers` at its first use.
function(weft_reuse_pch target from)
  cmake_parse_arguments(ARG "" "" "HEADERS;OPTIONS;LIBRARIES" ${ARGN})
  weft_batch(${target})
  target_compile_options(${target} PRIVATE ${ARG_OPTIONS})
  if(NOT WEFT_PCH)
    return()
  endif()
  if(NOT TARGET ${from})
    if(NOT EXISTS ${PROJECT_BINARY_DIR}/pch.cpp)
      file(WRITE ${PROJECT_BINARY_DIR}/pch.cpp "")
    endif()
    add_library(${from} OBJECT ${PROJECT_BINARY_DIR}/pch.cpp)
    target_link_libraries(${from} PRIVATE ${ARG_LIBRARIES} weft_warnings)
    target_compile_options(${from} PRIVATE ${ARG_OPTIONS} ${WEFT_PCH_OPTIONS})
    target_precompile_headers(${from} PRIVATE ${ARG_HEADERS})
  endif()
  # CMake compiles programs with -fPIE, which does not match the header's.
  target_compile_options(${target} PRIVATE ${WEFT_PCH_OPTIONS} -fPIC)
  target_precompile_headers(${target} REUSE_FROM ${from})
endfunction()

# weft_use_pch(<target>): batches with the shared precompiled header.
function(weft_use_pch target)
  weft_reuse_pch(${target} weft_pch
    HEADERS ${PROJECT_SOURCE_DIR}/cmake/precompiled.h
    LIBRARIES libtorch::libtorch nlohmann_json::nlohmann_json)
endfunction()

# weft_use_test_pch(<target>): the same for tests, with GoogleTest's headers.
# Tests are not optimised in a release build: half of their compile time would
# go there, and their own code takes little of the time that they run.
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(WEFT_TEST_OPTIONS -O0)
endif()
function(weft_use_test_pch target)
  weft_reuse_pch(${target} weft_test_pch
    HEADERS ${PROJECT_SOURCE_DIR}/cmake/precompiled.h
            <gmock/gmock.h> <gtest/gtest.h>
    OPTIONS ${WEFT_TEST_OPTIONS}
    LIBRARIES libtorch::libtorch nlohmann_json::nlohmann_json
              GTest::gmock GTest::gtest)
endfunction()

# weft_inline_less(<target>): inlines as little as -Os does, which takes the
# compiler a sixth less time. For code that no step waits for. (-Os itself does
# not match the precompiled header.)
function(weft_inline_less target)
  target_compile_options(${target} PRIVATE
    "$<$<AND:$<CXX_COMPILER_ID:Clang>,$<CONFIG:Release>>:SHELL:-mllvm -inline-threshold=50>")
endfunction()

# weft_add_module(<name> [NO_TORCH] SOURCES ... HEADERS ... DEPS ...
#                 PRIVATE_DEPS ...)
function(weft_add_module name)
  cmake_parse_arguments(
    ARG "NO_TORCH" "" "SOURCES;HEADERS;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(weft_${name} ${ARG_SOURCES})
  add_library(weft::${name} ALIAS weft_${name})
  target_sources(weft_${name} PUBLIC
    FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HEADERS})
  target_compile_features(weft_${name} PUBLIC cxx_std_20)
  set(torch "")
  if(NOT ARG_NO_TORCH)
    set(torch libtorch::libtorch)
  endif()
  # libtorch has headers of fmt, and all sources must find the same ones: those
  # of other packages come after them.
  target_link_libraries(weft_${name}
    PUBLIC ${ARG_DEPS} ${torch}
    PRIVATE ${ARG_PRIVATE_DEPS} $<BUILD_INTERFACE:weft_warnings>)
  if(NOT ARG_NO_TORCH)
    weft_use_pch(weft_${name})
  endif()
  set_target_properties(weft_${name} PROPERTIES
    EXPORT_NAME ${name} VERIFY_INTERFACE_HEADER_SETS ON)
  install(TARGETS weft_${name} EXPORT weft-targets
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endfunction()
