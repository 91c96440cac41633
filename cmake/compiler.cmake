# What differs between GCC and Clang, and the linker. scripts/lib.sh chooses the
# compiler (compiler()); CMake alone takes CXX, as always.
include(CheckLinkerFlag)
set(WEFT_IS_CLANG OFF)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(WEFT_IS_CLANG ON)
endif()
set(_weft_oldest_GNU 12)
set(_weft_oldest_Clang 16)
if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS
   "${_weft_oldest_${CMAKE_CXX_COMPILER_ID}}")
  message(FATAL_ERROR
    "${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} "
    "${CMAKE_CXX_COMPILER_VERSION}, too old for C++20 as Weft uses it: "
    "Clang ${_weft_oldest_Clang} or GCC ${_weft_oldest_GNU} is needed. "
    "Set CXX to one.")
endif()

# Links of large programs take a tenth of the time with these.
set(_weft_linker "the compiler's linker")
foreach(_weft_name lld mold)
  check_linker_flag(CXX -fuse-ld=${_weft_name} WEFT_HAS_${_weft_name})
  if(WEFT_HAS_${_weft_name})
    add_link_options(-fuse-ld=${_weft_name})
    set(_weft_linker ${_weft_name})
    break()
  endif()
endforeach()
message(STATUS "compiler: ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} "
               "(${CMAKE_CXX_COMPILER}), linked by ${_weft_linker}")
