#!/usr/bin/env bash
# scripts/tidy.sh [FILE...]: clang-tidy over the sources, or the files named.
# Without the precompiled header, which another clang cannot read.
step=tidy
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

clang_tidy=$(command -v clang-tidy-19 || command -v clang-tidy) ||
  die 2 "clang-tidy is missing: sudo apt-get install clang-tidy-19"
libtorch=$(libtorch_dir)
CXX=$(compiler) LIBTORCH=${LIBTORCH:+$libtorch} "$(tool cmake)" --preset nopch >/dev/null

files=("$@")
if ((! $#)); then
  mapfile -t files < <(git ls-files --cached --others \
    --exclude-standard '*.cpp' ':!bench' ':!cuda' ':!examples' ':!tests')
fi
say "${#files[@]} files, ${JOBS:-$(jobs)} at once"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "${JOBS:-$(jobs)}" \
  "$clang_tidy" -p build-nopch --quiet || die 1 "findings"
say "clean (${SECONDS} s)"
