#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tests/fuzz/recipe_input.h"
#include "tests/fuzz/recipe_mutator.h"
#include "tests/fuzz/verdict.h"

// libFuzzer's own interface.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// Half of the changes know what matters to YAML.
extern "C" size_t LLVMFuzzerCustomMutator(
    uint8_t* data,
    size_t size,
    size_t max_size,
    unsigned int seed) {
  if (seed % 2 == 0) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  weft::test::RecipeMutator mutator(seed);
  const auto text =
      mutator.mutate(std::string(reinterpret_cast<const char*>(data), size));
  const auto length = std::min(text.size(), max_size);
  std::memcpy(data, text.data(), length);
  return length;
}

// libFuzzer calls this with what it made up.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  weft::test::say_verdict(weft::test::fuzz_recipe(input));
  return 0;
}
