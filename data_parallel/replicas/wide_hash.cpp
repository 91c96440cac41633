#include "data_parallel/replicas/wide_hash.h"

#ifdef __AVX2__
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

namespace weft::data_parallel::detail {

// This file is compiled for AVX2. It must not contain anything else, and no
// function that is inline in other files: the linker might choose this file's
// copy, which fails on a CPU without AVX2.
#ifdef __AVX2__
namespace {

uint64_t hash_with_wide_vectors(const void* data, size_t bytes) {
  return XXH3_64bits(data, bytes);
}

} // namespace

WideHash find_wide_hash() {
  return __builtin_cpu_supports("avx2") != 0 ? hash_with_wide_vectors : nullptr;
}
#else
WideHash find_wide_hash() {
  return nullptr;
}
#endif

} // namespace weft::data_parallel::detail
