#!/usr/bin/env bash
# scripts/tidy.sh [FILE...]: clang-tidy over the libraries' sources, or the files
# named. Without the precompiled header, which another clang cannot read. All
# sources are read in batches of ten, which share the time that headers take.
step=tidy
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

clang_tidy=$(command -v clang-tidy-19 || command -v clang-tidy) ||
  die 2 "clang-tidy is missing: sudo apt-get install clang-tidy-19"
libtorch=$(libtorch_dir)

# configure FOLDER [OPTION...]
configure() {
  CXX=$(compiler) LIBTORCH=${LIBTORCH:+$libtorch} \
    "$(tool cmake)" --preset nopch -B "$@" >/dev/null
}

# tidy FOLDER CHECKS FILE...
tidy() {
  local folder=$1 checks=$2
  shift 2
  (($#)) || die 1 "no source is in $folder/compile_commands.json"
  say "$# files or batches, ${JOBS:-$(jobs)} at once"
  printf '%s\0' "$@" | xargs -0 -n 1 -P "${JOBS:-$(jobs)}" \
    "$clang_tidy" -p "$folder" --quiet --checks="$checks" || die 1 "findings"
}

if (($#)); then
  configure build-nopch
  tidy build-nopch "" "$@"
else
  configure build-tidy -DWEFT_UNITY=ON
  mapfile -t files < <(
    sed -n 's|^ *"file": "'"$PWD"'/\(.*\)",\{0,1\}$|\1|p' \
      build-tidy/compile_commands.json |
      grep -vE '^(build-tidy/)?(bench|cuda|examples|tests)/|_header_sets/')
  # A batch includes sources.
  tidy build-tidy -bugprone-suspicious-include "${files[@]}"
fi
say "clean (${SECONDS} s)"
