#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data_parallel/join/join.h"
#include "mesh/device_mesh.h"
#include "tests/ddp/join/join_cases.h"
#include "tests/ddp/options/option_training.h"
#include "tests/support/run_ranks.h"

namespace weft::test {

/// The options of a training.
struct JoinTraining {
  data_parallel::JoinOptions options = {};
  /// Called with the place and the number of the batch: "forward" before one,
  /// "loss" before its backward, "step" before the optimizer's, "reduced"
  /// behind it, and "hook" with -1 in a comm hook before a reduction.
  std::function<void(const std::string& place, int64_t batch)> at = {};
  /// In the same Join, behind the model.
  std::vector<data_parallel::Joinable*> joinables = {};
  /// Over which experts are reduced.
  std::optional<mesh::DeviceMesh> experts = {};
};

/// Trains with DistributedDataParallel under Join, each replica on its number
/// of inputs. Losses and gradients are left out of the trace.
/// Collective: all ranks of `mesh`, whose dims are dp and tp.
OptionTrace train_under_join(
    const JoinRun& run,
    const mesh::DeviceMesh& mesh,
    const JoinTraining& training = {});

/// Like train_under_join(), on `ranks`. Returns the state of each.
std::vector<OptionTrace> train_ranks_under_join(
    SharedRanks& ranks,
    const JoinRun& run);

/// The pair of replicas {0, 1} or {2, 3}.
/// Collective: all ranks.
mesh::DeviceMesh join_pair_of(const RankContext& self);

/// The kwargs of a Join.
data_parallel::JoinKwargs join_kwargs(Division division);

/// Rows that a replica gets as its input number `batch`.
at::Tensor join_inputs(const JoinSetup& setup, int64_t replica, int64_t batch);

} // namespace weft::test
