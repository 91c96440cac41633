# Finds tcmalloc without its profiler and defines Tcmalloc::minimal, which
# replaces malloc() in a program that is linked with it. The file of the runtime
# package is enough: nothing of the library is called by name.
#
# A program gets it by its property WEFT_USES_TCMALLOC, which libtorch::libtorch
# reads, because it belongs directly after libtorch: before the C library, so
# that its malloc() is found, and behind libtorch, because the dynamic loader
# initialises the last library first. Until it is initialised each allocation
# takes a lock, and a start of weft a seventh more processor time.
find_library(TCMALLOC_MINIMAL_LIBRARY
             NAMES tcmalloc_minimal libtcmalloc_minimal.so.4)
mark_as_advanced(TCMALLOC_MINIMAL_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  Tcmalloc
  REQUIRED_VARS TCMALLOC_MINIMAL_LIBRARY
  REASON_FAILURE_MESSAGE "Install libtcmalloc-minimal4.")

if(TCMALLOC_FOUND AND NOT TARGET Tcmalloc::minimal)
  add_library(Tcmalloc::minimal INTERFACE IMPORTED)
  # Also if the linker sees no need for it.
  set_target_properties(Tcmalloc::minimal PROPERTIES
    INTERFACE_LINK_LIBRARIES
    "-Wl,--push-state,--no-as-needed;${TCMALLOC_MINIMAL_LIBRARY};-Wl,--pop-state")
endif()
