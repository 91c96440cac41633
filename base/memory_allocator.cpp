#include "base/memory_allocator.h"

#include <dlfcn.h>
#include <malloc.h>

#include <cstdlib>
#include <filesystem>

namespace weft::base {

std::string memory_allocator() {
  Dl_info info{};
  const bool is_found =
      dladdr(dlsym(RTLD_DEFAULT, "malloc"), &info) != 0 && info.dli_fname;
  return is_found ? std::filesystem::path(info.dli_fname).filename().string()
                  : "unknown";
}

void keep_freed_memory() {
  constexpr int kMebibyte = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, 32 * kMebibyte); // the largest that glibc takes
  mallopt(M_TRIM_THRESHOLD, 1024 * kMebibyte);
  mallopt(M_TOP_PAD, 64 * kMebibyte);
}

void release_freed_memory() {
  // tcmalloc's malloc_trim() does nothing.
  using Release = void (*)();
  const auto release = reinterpret_cast<Release>(
      dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseFreeMemory"));
  if (release != nullptr) {
    release();
  }
  malloc_trim(0);
}

} // namespace weft::base
