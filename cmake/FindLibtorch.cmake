# Finds libtorch in a torch wheel or an unpacked libtorch and defines the
# imported target libtorch::libtorch.
#
# The wheel's own TorchConfig.cmake needs nvcc at configure time even for CPU
# use, so the target is made here. Looked at, in order: LIBTORCH (CMake or
# environment variable: a folder with include/ and lib/), then .venv.
set(_weft_candidates)
if(LIBTORCH)
  list(APPEND _weft_candidates ${LIBTORCH})
elseif(DEFINED ENV{LIBTORCH} AND NOT "$ENV{LIBTORCH}" STREQUAL "")
  list(APPEND _weft_candidates $ENV{LIBTORCH})
else()
  file(GLOB _weft_candidates
       ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
endif()
find_path(Libtorch_ROOT_DIR include/torch/csrc/api/include/torch/torch.h
          HINTS ${_weft_candidates} NO_DEFAULT_PATH)
foreach(_weft_lib torch_cpu c10)
  find_library(Libtorch_${_weft_lib}_LIBRARY ${_weft_lib}
               HINTS ${Libtorch_ROOT_DIR}/lib NO_DEFAULT_PATH)
  mark_as_advanced(Libtorch_${_weft_lib}_LIBRARY)
endforeach()
if(Libtorch_ROOT_DIR)
  set(_weft_version_header
      ${Libtorch_ROOT_DIR}/include/torch/headeronly/version.h)
  if(NOT EXISTS ${_weft_version_header})
    set(_weft_version_header
        ${Libtorch_ROOT_DIR}/include/torch/csrc/api/include/torch/version.h)
  endif()
  file(STRINGS ${_weft_version_header} _weft_version
       REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" _weft_version "${_weft_version}")
  list(JOIN _weft_version "." Libtorch_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  Libtorch
  REQUIRED_VARS Libtorch_ROOT_DIR Libtorch_torch_cpu_LIBRARY
                Libtorch_c10_LIBRARY
  VERSION_VAR Libtorch_VERSION
  REASON_FAILURE_MESSAGE
    "Run 'make setup', or set LIBTORCH to a folder with libtorch's include/ and lib/.")

if(Libtorch_FOUND AND NOT TARGET libtorch::libtorch)
  add_library(libtorch::libtorch INTERFACE IMPORTED)
  target_include_directories(libtorch::libtorch SYSTEM INTERFACE
    ${Libtorch_ROOT_DIR}/include
    ${Libtorch_ROOT_DIR}/include/torch/csrc/api/include)
  target_compile_definitions(libtorch::libtorch INTERFACE
    USE_DISTRIBUTED USE_C10D_GLOO)
  # The allocator, for programs that ask for it: see FindTcmalloc.cmake.
  target_link_libraries(libtorch::libtorch INTERFACE
    ${Libtorch_torch_cpu_LIBRARY} ${Libtorch_c10_LIBRARY}
    $<$<BOOL:$<TARGET_PROPERTY:WEFT_USES_TCMALLOC>>:Tcmalloc::minimal>)
  # Clang names a template whose parameter is an enable_if_t differently from
  # GCC, with which libtorch was built, unless it is told to follow Clang 17.
  file(STRINGS ${Libtorch_ROOT_DIR}/include/ATen/core/TensorBase.h
       _weft_constrained REGEX "enable_if_t<!?std::is_const_v")
  if(_weft_constrained)
    target_compile_options(libtorch::libtorch INTERFACE
      $<$<AND:$<COMPILE_LANG_AND_ID:CXX,Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,18>>:-fclang-abi-compat=17>)
  endif()
  # libtorch_cpu.so of a CUDA build leaves CUDA symbols to libraries that a CPU
  # run never loads.
  target_link_options(libtorch::libtorch INTERFACE
    LINKER:--allow-shlib-undefined)
  if(NOT WEFT_WHEEL)
    target_link_options(libtorch::libtorch INTERFACE
      LINKER:-rpath,${Libtorch_ROOT_DIR}/lib)
  endif()
endif()
