# cmake -DSOURCE=<this folder> -DBUILD=<Weft's build> -DSCRATCH=<folder>
#       -DCOMPILER=<Weft's> -DOTHER_COMPILER=<g++, where that is clang>
#       -DLAUNCHER=<ccache> -DSLOPPINESS=<its> -DLIBTORCH=<libtorch's folder>
#       -DPCH=<see pch.cmake> -DPCH_FLAGS=<of its compiler> -P run.cmake
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

set(ENV{CCACHE_SLOPPINESS} ${SLOPPINESS})

function(build compiler source folder)
  run(${CMAKE_COMMAND} -G Ninja -S "${source}" -B "${folder}"
      "-DCMAKE_CXX_COMPILER=${compiler}"
      "-DCMAKE_PREFIX_PATH=${prefix}"
      "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"
      "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}"
      "-DCMAKE_PROJECT_INCLUDE=${SOURCE}/pch.cmake" ${ARGN})
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
# weft::dtensor needs none of what other components are linked with.
foreach(package fmt yaml-cpp nlohmann_json ZLIB OpenSSL PCRE2 SentencePiece)
  list(APPEND without -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
build("${OTHER_COMPILER}" "${SOURCE}" "${SCRATCH}/build" ${without})
run("${SCRATCH}/build/consumer")
set(expected "own world, rank 3/4, mesh dp=2 tp=2: \
DTensor [4, 3] Float [S(0)] on tp=2, local [2, 3]\n")
if(NOT output STREQUAL expected)
  message(FATAL_ERROR "the consumer printed: ${output}")
endif()
# A component that there was once is refused with the names of today.
file(WRITE "${SCRATCH}/old_component.cmake"
     "cmake_minimum_required(VERSION 3.25)\n"
     "find_package(weft 0.1 REQUIRED COMPONENTS recipes)\n")
execute_process(
  COMMAND ${CMAKE_COMMAND} "-DCMAKE_PREFIX_PATH=${prefix}"
          -P "${SCRATCH}/old_component.cmake"
  RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " output "${output}")
if(status EQUAL 0 OR NOT output MATCHES "config, tokenizers, models, data, hf,")
  message(FATAL_ERROR "COMPONENTS recipes: ${status} ${output}")
endif()
# The installed programs find libtorch too.
foreach(program weft weftrun)
  run("${prefix}/bin/${program}" --help)
endforeach()

# Neither optimised nor with what a debugger needs.
set(debug -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=${PCH_FLAGS}")
if(PCH)
  list(APPEND debug "-DPCH=${PCH}" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON)
endif()

# The code blocks of README.md and docs/*.md.
build("${COMPILER}" "${SOURCE}/../outside" "${SCRATCH}/outside"
      "-DROOT=${SOURCE}/../.." ${debug})
run(${CMAKE_COMMAND} -E env OMP_NUM_THREADS=1
    ${CMAKE_COMMAND} -E chdir "${SCRATCH}" "${SCRATCH}/outside/outside")
run("${prefix}/bin/weftrun" --nproc-per-node 3 --
    "${SCRATCH}/outside/fully_sharded")
if(NOT output STREQUAL "largest difference: 0\n")
  message(FATAL_ERROR "fully_sharded printed: ${output}")
endif()

# The example of docs/your_own_model.md: alone, on four ranks, and on four that
# go on from where two left off.
build("${COMPILER}" "${SOURCE}/../../examples/own_model" "${SCRATCH}/own_model"
      ${debug})
set(own_model "${SCRATCH}/own_model/own_model")
set(weftrun "${prefix}/bin/weftrun" --nproc-per-node)
set(saved "--save=${SCRATCH}/checkpoints")
losses(alone "${own_model}" --steps=8)
losses(on_four ${weftrun} 4 -- "${own_model}" --tp=2 --steps=8)
expect_same("dp=2 tp=2" "${alone}" "${on_four}")
losses(until_5 ${weftrun} 2 -- "${own_model}" --tp=2 --steps=5 ${saved})
losses(from_5 ${weftrun} 4 -- "${own_model}" --tp=2 --steps=8 ${saved})
expect_same("resumed" "${alone}" "${until_5};${from_5}")
# The same with recomputed blocks; adapters and bfloat16 run.
losses(recomputed ${weftrun} 2 -- "${own_model}" --tp=2 --steps=8 --recompute)
expect_same("recomputed" "${alone}" "${recomputed}")
foreach(option --bf16 "--lora=4;--bf16;--from=${SCRATCH}/checkpoints")
  losses(tuned ${weftrun} 2 -- "${own_model}" --tp=2 --steps=2 ${option})
  list(LENGTH tuned count)
  if(NOT count EQUAL 2)
    message(FATAL_ERROR "${option}: ${output}")
  endif()
endforeach()

# The same model in a recipe, trained by `weft` with the model linked in.
set(own_weft "${SCRATCH}/own_model/own_weft")
set(recipe "${SOURCE}/../../examples/own_model/own_weft.yaml")

# train(<list> <name> <ranks> <override>...): the losses of a run in
# the folder <name>, times 100000.
function(train result name ranks)
  run(${weftrun} ${ranks} -- "${own_weft}" train "${recipe}"
      "output_dir=${SCRATCH}/${name}"
      "data.paths=[\"${SOURCE}/../../docs\"]" train.steps=12 eval.every=0
      eval.batches=1 checkpoint.every=6 ${ARGN})
  file(STRINGS "${SCRATCH}/${name}/metrics.jsonl" lines)
  set(found)
  foreach(line IN LISTS lines)
    string(REGEX MATCH "\"loss\":([0-9]+)[.]([0-9]+)" loss "${line}")
    string(SUBSTRING "${CMAKE_MATCH_2}00000" 0 5 digits)
    list(APPEND found "${CMAKE_MATCH_1}${digits}")
  endforeach()
  list(TRANSFORM found REPLACE "^0+(.)" "\\1")
  set(${result} ${found} PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

# refuse(<exit code> <text> <command>...): what the command ends with.
function(refuse code text)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE actual
                  OUTPUT_VARIABLE all ERROR_VARIABLE all)
  string(FIND "${all}" "${text}" found)
  if(NOT actual EQUAL code OR found EQUAL -1)
    message(FATAL_ERROR "${ARGN}: ${actual}, not ${code} with \"${text}\"\n${all}")
  endif()
endfunction()

train(alone alone 1)
list(LENGTH alone count)
if(NOT count EQUAL 12)
  message(FATAL_ERROR "${count} steps, not 12: ${output}")
endif()
train(on_four on_four 4 mesh.tp=2)
expect_same("own_weft: dp=2 tp=2" "${alone}" "${on_four}")
train(whole whole 2 mesh.tp=2 "tp={sequence_parallel: false, loss_parallel: false}")
expect_same("own_weft: whole activations" "${alone}" "${whole}")
# Six steps on two ranks, the rest on four; then another model in their folder.
train(first_six resumed 2 mesh.tp=2 train.steps=6)
train(resumed resumed 4 mesh.tp=2)
expect_same("own_weft: resumed" "${alone}" "${resumed}")
if(NOT output MATCHES "resumes from .*step-6")
  message(FATAL_ERROR "own_weft began anew: ${output}")
endif()
set(data "data.paths=[\"${SOURCE}/../../docs\"]")
refuse(2 "model.options.blocks is 2 in the run and 3 here"
       "${own_weft}" train "${recipe}" "output_dir=${SCRATCH}/resumed" ${data}
       model.options.blocks=3)
refuse(2 "model.options.width: expected at least 1, found 0"
       "${own_weft}" explain "${recipe}" --world-size 1 model.options.width=0)
refuse(2 "model.options.heads: does not divide model.options.width"
       "${own_weft}" explain "${recipe}" --world-size 1 model.options.heads=5)
refuse(2 "model.type=own_transformer has no such option; did you mean blocks?"
       "${own_weft}" explain "${recipe}" --world-size 1 model.options.block=2)
refuse(2 "expected one of llama, gpt2, moe, vit, mlp, found own_transformer"
       "${prefix}/bin/weft" explain "${recipe}" --world-size 1)
run("${own_weft}" explain "${recipe}" mesh.tp=2 --world-size 4
    --measured "${SCRATCH}/on_four" ${data})
if(NOT output MATCHES "parameters")
  message(FATAL_ERROR "own_weft explain: ${output}")
endif()
run("${own_weft}" eval "${recipe}" --checkpoint "${SCRATCH}/on_four" ${data})
if(NOT output MATCHES "perplexity")
  message(FATAL_ERROR "own_weft eval: ${output}")
endif()
run("${own_weft}" checkpoint verify "${SCRATCH}/on_four/checkpoints")
run("${own_weft}" report "${SCRATCH}/on_four")
# The console blocks of docs/your_own_model.md.
find_program(python3 python3)
if(python3)
  run(${CMAKE_COMMAND} -E env "PATH=${SCRATCH}/own_model:$ENV{PATH}"
      OMP_NUM_THREADS=1 "${python3}" "${SOURCE}/../docs/console_blocks.py"
      "${SOURCE}/../.." "${BUILD}" "${LIBTORCH}" "${SCRATCH}/console"
      docs/your_own_model.md)
endif()
file(REMOVE_RECURSE "${SCRATCH}")
