#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "testkit/run_ranks.h"

namespace weft::test {

using testkit::RankContext;

/// testkit::run_ranks() for googletest: an exception or a fatal assertion on
/// one rank fails the test and ends the others' collectives.
void run_ranks(
    int n,
    const std::function<void(RankContext&)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(30),
    const std::string& backend = "cpu");
/// With other options, too.
void run_ranks(
    int n,
    const std::function<void(RankContext&)>& body,
    const mesh::WorldOptions& options);

/// Ranks with a mesh of the dims dp and tp that the cases of a suite share, one
/// after the other: to create them takes longer than a short case. A member of
/// the suite, cleared in TearDownTestSuite().
class SharedRanks {
 public:
  SharedRanks();
  ~SharedRanks();
  /// Runs `body` on ranks of an earlier call with the same dims, on new ones if
  /// there are none or a test failed on them; otherwise like run_ranks().
  void run(
      int64_t dp,
      int64_t tp,
      const std::function<void(RankContext&, const mesh::DeviceMesh&)>& body);
  /// Ends the ranks.
  void clear();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace weft::test
