# Included after each project(): with times in clang's precompiled header,
# ccache would find nothing that uses it.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
endif()
