#!/usr/bin/env bash
# Runs Weft on a GPU and reports what one GPU can show. In two parts, as the
# machine with the GPU may have no network:
#
#   scripts/gpu_check.sh --pack DIR
#       where there is a compiler and no GPU: builds Weft for CUDA in build-gpu/
#       against LIBTORCH and copies the programs and the libraries they need into
#       DIR (about 20 MB). Take the repository and DIR along.
#   scripts/gpu_check.sh --run [--programs DIR] [--out DIR] [STAGE...]
#       where the GPU is: the stages facts tests train nccl speed faults report,
#       or those named. Without --programs it builds first. Results go to OUT
#       (default build-gpu/check), the report to OUT/gpu_check.md and
#       OUT/gpu_check.json, for docs/gpu.md.
#       Exit 0: everything as expected; 1: something not; 2: cannot run here.
#
#   LIBTORCH=DIR   the libtorch to build against, of the same version as that
#                  of the machine with the GPU (default: that of python3's
#                  torch, else .venv)
#   JOBS=N         compile jobs
#   PAIRS=N        how often speed measures Weft and PyTorch in turn (default 3)
step=gpu_check
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

build="build-gpu"
usage() {
  sed -n '2,23s/^# \{0,1\}//p' scripts/gpu_check.sh
}

# --- --pack -----------------------------------------------------------------

# The libraries of a program that neither torch nor every Linux brings.
libraries_of() {
  ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' |
    grep -vE "^$(find_libtorch)/|/lib(cu[a-z]+|c|m|dl|rt|util|pthread|gcc_s|stdc\+\+)\.so" ||
    true
}

pack() {
  local folder=$1 program
  build
  rm -rf "$folder"
  mkdir -p "$folder/bin" "$folder/lib"
  for program in weft weftrun cuda_test; do
    strip -o "$folder/bin/$program" "$build/bin/$program"
    libraries_of "$build/bin/$program" |
      xargs -r cp -L --target-directory "$folder/lib"
  done
  strip -o "$folder/lib/libweft_cuda.so" "$build/lib/libweft_cuda.so"
  git describe --always --dirty >"$folder/commit"
  say "$(du -sh "$folder" | cut -f1) in $folder"
}

# --- --run ------------------------------------------------------------------

out=$build/check
programs=
failures=0

note_failure() {
  say "FAILED: $*" >&2
  failures=1
}

# A program from PATH, or from a wheel of python3's.
find_tool() {
  command -v "$1" 2>/dev/null && return
  python3 - "$1" 2>/dev/null <<'PYTHON'
import importlib.util, os, sys, sysconfig
name = sys.argv[1]
folders = [sysconfig.get_path("scripts")]
package = importlib.util.find_spec(name)
if package and package.submodule_search_locations:
    folders.append(
        os.path.join(package.submodule_search_locations[0], "data", "bin"))
found = [os.path.join(folder, name) for folder in folders
         if os.access(os.path.join(folder, name), os.X_OK)]
print(found[0]) if found else sys.exit(1)
PYTHON
}

find_libtorch() {
  if [[ -n ${LIBTORCH:-} ]]; then
    libtorch_dir
  else
    python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' \
      2>/dev/null || libtorch_dir
  fi
}

# Programs that were built elsewhere look for their libraries where those were.
use_programs() {
  export LIBTORCH LD_LIBRARY_PATH
  LIBTORCH=$(find_libtorch)
  LD_LIBRARY_PATH=$LIBTORCH/lib:$programs/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

run_facts() {
  {
    echo "date: $(date -u +%Y-%m-%d)"
    echo "weft: $(cat "$programs/commit" 2>/dev/null ||
      git describe --always --dirty 2>/dev/null || echo unknown)"
    echo "gpu: $(nvidia-smi --query-gpu=name,memory.total,driver_version \
      --format=csv,noheader 2>/dev/null | paste -sd ';' || true)"
    echo "libtorch: $LIBTORCH"
    echo "torch: $(env -u LD_LIBRARY_PATH python3 -c 'import torch
print(torch.__version__, torch.version.cuda, torch.cuda.nccl.version())' \
      2>/dev/null || true)"
    echo "nvcc: $(PATH=$PATH:/usr/local/cuda/bin nvcc --version 2>/dev/null |
      awk '/release/ {print $5 $6}' || true)"
    echo "compiler: $(g++ --version | head -1)"
    echo "kernel: $(uname -r), $(nproc) cores"
  } | tee "$out/facts.txt"
}

