# cmake -DSOURCE=<this folder> -DBUILD=<Weft's build> -DSCRATCH=<folder>
#       -P run.cmake
# Installs Weft to a scratch prefix, builds the consumer and the example
# against it and runs them.
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

function(build source folder)
  run(${CMAKE_COMMAND} -G Ninja -S "${source}" -B "${folder}"
      "-DCMAKE_PREFIX_PATH=${prefix}"
      "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"
      "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
  run(${CMAKE_COMMAND} --build "${folder}")
endfunction()

# losses(<list> <command>...): the losses that a run prints, times 100000: CMake
# counts in whole numbers.
function(losses result)
  run(${ARGN})
  string(REGEX MATCHALL "loss [0-9]+[.][0-9]+" found "${output}")
  list(TRANSFORM found REPLACE "loss |[.]" "")
  list(TRANSFORM found REPLACE "^0+(.)" "\\1")
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# The same losses to 1e-4.
function(expect_same what expected actual)
  list(LENGTH expected count)
  list(LENGTH actual actual_count)
  if(count EQUAL 0 OR NOT count EQUAL actual_count)
    message(FATAL_ERROR "${what}: ${actual_count} losses, not ${count}")
  endif()
  foreach(one other IN ZIP_LISTS expected actual)
    math(EXPR difference "${one} - ${other}")
    if(difference GREATER 10 OR difference LESS -10)
      message(FATAL_ERROR "${what}: ${actual}\ninstead of ${expected}")
    endif()
  endforeach()
endfunction()

file(REMOVE_RECURSE "${SCRATCH}")
set(prefix "${SCRATCH}/prefix with space")
run(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${prefix}")
build("${SOURCE}" "${SCRATCH}/build")
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

# The example of docs/your_own_model.md: alone, on four ranks, and on four that
# go on from where two left off.
build("${SOURCE}/../../examples/own_model" "${SCRATCH}/own_model")
set(own_model "${SCRATCH}/own_model/own_model")
set(weftrun "${prefix}/bin/weftrun" --nproc-per-node)
set(saved "--save=${SCRATCH}/checkpoints")
losses(alone "${own_model}" --steps=20)
losses(on_four ${weftrun} 4 -- "${own_model}" --tp=2 --steps=20)
expect_same("dp=2 tp=2" "${alone}" "${on_four}")
losses(until_15 ${weftrun} 2 -- "${own_model}" --tp=2 --steps=15 ${saved})
losses(from_15 ${weftrun} 4 -- "${own_model}" --tp=2 --steps=20 ${saved})
expect_same("resumed" "${alone}" "${until_15};${from_15}")
# The same with recomputed blocks; adapters and bfloat16 run.
losses(recomputed ${weftrun} 4 -- "${own_model}" --tp=2 --steps=20 --recompute)
expect_same("recomputed" "${alone}" "${recomputed}")
foreach(option --bf16 "--lora=4;--bf16;--from=${SCRATCH}/checkpoints")
  losses(tuned ${weftrun} 4 -- "${own_model}" --tp=2 --steps=2 ${option})
  list(LENGTH tuned count)
  if(NOT count EQUAL 2)
    message(FATAL_ERROR "${option}: ${output}")
  endif()
endforeach()
file(REMOVE_RECURSE "${SCRATCH}")
