#!/usr/bin/env bash
# Builds Weft for CUDA against a torch that is there, and runs what one GPU can
# show. In two parts, as the machine with the GPU may have no network:
#
#   scripts/gpu_check.sh --pack DIR
#       where Weft builds: copies into DIR the Debian headers and libraries that
#       a build needs (about 10 MB). Take the repository and DIR along.
#   scripts/gpu_check.sh --run [--deps DIR] [--out DIR] [STAGE...]
#       where the GPU is: the stages facts build tests train speed report, or
#       those named. Results go to OUT (default build-gpu/check), the report to
#       OUT/gpu_check.md and OUT/gpu_check.json, for docs/gpu.md.
#       Exit 0: everything as expected; 1: something not; 2: cannot run here.
#
#   LIBTORCH=DIR   the libtorch to build against (default: that of python3's
#                  torch, else .venv)
#   JOBS=N         compile jobs
step=gpu_check
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

build="build-gpu"
usage() {
  sed -n '2,20s/^# \{0,1\}//p' scripts/gpu_check.sh
}

# --- --pack -----------------------------------------------------------------

# copy FOLDER FILE...: the files, links followed, under their own paths.
copy() {
  local folder=$1
  shift
  cp --parents -L "$@" "$folder"
}

pack() {
  local folder=$1 package file
  command -v dpkg >/dev/null || die 2 "--pack copies Debian packages: no dpkg here"
  mkdir -p "$folder"
  for package in "${DEBIAN_LIBRARIES[@]}"; do
    dpkg -s "$package" >/dev/null 2>&1 ||
      die 2 "$package is not installed: run make setup first"
    while read -r file; do
      [[ -f $file ]] || continue
      copy "$folder" "$file"
      # A library under its soname and its whole name, as CMake's files want.
      if [[ $file == *.so && -L $file ]]; then
        copy "$folder" "$(readlink -f "$file")" \
          "$(dirname "$file")/$(objdump -p "$file" | awk '$1 == "SONAME" {print $2}')"
      fi
    done < <(dpkg -L "$package" | grep -E '^/usr/(include|lib|share/cmake)/')
  done
  say "$(du -sh "$folder" | cut -f1) in $folder"
}

# --- --run ------------------------------------------------------------------

out=$build/check
deps=
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

run_facts() {
  {
    echo "date: $(date -u +%Y-%m-%d)"
    echo "weft: $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
    echo "gpu: $(nvidia-smi --query-gpu=name,memory.total,driver_version \
      --format=csv,noheader 2>/dev/null | paste -sd ';' || true)"
    echo "libtorch: $(find_libtorch)"
    echo "torch: $(python3 -c 'import torch
print(torch.__version__, torch.version.cuda, torch.cuda.nccl.version())' \
      2>/dev/null || true)"
    echo "nvcc: $(PATH=$PATH:/usr/local/cuda/bin nvcc --version 2>/dev/null |
      awk '/release/ {print $5 $6}' || true)"
    echo "compiler: $(g++ --version | head -1)"
    echo "kernel: $(uname -r), $(nproc) cores"
  } | tee "$out/facts.txt"
}

run_build() {
  local libtorch cmake ninja
  libtorch=$(find_libtorch)
  [[ -f $libtorch/lib/libtorch_cuda.so ]] ||
    die 2 "no libtorch with CUDA at '$libtorch': set LIBTORCH"
  cmake=$(find_tool cmake) || die 2 "no cmake"
  ninja=$(find_tool ninja) || die 2 "no ninja"
  local prefix=()
  [[ -n $deps ]] && prefix=("-DCMAKE_PREFIX_PATH=$(cd "$deps" && pwd)/usr")
  say "building against $libtorch"
  "$cmake" -S . -B "$build" -G Ninja "-DCMAKE_MAKE_PROGRAM=$ninja" \
    -DCMAKE_BUILD_TYPE=Release -DWEFT_CUDA=on "-DLIBTORCH=$libtorch" \
    "${prefix[@]}" >"$out/configure.log" 2>&1 ||
    { cat "$out/configure.log" >&2; die 1 "configuring failed"; }
  grep libweft_cuda "$out/configure.log"
  "$cmake" --build "$build" --parallel "${JOBS:-$(jobs)}" \
    --target weft weftrun weft_cuda cuda_test >"$out/build.log" 2>&1 ||
    { tail -50 "$out/build.log" >&2; die 1 "building failed"; }
  readelf -d "$build/lib/libweft_cuda.so" | grep NEEDED >"$out/needed.txt"
  say "built (${SECONDS} s)"
}

run_tests() {
  "$build/bin/cuda_test" "--gtest_output=json:$out/tests.json" \
    >"$out/tests.log" 2>&1 || note_failure "cuda_test, see $out/tests.log"
  tail -25 "$out/tests.log"
}

# train NAME RANKS [KEY=VALUE...]: the quickstart's model on this libtorch's
# headers, in OUT/NAME.
train() {
  local name=$1 ranks=$2
  shift 2
  say "training $name"
  "$build/bin/weftrun" --nproc-per-node "$ranks" -- \
    "$build/bin/weft" train recipes/quickstart.yaml \
    "data.paths=[\"$(find_libtorch)/include\"]" "output_dir=$out/$name" \
    lr_schedule.warmup_steps=5 eval.every=20 checkpoint.every=0 \
    train.log_every=20 "$@" >"$out/$name.log" 2>&1 ||
    { tail -5 "$out/$name.log"; note_failure "training $name"; }
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
      for pair in 1 2 3; do
        say "speed: $flags $dtype, pair $pair"
        # shellcheck disable=SC2086
        speed_pair $flags --dtype "$dtype" --dp 1 --tp 1 --device cuda \
          --steps 20 --warmup 5
      done
    done
  done
}

speed_pair() {
  PEER_T0=$(date +%s.%N) "$build/bin/weftrun" --nproc-per-node 1 -- \
    "$build/bin/weft" bench step "$@" \
    2>>"$out/speed.log" | sed "s/^{/{\"flags\": \"$*\", /" >>"$out/speed.jsonl" ||
    note_failure "weft bench step $*, see $out/speed.log"
  PEER_T0=$(date +%s.%N) python3 -m torch.distributed.run --standalone \
    --nproc-per-node 1 bench/peer/train_step.py "$@" \
    2>>"$out/speed.log" | sed "s/^{/{\"flags\": \"$*\", /" >>"$out/speed.jsonl" ||
    note_failure "bench/peer/train_step.py $*, see $out/speed.log"
}

run_report() {
  python3 bench/gpu_report.py "$out" || failures=1
}

main() {
  local mode=
  local stages=()
  while (($#)); do
    case $1 in
      --pack) mode=pack; deps=${2:?--pack needs a folder}; shift ;;
      --run) mode=run ;;
      --deps) deps=${2:?--deps needs a folder}; shift ;;
      --out) out=${2:?--out needs a folder}; shift ;;
      -h | --help) usage; exit ;;
      facts | build | tests | train | speed | report) stages+=("$1") ;;
      *) usage >&2; die 2 "$1 is unknown" ;;
    esac
    shift
  done
  case $mode in
    pack) pack "$deps" ;;
    run)
      [[ -z $deps || -d $deps/usr ]] || die 2 "$deps was not made by --pack"
      mkdir -p "$out"
      ((${#stages[@]})) || stages=(facts build tests train speed report)
      local stage
      for stage in "${stages[@]}"; do
        "run_$stage"
      done
      exit "$failures"
      ;;
    *) usage >&2; die 2 "--pack or --run is needed" ;;
  esac
}

main "$@"
