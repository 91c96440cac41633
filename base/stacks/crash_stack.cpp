#include "base/stacks/crash_stack.h"

#include <csignal>
#include <cstddef>

#include <pthread.h>
#include <sys/mman.h>

namespace weft::base {
namespace {

constexpr size_t kCrashStackBytes = size_t{256} * 1024;

/// The key's value on a thread that already has a signal stack, for example a
/// sanitizer's, which this file must not free.
char others_stack = 0;

void free_crash_stack(void* memory) {
  if (memory == &others_stack) {
    return;
  }
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
  munmap(memory, kCrashStackBytes);
}

/// The pthread key of the crash stacks. Its destructor frees a thread's stack
/// when the thread ends.
class CrashStackKey {
 public:
  CrashStackKey()
      : is_made_(pthread_key_create(&key_, free_crash_stack) == 0) {}

  bool needs_stack() const {
    return is_made_ && pthread_getspecific(key_) == nullptr;
  }
  void set(void* memory) const { pthread_setspecific(key_, memory); }

 private:
  pthread_key_t key_{};
  const bool is_made_;
};

void* make_crash_stack() {
  stack_t current{};
  sigaltstack(nullptr, &current);
  if ((current.ss_flags & SS_DISABLE) == 0) {
    return &others_stack;
  }
  void* memory = mmap(
      nullptr,
      kCrashStackBytes,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK,
      -1,
      0);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  const stack_t stack{
      .ss_sp = memory, .ss_flags = 0, .ss_size = kCrashStackBytes};
  sigaltstack(&stack, nullptr);
  return memory;
}

} // namespace

void prepare_thread_for_crash() {
  static const CrashStackKey key;
  if (key.needs_stack()) {
    key.set(make_crash_stack());
  }
}

} // namespace weft::base
