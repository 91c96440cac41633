// To be preloaded (LD_PRELOAD): from main() on, C++'s operator new and
// posix_memalign, which libtorch's tensors come from, are counted, and the
// WEFT_FAIL_AT-th fails, once. Without that variable the count is left in the
// file that WEFT_COUNT_FILE names.

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>

#include <dlfcn.h>
#include <unistd.h>

namespace {

using Main = int (*)(int, char**, char**);
using StartMain =
    int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
using AlignedAlloc = int (*)(void**, size_t, size_t);

struct Failing {
  std::atomic<bool> is_on{false};
  std::atomic<long> count{0};
  long fail_at = 0;
  Main real_main = nullptr;
};
Failing failing;

bool is_the_one() {
  return failing.is_on.load(std::memory_order_relaxed) &&
         failing.count.fetch_add(1, std::memory_order_relaxed) + 1 ==
             failing.fail_at;
}

void leave_count() {
  const char* path = std::getenv("WEFT_COUNT_FILE");
  if (path != nullptr) {
    failing.is_on = false;
    FILE* file = std::fopen(path, "w");
    std::fprintf(file, "%ld", failing.count.load());
    std::fclose(file);
  }
}

int counting_main(int argc, char** argv, char** environment) {
  const char* at = std::getenv("WEFT_FAIL_AT");
  failing.fail_at = at == nullptr ? 0 : std::atol(at);
  failing.is_on = true;
  return failing.real_main(argc, argv, environment);
}

void* allocate(size_t size, size_t alignment) {
  if (is_the_one()) {
    throw std::bad_alloc();
  }
  void* memory =
      alignment == 0
          ? std::malloc(size)
          : std::aligned_alloc(
                alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr && size > 0) {
    throw std::bad_alloc();
  }
  return memory;
}

} // namespace

void* operator new(size_t size) {
  return allocate(size == 0 ? 1 : size, 0);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate(size == 0 ? 1 : size, static_cast<size_t>(alignment));
}
// The C++ library's arrays are made by the forms above, an allocator's are not.
void* operator new[](size_t size) {
  return operator new(size);
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return operator new(size, alignment);
}
void* operator new(size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return is_the_one() ? nullptr : std::malloc(size == 0 ? 1 : size);
}
void* operator new[](size_t size, const std::nothrow_t& tag) noexcept {
  return operator new(size, tag);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t /*size*/) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
void operator delete(
    void* memory,
    size_t /*size*/,
    std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t /*size*/) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

extern "C" {

// With which `weft` ends.
void _Exit(int code) {
  leave_count();
  _exit(code);
}

int posix_memalign(void** memory, size_t alignment, size_t size) {
  static const auto kReal =
      reinterpret_cast<AlignedAlloc>(dlsym(RTLD_NEXT, "posix_memalign"));
  return is_the_one() ? ENOMEM : kReal(memory, alignment, size);
}

// What a program begins with.
int __libc_start_main( // NOLINT
    Main main,
    int argc,
    char** argv,
    void (*init)(),
    void (*fini)(),
    void (*rtld_fini)(),
    void* stack_end) {
  const auto real =
      reinterpret_cast<StartMain>(dlsym(RTLD_NEXT, "__libc_start_main"));
  failing.real_main = main;
  return real(counting_main, argc, argv, init, fini, rtld_fini, stack_end);
}

} // extern "C"
