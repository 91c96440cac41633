#include "base/stacks/callstack.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <ucontext.h>
#include <unistd.h>

namespace weft::base {
namespace {

constexpr int kMaxFrames = 64;
constexpr size_t kSymbolBytes = 512;

struct Program {
  std::array<char, PATH_MAX> path{};
  uintptr_t base = 0;
};
Program program;

void find_program() {
  const ssize_t size =
      readlink("/proc/self/exe", program.path.data(), program.path.size() - 1);
  program.path[static_cast<size_t>(std::max<ssize_t>(size, 0))] = '\0';
  dl_iterate_phdr( // The first entry is the program.
      [](dl_phdr_info* info, size_t /*size*/, void* base) {
        *static_cast<uintptr_t*>(base) = info->dlpi_addr;
        return 1;
      },
      &program.base);
}

void* program_counter(const void* context) {
  [[maybe_unused]] const auto* machine =
      &static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return reinterpret_cast<void*>(machine->gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(machine->pc);
#else
  return nullptr;
#endif
}

void put_frame(SafeWriter& out, int number, uintptr_t address) {
  out << "#" << Decimal{number} << " ";
  Dl_info found{};
  // A return address is behind the end of its function if the function ends
  // with a call that never returns.
  const uintptr_t inside = number == 0 ? address : address - 1;
  if (dladdr(reinterpret_cast<void*>(inside), &found) == 0) {
    out << Hex{address} << "\n";
    return;
  }
  const auto base = reinterpret_cast<uintptr_t>(found.dli_fbase);
  // dli_fname of the program may be relative to an earlier working directory.
  out << (base == program.base ? program.path.data() : found.dli_fname) << "(+"
      << Hex{address - base} << ")";
  if (found.dli_sname != nullptr) {
    out << " "
        << std::string_view(
               found.dli_sname, strnlen(found.dli_sname, kSymbolBytes))
        << "+" << Hex{address - reinterpret_cast<uintptr_t>(found.dli_saddr)};
  }
  out << "\n";
}

} // namespace

void prepare_callstack() {
  void* frame = nullptr;
  // The first call of backtrace() loads a library, which a handler must not do.
  backtrace(&frame, 1);
  find_program();
}

size_t read_callstack(std::span<void*> frames, const void* context) {
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  const auto end = frames.begin() + count;
  void* const interrupted = program_counter(context);
  const auto begin = std::find(frames.begin(), end, interrupted);
  if (begin != end) {
    return static_cast<size_t>(
        std::move(begin, end, frames.begin()) - frames.begin());
  }
  // The unwinder does not find the interrupted instruction, e.g. after a call
  // through a null pointer. The stack then begins with the caller. Before it
  // are the frames of this function, of its caller in the handler, and of the
  // kernel's signal trampoline.
  frames[0] = interrupted;
  const auto rest = std::min(frames.begin() + 3, end);
  return static_cast<size_t>(
      std::move(rest, end, frames.begin() + 1) - frames.begin());
}

size_t read_program_counter(std::span<void*> frames, const void* context) {
  frames[0] = program_counter(context);
  return 1;
}

void write_callstack(SafeWriter& out, const void* context) {
  std::array<void*, kMaxFrames> frames;
  const size_t count = read_callstack(frames, context);
  for (size_t i = 0; i < count; ++i) {
    put_frame(out, static_cast<int>(i), reinterpret_cast<uintptr_t>(frames[i]));
  }
}

} // namespace weft::base
