// simulation_main FIRST LAST: simulates schedules of faults with the seeds from
// FIRST up to LAST. Prints the first violation and exits with 1, or prints what
// happened.

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/lighthouse/simulation.h"

int main(int argc, char** argv) {
  using weft::lighthouse::test::Outcome;
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s FIRST LAST\n", argv[0]);
    return 2;
  }
  const auto first = std::strtoull(argv[1], nullptr, 10);
  const auto last = std::strtoull(argv[2], nullptr, 10);
  Outcome all;
  for (auto seed = first; seed < last; ++seed) {
    const auto outcome = weft::lighthouse::test::simulate(seed);
    if (!outcome.violation.empty()) {
      std::printf("%s\n", outcome.violation.c_str());
      return 1;
    }
    all.add(outcome);
  }
  std::printf("%s\n", all.to_text().c_str());
  return 0;
}
