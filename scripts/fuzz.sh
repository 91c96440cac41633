#!/usr/bin/env bash
# scripts/fuzz.sh [SECONDS] [header|manifest|recipe|rendezvous]: libFuzzer on
# what reads files and connections of others, under ASan and UBSan, in
# build-fuzz/. SECONDS (60) of processor time for each target (all), and one
# JSON line each. What it finds stays in build-fuzz/crashes/. Exit 1: it found
# something. CXX may name the clang.
step=fuzz
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

seconds=${1:-60}
targets=(header manifest recipe rendezvous)
(($# < 2)) || targets=("$2")
clang=$(compiler)
[[ $clang == *clang* ]] || clang=clang++
command -v "$clang" >/dev/null || die 2 "$clang is needed (Debian: clang-19)"
torch=$(libtorch_dir)
[[ -n $torch ]] || die 2 "no libtorch: run make first"

checkpoint=(checkpoint/format/{digest,dtype,hash,json_scan,manifest}.cpp
            checkpoint/format/{manifest_parser,manifest_rules}.cpp
            checkpoint/format/{tensor_header,tensor_header_parser,tiling}.cpp
            checkpoint/files/{folder,text}.cpp
            mesh/error/{error,resource_limits}.cpp
            tests/fuzz/fuzz_input.cpp)
recipe=(config/{recipe,renamed_keys,schema,schema_lifecycle,schema_model}.cpp
        config/{schema_parallel,schema_text,schema_train}.cpp
        config/{suggest,yaml_scan,yaml_tree,yaml_value}.cpp
        mesh/error/error.cpp tests/fuzz/recipe_input.cpp)
rendezvous=(launcher/process/outcome.cpp
            launcher/connection/{address,connector,event_loop,forwarder}.cpp
            launcher/connection/{handshake,key,relay}.cpp
            launcher/rendezvous/{admission,auth_failures,auth_listener}.cpp
            launcher/rendezvous/{control_connection,messages,rendezvous_client}.cpp
            launcher/rendezvous/{rendezvous_server,restart_policy,run_result}.cpp
            tests/fuzz/rendezvous_input.cpp)
flags=(-std=c++20 -O1 -g1 -fno-omit-frame-pointer -DFMT_HEADER_ONLY
       '-DWEFT_VERSION="fuzz"' -I. -isystem "$torch/include"
       -isystem "$torch/include/torch/csrc/api/include"
       -fsanitize=address,undefined -fno-sanitize-recover=undefined)

# build TARGET
build() {
  local source object objects=() sources=("${checkpoint[@]}")
  [[ $1 != recipe ]] || sources=("${recipe[@]}")
  [[ $1 != rendezvous ]] || sources=("${rendezvous[@]}")
  mkdir -p build-fuzz
  for source in "${sources[@]}" "tests/fuzz/$1_fuzz.cpp"; do
    object=build-fuzz/$(basename "$source" .cpp).o
    objects+=("$object")
    # Headers are few and change together.
    if [[ ! -f $object ]] ||
      [[ -n $(find checkpoint \
                config launcher tests/fuzz/*.h mesh/error/error.h "$source" \
                -newer "$object" -print -quit) ]]; then
      "$clang" "${flags[@]}" -fsanitize=fuzzer-no-link -c "$source" \
        -o "$object" || die 1 "$source does not compile"
    fi
  done
  "$clang" "${flags[@]}" -fsanitize=fuzzer "${objects[@]}" -o "build-fuzz/$1" \
    -L"$torch/lib" -Wl,-rpath,"$torch/lib" -lc10 -lcrypto -lyaml-cpp ||
    die 1 "$1 does not link"
}

# seeds TARGET: prints the folders with what it begins with.
seeds() {
  echo "tests/fuzz/corpus/$1"
  if [[ $1 == recipe ]]; then
    mkdir -p build-fuzz/recipes
    cp recipes/*.yaml build-fuzz/recipes/
    echo build-fuzz/recipes
  fi
}

# limits TARGET: prints the limits of one input.
limits() {
  if [[ $1 == recipe ]]; then
    echo -timeout=1 -rss_limit_mb=256 -max_len=16384
  else
    echo -timeout=5 -rss_limit_mb=512 -max_len=8192
  fi
}

# stat NAME LOG: the last value of libFuzzer's "stat::NAME: value".
stat_of() {
  awk -v name="stat::$1:" '$1 == name {value = $2} END {print value + 0}' "$2"
}

# fuzz TARGET: slices, as a crash ends one, until all of the processor time is
# used.
fuzz() {
  local target=$1 log=build-fuzz/$1.log
  local crashes=build-fuzz/crashes/$target corpus=build-fuzz/corpus/$target
  local used=0 executions=0 peak=0 rss slice wall=$SECONDS
  mkdir -p "$crashes" "$corpus"
  local limits seeds
  read -ra limits < <(limits "$target")
  mapfile -t seeds < <(seeds "$target")
  local found_before
  found_before=$(find "$crashes" -type f | wc -l)
  while ((used < seconds)); do
    {
      time "build-fuzz/$target" "$corpus" "${seeds[@]}" \
        -dict="tests/fuzz/$target.dict" -artifact_prefix="$crashes/" \
        -max_total_time=$((seconds - used < 300 ? seconds - used : 300)) \
        "${limits[@]}" -malloc_limit_mb=128 \
        -print_final_stats=1 >"$log" 2>&1 || true
    } 2>"build-fuzz/$target.time"
    rss=$(stat_of peak_rss_mb "$log")
    ((rss <= peak)) || peak=$rss
    executions=$((executions + $(stat_of number_of_executed_units "$log")))
    ((executions > 0)) || die 1 "it does not run; see $log"
    slice=$(<"build-fuzz/$target.time")
    used=$((used + (${slice%.*} > 0 ? ${slice%.*} : 1)))
  done
  local found
  found=$(($(find "$crashes" -type f | wc -l) - found_before))
  printf '{"target": "%s", "cpu_seconds": %d, "wall_seconds": %d, ' \
    "$target" "$used" "$((SECONDS - wall))"
  printf '"executions": %d, "crashes": %d, "peak_rss_mb": %d}\n' \
    "$executions" "$found" "$peak"
  ((found == 0))
}

TIMEFORMAT=%U # user time: what other programs take does not count
# A large quarantine would be most of the memory that is reported.
export ASAN_OPTIONS=quarantine_size_mb=16
status=0
for target in "${targets[@]}"; do
  build "$target"
done
for target in "${targets[@]}"; do
  fuzz "$target" || status=1
done
exit "$status"
