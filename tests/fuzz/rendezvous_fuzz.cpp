#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/rendezvous_input.h"

// What somebody without the token sends to host 0: nothing of it may open a
// control connection, reach the store, or be taken for a message. And what
// somebody with it says, to either side: nonsense starts and ends nothing.
//
// libFuzzer calls this with what it made up.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  namespace launcher = weft::launcher;
  for (const auto& wrong :
       {launcher::knock_at_gate(input),
        launcher::interfere(input),
        launcher::tell_host0(input),
        launcher::tell_other_host(input)}) {
    if (!wrong.empty()) {
      std::fprintf(stderr, "%s\n", wrong.c_str());
      std::abort();
    }
  }
  return 0;
}
