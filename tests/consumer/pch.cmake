# Included after each project(). PCH is the precompiled header of Weft's tests,
# where clang made it: a project of this test would take 20 s for one of its own.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # With times in it, ccache would find nothing that uses a precompiled header.
  add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
  if(PCH)
    set(CMAKE_CXX_EXTENSIONS OFF) # which it was made without
    add_compile_options("SHELL:-Xclang -include-pch -Xclang \"${PCH}\"")
  endif()
endif()
