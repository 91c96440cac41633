# Finds PCRE2 for 8-bit units and defines PCRE2::8BIT, as PCRE2's own CMake
# file does, which Debian does not ship.
find_path(PCRE2_INCLUDE_DIR pcre2.h)
find_library(PCRE2_8BIT_LIBRARY pcre2-8)
mark_as_advanced(PCRE2_INCLUDE_DIR PCRE2_8BIT_LIBRARY)
if(PCRE2_INCLUDE_DIR)
  file(STRINGS ${PCRE2_INCLUDE_DIR}/pcre2.h _weft_pcre2
       REGEX "define PCRE2_(MAJOR|MINOR) ")
  list(TRANSFORM _weft_pcre2 REPLACE "[^0-9]*2[^0-9]+([0-9]+).*" "\\1")
  list(JOIN _weft_pcre2 "." PCRE2_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  PCRE2
  REQUIRED_VARS PCRE2_8BIT_LIBRARY PCRE2_INCLUDE_DIR
  VERSION_VAR PCRE2_VERSION
  REASON_FAILURE_MESSAGE "Install libpcre2-dev.")

if(PCRE2_FOUND AND NOT TARGET PCRE2::8BIT)
  add_library(PCRE2::8BIT UNKNOWN IMPORTED)
  set_target_properties(PCRE2::8BIT PROPERTIES
    IMPORTED_LOCATION ${PCRE2_8BIT_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${PCRE2_INCLUDE_DIR}
    INTERFACE_COMPILE_DEFINITIONS PCRE2_CODE_UNIT_WIDTH=8)
endif()
