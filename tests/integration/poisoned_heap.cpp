// Overwrites what operator delete frees, so that a program that reads a deleted
// object crashes or gets other numbers than before, also where nobody else has
// taken the memory yet. AddressSanitizer does this better and replaces the
// operators itself.

#include <malloc.h>

#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WEFT_HAS_SANITIZER
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WEFT_HAS_SANITIZER
#endif

#ifndef WEFT_HAS_SANITIZER
namespace {

constexpr int kPoison = 0xDD;

void* allocate(size_t size, size_t alignment) {
  void* memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(size)
          : std::aligned_alloc(
                alignment, (size + alignment - 1) & ~(alignment - 1));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

void poison_and_free(void* memory) {
  if (memory != nullptr) {
    std::memset(memory, kPoison, malloc_usable_size(memory));
    std::free(memory);
  }
}

} // namespace

void* operator new(size_t size) {
  return allocate(size, 1);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size) {
  return allocate(size, 1);
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  poison_and_free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  poison_and_free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  poison_and_free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  poison_and_free(memory);
}
void operator delete[](void* memory) noexcept {
  poison_and_free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  poison_and_free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  poison_and_free(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  poison_and_free(memory);
}
#endif
