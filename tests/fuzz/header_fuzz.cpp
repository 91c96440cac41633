#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/verdict.h"

// libFuzzer calls this with what it made up.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  weft::test::say_verdict(weft::test::fuzz_header(input));
  return 0;
}
