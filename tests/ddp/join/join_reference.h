#pragma once

#include <string>
#include <vector>

#include "tests/ddp/join/join_cases.h"
#include "tests/ddp/options/option_training.h"

namespace weft::test {

/// What each replica has after training under Join, computed on one rank: the
/// gradients of the replicas that have inputs are added up where they can be
/// seen, and divided by the run's rule.
std::vector<OptionTrace> train_join_by_hand(const JoinRun& run);

/// What PyTorch's DDP has under its Join. oracle/join.py says how.
struct PyTorchJoin {
  bool is_stored = false;
  /// One of each replica; empty if PyTorch fails.
  std::vector<OptionTrace> traces;
  std::string error;
  /// The count of each replica, and whether it was last.
  std::vector<double> counter;
};
PyTorchJoin pytorch_join(const JoinRun& run);

/// Why PyTorch's result is another one; "" if it is not.
std::string difference_from_pytorch(const JoinRun& run);

/// Names of the cases in oracle/join.json.
std::vector<std::string> pytorch_join_cases();

} // namespace weft::test
