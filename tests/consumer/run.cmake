# cmake -DSOURCE=<this folder> -DBUILD=<Weft's build> -DSCRATCH=<folder>
#       -P run.cmake
# Installs Weft to a scratch prefix, builds the consumer against it and runs
# the consumer.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code
                  OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}: ${code}\n${text}")
  endif()
  set(output "${text}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
set(prefix "${SCRATCH}/prefix with space")
run(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${prefix}")
run(${CMAKE_COMMAND} -G Ninja -S "${SOURCE}" -B "${SCRATCH}/build"
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
run(${CMAKE_COMMAND} --build "${SCRATCH}/build")
run("${SCRATCH}/build/consumer")
set(expected "rank 3/4, mesh dp=2 tp=2: \
DTensor [4, 3] Float [S(0)] on tp=2, local [2, 3]\n")
if(NOT output STREQUAL expected)
  message(FATAL_ERROR "the consumer printed: ${output}")
endif()
# The installed programs find libtorch too.
foreach(program weft weftrun)
  run("${prefix}/bin/${program}" --help)
endforeach()
file(REMOVE_RECURSE "${SCRATCH}")