build() {
  local libtorch cmake ninja cxx
  libtorch=$(find_libtorch)
  [[ -f $libtorch/lib/libtorch_cuda.so ]] ||
    die 2 "no libtorch with CUDA at '$libtorch': set LIBTORCH"
  cmake=$(find_tool cmake) || die 2 "no cmake"
  ninja=$(find_tool ninja) || die 2 "no ninja"
  cxx=$(compiler)
  [[ -n $cxx ]] || die 2 "no C++ compiler"
  say "building with $cxx against $libtorch"
  mkdir -p "$build"
  CXX=$cxx "$cmake" -S . -B "$build" -G Ninja "-DCMAKE_MAKE_PROGRAM=$ninja" \
    -DCMAKE_BUILD_TYPE=Release -DWEFT_CUDA=on "-DLIBTORCH=$libtorch" \
    >"$build/configure.log" 2>&1 ||
    { cat "$build/configure.log" >&2; die 1 "configuring failed"; }
  grep libweft_cuda "$build/configure.log"
  "$cmake" --build "$build" --parallel "${JOBS:-$(jobs)}" \
    --target weft weftrun weft_cuda cuda_test >"$build/build.log" 2>&1 ||
    { tail -50 "$build/build.log" >&2; die 1 "building failed"; }
  say "built (${SECONDS} s)"
}

run_tests() {
  "$programs/bin/cuda_test" "--gtest_output=json:$out/tests.json" \
    >"$out/tests.log" 2>&1 || note_failure "cuda_test, see $out/tests.log"
  tail -25 "$out/tests.log"
}

# train NAME RANKS [KEY=VALUE...]: the quickstart's model on this libtorch's
# headers, in OUT/NAME.
train() {
  local name=$1 ranks=$2
  shift 2
  say "training $name"
  timeout 120 "$programs/bin/weftrun" --nproc-per-node "$ranks" -- \
    "${rank_wrapper[@]}" \
    "$programs/bin/weft" train recipes/quickstart.yaml \
    "data.paths=[\"$LIBTORCH/include\"]" "output_dir=$out/$name" \
    lr_schedule.warmup_steps=5 eval.every=20 checkpoint.every=0 \
    train.log_every=20 "$@" >"$out/$name.log" 2>&1 ||
    { tail -5 "$out/$name.log"; note_failure "training $name"; }
}

rank_wrapper=()

# NCCL refuses a device that two ranks of a host share. Under a host id of its
# own every rank is a host to it, and messages go through sockets.
share_one_gpu() {
  export WEFT_CUDA_DEVICE=0 NCCL_SOCKET_IFNAME=lo
  # shellcheck disable=SC2016
  rank_wrapper=(bash -c 'NCCL_HOSTID=rank$RANK exec "$@"' weft)
}

# NCCL between ranks of one GPU.
run_nccl() (
  share_one_gpu
  rm -rf "$out"/run-nccl-*
  train run-nccl-2x2 4 device=cuda mesh.dp=2 mesh.tp=2 train.steps=40
  train run-nccl-4x1 4 device=cuda mesh.dp=4 mesh.tp=1 train.steps=40
  train run-nccl-fsdp-2x2 4 device=cuda mesh.dp=1 mesh.dp_shard=2 mesh.tp=2 \
    train.steps=40
  train run-nccl-bfloat16 4 device=cuda mesh.dp=2 mesh.tp=2 train.steps=40 \
    train.dtype=bfloat16
  exit "$failures"
)

# One of four ranks is killed, then one is stopped: how long the others take to
# end, and what they say.
run_faults() (
  share_one_gpu
  rm -rf "$out"/run-fault-* "$out/faults.jsonl"
  fault KILL
  fault STOP
  exit "$failures"
)

# fault SIGNAL: sends it to rank 3 when training runs.
fault() {
  local signal=$1 name=run-fault-$1 victim begin code=0
  say "fault: $signal to rank 3"
  timeout 90 "$programs/bin/weftrun" --nproc-per-node 4 -- "${rank_wrapper[@]}" \
    "$programs/bin/weft" train recipes/quickstart.yaml \
    "data.paths=[\"$LIBTORCH/include\"]" "output_dir=$out/$name" \
    device=cuda mesh.dp=2 mesh.tp=2 eval.every=0 checkpoint.every=0 \
    train.log_every=1 comm.timeout_s=10 train.steps=1000000 \
    >"$out/$name.log" 2>&1 &
  local run=$!
  for _ in {1..200}; do
    sleep 0.2
    [[ -s $out/$name/metrics.jsonl ]] && break
  done
  victim=$(grep -lz '^RANK=3$' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 |
    while read -r pid; do
      [[ $(readlink "/proc/$pid/exe") == */bin/weft ]] && echo "$pid"
    done | head -1)
  [[ -n $victim ]] || { note_failure "$name: rank 3 was not found"; return; }
  begin=$(date +%s.%N)
  kill -"$signal" "$victim"
  wait "$run" || code=$?
  kill -KILL "$victim" 2>/dev/null || true
  printf '{"fault": "%s", "exit_code": %d, "seconds": %.2f}\n' "$signal" \
    "$code" "$(awk "BEGIN {print $(date +%s.%N) - $begin}")" |
    tee -a "$out/faults.jsonl"
  tail -5 "$out/$name.log"
  ((code == 150 || code == 137)) || note_failure "$name: exit code $code"
}

