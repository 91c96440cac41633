#include "base/memory_allocator.h"

#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/for_each_processor.h"

namespace weft::base {
namespace {

#ifndef MADV_POPULATE_WRITE // since Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

using Release = void (*)();

/// Returns tcmalloc's function that releases free memory, or null if the
/// process does not use tcmalloc.
Release tcmallocs_release() {
  return reinterpret_cast<Release>(
      dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseFreeMemory"));
}

#ifndef WEFT_IS_SANITIZED
bool has_libtorch() {
  const auto is_libtorch = [](dl_phdr_info* library, size_t, void*) {
    return std::string_view(library->dlpi_name).ends_with("/libtorch_cpu.so")
               ? 1
               : 0;
  };
  return dl_iterate_phdr(is_libtorch, nullptr) != 0;
}
#endif

} // namespace

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

void take_memory_for_libtorch() {
#ifndef WEFT_IS_SANITIZED // A sanitizer's allocator is not ready yet.
  if (tcmallocs_release() == nullptr || !has_libtorch()) {
    return;
  }
  constexpr size_t kBytes = size_t{48} << 20;
  constexpr uintptr_t kPage = 4096;
  void* block = std::malloc(kBytes);
  if (block == nullptr) {
    return;
  }
  const auto begin =
      (reinterpret_cast<uintptr_t>(block) + kPage - 1) / kPage * kPage;
  void* pages = reinterpret_cast<void*>(begin);
  // If the kernel supports neither, it maps the memory page by page on first
  // use.
  madvise(pages, kBytes - kPage, MADV_HUGEPAGE);
  madvise(pages, kBytes - kPage, MADV_POPULATE_WRITE);
  std::free(block); // tcmalloc serves the next blocks from it.
#endif
}

void release_freed_memory() {
  if (const auto release = tcmallocs_release()) {
    release();
  } else if (memory_allocator().starts_with("libc.so")) {
    // With another allocator, glibc's is not initialized, and threads that trim
    // it for the first time at the same time crash.
    malloc_trim(0);
  }
}

} // namespace weft::base
