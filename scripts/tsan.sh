#!/usr/bin/env bash
# scripts/tsan.sh [GTEST ARGUMENT...]: builds the tests of shared memory and of
# elastic runs with ThreadSanitizer in build-tsan/ and runs them. Ranks are
# threads that share one mapping, so it sees both sides of every word.
# Comparisons with gloo are
# left out: its threads, in libtorch, are not instrumented.
step=tsan
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Lines are enough of debug information, and -O0 takes twice as long.
CXX=$(compiler) "$(tool cmake)" --preset tsan -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1"
"$(tool cmake)" --build build-tsan --target shm_test elastic_test \
  --parallel "$(jobs)"

options="suppressions=$PWD/scripts/tsan.supp"
# An older one does not read what a newer compiler writes.
symbolizer=$(find /usr/lib/llvm-*/bin -name llvm-symbolizer 2>/dev/null |
  sort -V | tail -1 || true)
[[ -z $symbolizer ]] || options+=" external_symbolizer_path=$symbolizer"
export TSAN_OPTIONS="$options ${TSAN_OPTIONS:-}"
export OMP_NUM_THREADS=1
# Its shadow memory has fixed places, which a random layout may take.
for test in elastic_test shm_test; do
  setarch "$(uname -m)" --addr-no-randomize "build-tsan/bin/$test" \
    --gtest_filter='-*OfGloo*:*OverGloo*:*GlooTakesOver*' "$@"
done