run_train() {
  rm -rf "$out"/run-*
  local one=(mesh.dp=1 mesh.tp=1) four=(mesh.dp=2 mesh.tp=2)
  OMP_NUM_THREADS=4 train run-cpu 1 "${one[@]}" train.steps=40
  train run-cuda 1 device=cuda "${one[@]}" train.steps=40
  train run-cuda-again 1 device=cuda "${one[@]}" train.steps=40
  train run-cuda-bfloat16 1 device=cuda "${one[@]}" train.steps=40 \
    train.dtype=bfloat16
  # Saved after 20 steps, resumed, and held against the straight run.
  train run-cuda-resumed 1 device=cuda "${one[@]}" train.steps=20 \
    lr_schedule.type=constant
  train run-cuda-resumed 1 device=cuda "${one[@]}" train.steps=40 \
    lr_schedule.type=constant
  train run-cuda-straight 1 device=cuda "${one[@]}" train.steps=40 \
    lr_schedule.type=constant
  # NCCL wants a device a rank; through the host's memory four share one.
  WEFT_CUDA_DEVICE=0 WEFT_CUDA_TRANSPORT=host \
    train run-cuda-2x2-one-gpu 4 device=cuda "${four[@]}" train.steps=40
  local gpus
  gpus=$(nvidia-smi -L 2>/dev/null | wc -l || true)
  if ((gpus >= 4)); then
    train run-cuda-2x2 4 device=cuda "${four[@]}" train.steps=40
  elif ((gpus >= 2)); then
    train run-cuda-1x2 2 device=cuda mesh.dp=1 mesh.tp=2 train.steps=40
    train run-cuda-2x1 2 device=cuda mesh.dp=2 mesh.tp=1 train.steps=40
  fi
}

# Three times Weft and PyTorch in turn, for each size and dtype.
run_speed() {
  local dtype pair flags
  : >"$out/speed.jsonl"
  : >"$out/speed.log"
  for flags in "--dim 256 --layers 4 --batch 4 --seq 128" \
               "--dim 2048 --layers 8 --heads 16 --batch 4 --seq 2048 --vocab 32000"; do
    for dtype in float32 bfloat16; do
      for ((pair = 1; pair <= ${PAIRS:-3}; ++pair)); do
        say "speed: $flags $dtype, pair $pair"
        # shellcheck disable=SC2086
        speed_pair $flags --dtype "$dtype" --dp 1 --tp 1 --device cuda \
          --steps 20 --warmup 5
      done
    done
  done
}

speed_pair() {
  PEER_T0=$(date +%s.%N) "$programs/bin/weftrun" --nproc-per-node 1 -- \
    "$programs/bin/weft" bench step "$@" \
    2>>"$out/speed.log" | sed "s/^{/{\"flags\": \"$*\", /" >>"$out/speed.jsonl" ||
    note_failure "weft bench step $*, see $out/speed.log"
  PEER_T0=$(date +%s.%N) env -u LD_LIBRARY_PATH python3 -m torch.distributed.run --standalone \
    --nproc-per-node 1 bench/peer/train_step.py "$@" \
    2>>"$out/speed.log" | sed "s/^{/{\"flags\": \"$*\", /" >>"$out/speed.jsonl" ||
    note_failure "bench/peer/train_step.py $*, see $out/speed.log"
}

run_report() {
  python3 bench/gpu_report.py "$out" || failures=1
}

run() {
  local stage
  if [[ -z $programs ]]; then
    build
    programs=$build
  fi
  programs=$(cd "$programs" && pwd) || die 2 "--pack did not make that folder"
  mkdir -p "$out"
  ((${#stages[@]})) || stages=(facts tests train nccl speed faults report)
  use_programs
  for stage in "${stages[@]}"; do
    "run_$stage" || failures=1
  done
  exit "$failures"
}

main() {
  local mode=
  local stages=()
  while (($#)); do
    case $1 in
      --pack) mode=pack; programs=${2:?--pack needs a folder}; shift ;;
      --run) mode=run ;;
      --programs) programs=${2:?--programs needs a folder}; shift ;;
      --out) out=${2:?--out needs a folder}; shift ;;
      -h | --help) usage; exit ;;
      facts | tests | train | nccl | faults | speed | report) stages+=("$1") ;;
      *) usage >&2; die 2 "$1 is unknown" ;;
    esac
    shift
  done
  case $mode in
    pack) pack "$programs" ;;
    run) run ;;
    *) usage >&2; die 2 "--pack or --run is needed" ;;
  esac
}

main "$@"
