#pragma once

#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"

namespace weft::test {

/// With WEFT_FUZZ_VERDICT in the environment: a line for each input, for
/// bench/peer/safetensors_parity.py.
inline void say_verdict(const FuzzVerdict& run_result) {
  static const bool is_wanted = std::getenv("WEFT_FUZZ_VERDICT") != nullptr;
  if (is_wanted) {
    std::printf(
        "%s\n", run_result.is_accepted ? "accepted" : run_result.error.c_str());
    std::fflush(stdout);
  }
}

} // namespace weft::test
