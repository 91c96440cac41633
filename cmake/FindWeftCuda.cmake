# What libweft_cuda.so is built from, found and not demanded: libtorch's CUDA
# libraries, CUDA's and NCCL's headers (toolkit or wheels), and nvcc. Sets
#
#   WeftCuda_FOUND, WeftCuda_REASON (what is missing)
#   WeftCuda_INCLUDE_DIRS, WeftCuda_LIBRARIES
#   WeftCuda_NVCC (empty: no kernels), WeftCuda_NVCC_FLAGS,
#   WeftCuda_HOST_COMPILER
#   WeftCuda_SUMMARY (for the status line)
#
# Looked at, in order: the wheels beside libtorch, CUDA_HOME, /usr/local/cuda,
# the system. The wheels come first because NCCL's headers have to be those
# that libtorch was built with (cuda/nccl_group.cpp).
get_filename_component(_weft_site ${Libtorch_ROOT_DIR}/.. ABSOLUTE)
file(GLOB _weft_wheels LIST_DIRECTORIES true ${_weft_site}/nvidia/cu[0-9]*)
set(_weft_toolkits $ENV{CUDA_HOME} /usr/local/cuda)

foreach(_weft_lib torch_cuda c10_cuda)
  find_library(WeftCuda_${_weft_lib}_LIBRARY ${_weft_lib}
               HINTS ${Libtorch_ROOT_DIR}/lib NO_DEFAULT_PATH)
endforeach()
# The wheels have it under its soname alone.
set(_weft_cudarts)
foreach(_weft_folder ${_weft_wheels} ${_weft_site}/nvidia/cuda_runtime
        ${_weft_toolkits} /usr)
  file(GLOB _weft_found ${_weft_folder}/lib*/libcudart.so*
       ${_weft_folder}/lib/*/libcudart.so*)
  list(APPEND _weft_cudarts ${_weft_found})
endforeach()
if(_weft_cudarts AND NOT WeftCuda_cudart_LIBRARY)
  list(GET _weft_cudarts 0 WeftCuda_cudart_LIBRARY)
endif()
# libtorch's headers include cuBLAS's and cuSPARSE's; the wheels of a CPU
# installation have the runtime's alone, those of CUDA 12 one folder for each.
set(_weft_include)
foreach(_weft_folder ${_weft_wheels} ${_weft_toolkits} /usr)
  if(NOT _weft_include AND EXISTS ${_weft_folder}/include/cuda_runtime_api.h
     AND EXISTS ${_weft_folder}/include/cublasLt.h)
    set(_weft_include ${_weft_folder}/include)
  endif()
endforeach()
if(NOT WeftCuda_CUDA_INCLUDE_DIR)
  set(WeftCuda_CUDA_INCLUDE_DIR ${_weft_include})
endif()
find_path(WeftCuda_NCCL_INCLUDE_DIR nccl.h
          HINTS ${_weft_site}/nvidia/nccl ${_weft_toolkits}
          PATH_SUFFIXES include)
# The compiler of host code: nvcc knows few versions of Clang.
find_program(WeftCuda_HOST_COMPILER g++)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR NOT WeftCuda_HOST_COMPILER)
  set(WeftCuda_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()
find_program(WeftCuda_NVCC nvcc
             HINTS $ENV{CUDA_HOME} /usr/local/cuda PATH_SUFFIXES bin)
mark_as_advanced(
  WeftCuda_torch_cuda_LIBRARY WeftCuda_c10_cuda_LIBRARY
  WeftCuda_NCCL_INCLUDE_DIR WeftCuda_NVCC)

# _weft_nccl_version(<variable> <header>): "2.28.9".
function(_weft_nccl_version variable header)
  file(STRINGS ${header} lines REGEX "define NCCL_(MAJOR|MINOR|PATCH) ")
  list(TRANSFORM lines REPLACE "[^0-9]*([0-9]+).*" "\\1")
  list(JOIN lines "." version)
  set(${variable} ${version} PARENT_SCOPE)
endfunction()

set(WeftCuda_FOUND FALSE)
set(WeftCuda_REASON "")
set(WeftCuda_SUMMARY "")
if(NOT WeftCuda_torch_cuda_LIBRARY OR NOT WeftCuda_c10_cuda_LIBRARY)
  set(WeftCuda_REASON "this libtorch has no libtorch_cuda.so")
elseif(NOT WeftCuda_CUDA_INCLUDE_DIR)
  set(WeftCuda_REASON
      "no CUDA headers (cuda_runtime_api.h, cublasLt.h): install the CUDA toolkit, or torch with its CUDA wheels")
elseif(NOT WeftCuda_NCCL_INCLUDE_DIR)
  set(WeftCuda_REASON
      "no NCCL headers (nccl.h): install libnccl-dev or the nvidia-nccl wheel")
elseif(NOT EXISTS "${WeftCuda_cudart_LIBRARY}")
  set(WeftCuda_REASON "no libcudart.so")
else()
  set(WeftCuda_FOUND TRUE)
  set(WeftCuda_INCLUDE_DIRS
      ${WeftCuda_NCCL_INCLUDE_DIR} ${WeftCuda_CUDA_INCLUDE_DIR})
  set(WeftCuda_LIBRARIES
      ${WeftCuda_torch_cuda_LIBRARY} ${WeftCuda_c10_cuda_LIBRARY}
      ${WeftCuda_cudart_LIBRARY})
  _weft_nccl_version(_weft_nccl ${WeftCuda_NCCL_INCLUDE_DIR}/nccl.h)
  set(WeftCuda_SUMMARY "NCCL ${_weft_nccl}")
  # What this torch asks for, where its wheel says so.
  file(GLOB _weft_metadata ${_weft_site}/torch-*.dist-info/METADATA)
  if(_weft_metadata)
    list(GET _weft_metadata 0 _weft_metadata)
    file(STRINGS ${_weft_metadata} _weft_wanted REGEX "nvidia-nccl-cu[0-9]+==")
    string(REGEX REPLACE ".*==([0-9]+\\.[0-9]+).*" "\\1" _weft_wanted
           "${_weft_wanted}")
    string(REGEX MATCH "^[0-9]+\\.[0-9]+" _weft_minor "${_weft_nccl}")
    if(_weft_wanted AND NOT _weft_wanted STREQUAL _weft_minor)
      string(APPEND WeftCuda_SUMMARY
             ", but this libtorch has ${_weft_wanted}: the library links and "
             "will refuse to run")
    endif()
  endif()
endif()

# Machine code for A100 and its kin, H100 and H200, B200; for later devices,
# code that their driver compiles.
set(WeftCuda_NVCC_FLAGS "")
if(WeftCuda_FOUND AND WeftCuda_NVCC)
  execute_process(COMMAND ${WeftCuda_NVCC} --list-gpu-arch
                  OUTPUT_VARIABLE _weft_archs ERROR_QUIET)
  foreach(_weft_arch 80 90 100)
    if(_weft_archs MATCHES "compute_${_weft_arch}([^0-9]|$)")
      list(APPEND WeftCuda_NVCC_FLAGS
           -gencode arch=compute_${_weft_arch},code=sm_${_weft_arch})
      set(_weft_newest ${_weft_arch})
    endif()
  endforeach()
  list(APPEND WeftCuda_NVCC_FLAGS
       -gencode arch=compute_${_weft_newest},code=compute_${_weft_newest})
  string(APPEND WeftCuda_SUMMARY ", kernels by ${WeftCuda_NVCC}")
elseif(WeftCuda_FOUND)
  string(APPEND WeftCuda_SUMMARY ", no nvcc: without kernels of its own")
endif()
