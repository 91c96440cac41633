#include "dtensor/random/random_state.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <string_view>
#include <utility>

#include <torch/torch.h>

#include "dtensor/random/random_sampling.h"
#include "dtensor/spec/region.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/communicator/scope_kind.h"
#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

// The random state of a root mesh. All threads of a rank (e.g. autograd's)
// share it.
struct SharedState {
  std::mutex mutex;
  RandomState state;
  std::optional<RandomBatch> batch;
};

SharedState& shared_state(const mesh::DeviceMesh& mesh) {
  return mesh.root().extension<SharedState>();
}

constexpr std::string_view kRandomStartsKind = "WEFT_RANDOM_STARTS";

c10::DebugInfoKind random_starts_kind() {
  return mesh::scope_kind(&kRandomStartsKind, 0x5b);
}

RandomStateRecorder* current_starts() {
  return static_cast<RandomStateRecorder*>(
      c10::ThreadLocalDebugInfo::get(random_starts_kind()));
}

std::shared_ptr<RandomStateRecorder> within_current(
    std::shared_ptr<RandomStateRecorder> starts) {
  if (auto* outer = current_starts()) {
    starts->set_outer(outer->shared_from_this());
  }
  return starts;
}

// Returns the next key and advances the sequence. The caller holds the lock.
RandomKey take_key(const mesh::DeviceMesh& mesh, SharedState& shared) {
  if (auto* starts = current_starts()) {
    starts->note(mesh.root(), shared.state, shared.batch);
  }
  return {shared.state.seed, shared.state.sequence++};
}

// Converts the part to a part of the global batch's tensor. See RandomScope.
void place_in_batch(RandomPart& part, const RandomBatch& batch) {
  const auto dim = static_cast<size_t>(batch.dim);
  if (batch.samples <= 0 || dim >= part.global_sizes.size() ||
      part.global_sizes[dim] % batch.samples != 0) {
    return;
  }
  const int64_t rows = part.global_sizes[dim] / batch.samples;
  part.global_sizes[dim] = batch.global_samples * rows;
  for (auto& range : part.ranges[dim]) {
    range.begin += batch.first_sample * rows;
  }
}

} // namespace

void manual_seed(const mesh::DeviceMesh& mesh, uint64_t seed) {
  set_random_state(mesh, {.seed = seed, .sequence = 0});
}

RandomState random_state(const mesh::DeviceMesh& mesh) {
  auto& shared = shared_state(mesh);
  const std::lock_guard lock(shared.mutex);
  return shared.state;
}

void set_random_state(const mesh::DeviceMesh& mesh, const RandomState& state) {
  auto& shared = shared_state(mesh);
  const std::lock_guard lock(shared.mutex);
  shared.state = state;
}

RandomKey next_random_key(const mesh::DeviceMesh& mesh) {
  auto& shared = shared_state(mesh);
  const std::lock_guard lock(shared.mutex);
  return take_key(mesh, shared);
}

RandomScope::RandomScope(
    const mesh::DeviceMesh& mesh,
    const RandomState& state,
    const std::optional<RandomBatch>& batch)
    : mesh_(mesh) {
  auto& shared = shared_state(mesh_);
  const std::lock_guard lock(shared.mutex);
  state_ = std::exchange(shared.state, state);
  batch_ = std::exchange(shared.batch, batch);
}

RandomScope::~RandomScope() {
  auto& shared = shared_state(mesh_);
  const std::lock_guard lock(shared.mutex);
  shared.state = state_;
  shared.batch = batch_;
}

void RandomStateRecorder::note(
    const mesh::DeviceMesh& root,
    const RandomState& state,
    const std::optional<RandomBatch>& batch) {
  const std::lock_guard lock(mutex_);
  const bool is_known = std::ranges::any_of(
      starts_, [&](const auto& start) { return start.root == root; });
  if (!is_known) {
    starts_.push_back({root, state, batch});
  }
  if (outer_) {
    outer_->note(root, state, batch);
  }
}

void RandomStateRecorder::rewind(const std::function<void()>& body) const {
  std::vector<Start> starts;
  {
    const std::lock_guard lock(mutex_);
    starts = starts_;
  }
  std::vector<std::unique_ptr<RandomScope>> scopes;
  for (const auto& start : starts) {
    scopes.push_back(
        std::make_unique<RandomScope>(start.root, start.state, start.batch));
  }
  body();
}

RandomRecorderGuard::RandomRecorderGuard(
    std::shared_ptr<RandomStateRecorder> starts)
    : guard_(random_starts_kind(), within_current(std::move(starts))) {}

bool RandomPart::is_box() const {
  return dtensor::is_box(ranges);
}

LocalBox RandomPart::box() const {
  LocalBox box{{}, local_sizes};
  for (const auto& dim : ranges) {
    box.offset.push_back(dim.empty() ? 0 : dim[0].begin);
  }
  return box;
}

at::Tensor RandomPart::indices() const {
  auto result = at::empty(local_sizes, at::kLong);
  auto* out = result.mutable_data_ptr<int64_t>();
  const auto strides = row_major_strides(global_sizes);
  // Writes the index of every combination of positions in the dims from `dim`
  // on. `before` is the sum over the dims in front of it.
  const auto write = [&](const auto& self, size_t dim, int64_t before) -> void {
    if (dim == ranges.size()) {
      *out++ = before;
      return;
    }
    const bool is_last = dim + 1 == ranges.size();
    for (const auto& range : ranges[dim]) {
      if (is_last) {
        std::iota(out, out + range.length, before + range.begin);
        out += range.length;
        continue;
      }
      for (int64_t i = 0; i < range.length; ++i) {
        self(self, dim + 1, before + (range.begin + i) * strides[dim]);
      }
    }
  };
  write(write, 0, 0);
  return result;
}

RandomPart next_random_part(const DTensorSpec& spec, c10::IntArrayRef sizes) {
  RandomPart part;
  part.global_sizes = sizes.vec();
  part.ranges = local_ranges(spec.without_partial(), sizes);
  part.local_sizes = sizes_of(part.ranges);
  auto& shared = shared_state(spec.mesh());
  const std::lock_guard lock(shared.mutex);
  part.key = take_key(spec.mesh(), shared);
  if (shared.batch) {
    place_in_batch(part, *shared.batch);
  }
  return part;
}

at::Tensor randperm(int64_t n, const mesh::DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(n >= 0, "[randperm] n >= 0: ", n, " vs 0.");
  const DTensorSpec spec(mesh, Placements(mesh.ndim(), Replicate()));
  const auto keys = sample_integers(
      at::arange(n), next_random_key(mesh), 0, uint64_t{1} << 63);
  return make_dtensor(
      keys.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false),
      spec,
      {n},
      {1});
}

} // namespace weft::dtensor
