# Compiles through ccache where it is installed. A precompiled header needs
# these leniencies, or every file that uses it misses the cache.
find_program(CCACHE_PROGRAM ccache)
set(WEFT_CCACHE_SLOPPINESS
    pch_defines,time_macros,include_file_mtime,include_file_ctime)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=${WEFT_CCACHE_SLOPPINESS}
      ${CCACHE_PROGRAM})
endif()
