#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/sgd.h>

#include "ddp/batch_norm/sync_batch_norm.h"
#include "ddp/reducer/options.h"
#include "tests/ddp/harness/model.h"
#include "tests/ddp/harness/module_with_delay.h"

namespace weft::test {

enum class HarnessKind {
  kTransformer,
  kTransformerWithBatchNorm,
  kTransformerWithSyncBatchNorm,
  kNested,
  kAlwaysNested,
  kMixtureOfExperts,
};

/// As gtest wants names.
const char* name_of(HarnessKind kind);

/// A plain model with its values, unwrapped. Null `dp`: the twin of `replicas`
/// replicas. `channel`: for kTransformerWithSyncBatchNorm.
std::shared_ptr<HarnessModel> construct_harness(
    HarnessKind kind,
    int64_t replicas,
    const mesh::DeviceMesh* dp,
    const std::shared_ptr<ddp::SyncBatchNormGroup>& channel);

/// A replica's model on `mesh`, of the dims dp and tp, wrapped inside where it
/// is to be, with delays if they are given (each rank's seed is its own).
/// Collective: all ranks of the mesh.
std::shared_ptr<HarnessModel> make_harness_model(
    HarnessKind kind,
    const mesh::DeviceMesh& mesh,
    const ddp::DistributedDataParallelOptions& options = {},
    const std::optional<HarnessDelays>& delays = std::nullopt);

/// The model of one rank that does what `replicas` do together: same names (see
/// name_in_twin()), same values, nothing wrapped.
std::shared_ptr<HarnessModel> make_harness_twin(
    HarnessKind kind,
    int64_t replicas);

/// `options` for wrapping the model: leaves alone what is wrapped inside, and
/// knows its groups.
ddp::DistributedDataParallelOptions outer_options(
    const HarnessModel& model,
    ddp::DistributedDataParallelOptions options);

struct HarnessRun {
  HarnessKind kind = HarnessKind::kTransformer;
  ddp::DistributedDataParallelOptions options = {};
  std::optional<HarnessDelays> delays = std::nullopt;
};

/// The state of a rank after some steps.
struct HarnessTrace {
  /// The loss of each step, averaged over the replicas.
  std::vector<double> losses;
  /// Full tensors, named as in the twin.
  std::map<std::string, at::Tensor> parameters, buffers;
};

torch::optim::SGDOptions harness_sgd();
/// What `model` has after steps with `losses`.
/// Collective: all ranks of the mesh that the model lies on.
HarnessTrace trace_of_harness(
    const HarnessModel& model,
    std::vector<double> losses);

/// SGD with momentum.
/// Collective: all ranks of `mesh`, whose dims are dp and tp.
HarnessTrace train_harness(
    const HarnessRun& run,
    const mesh::DeviceMesh& mesh,
    int64_t steps);
/// Like train_harness(), on one rank without wrappers.
HarnessTrace
train_harness_twin(HarnessKind kind, int64_t replicas, int64_t steps);

} // namespace weft::test
