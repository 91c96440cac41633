#include "data_parallel/replicas/wide_hash.h"

#ifdef __AVX2__
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

namespace weft::data_parallel::detail {

// Nothing else may be in here, and no function that is inline elsewhere: the
// linker might take this source's copy of it for a CPU that cannot run it.
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
