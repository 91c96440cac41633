#include <array>
#include <limits>
#include <string_view>

#include <ATen/ATen.h>

#include "ddp/batch_norm/sync_batch_norm.h"
#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

// Note [Shadowed statistics]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// A rank without inputs (a shadow) knows neither which statistics the other
// ranks exchange nor how many. So while sums are announced, a header precedes
// each of them, reduced by max: the kind of event, the number of elements,
// their dtype and the kind of device. The header has each field twice, the
// second time negated. The max thus shows whether all ranks that sum send the
// same header. Shadows contribute the smallest int64. If the result is that
// number, no rank has inputs.
enum Announced : int64_t { kSum = 1, kEnded = 2 };

constexpr size_t kHeaderFields = 4;
constexpr auto kNothing = std::numeric_limits<int64_t>::min();
constexpr std::string_view kHeaderName = "batch norm header";
constexpr std::string_view kSumName = "batch norm statistics";

using Header = std::array<int64_t, kHeaderFields>;

Header header_of(const at::Tensor& statistics) {
  return {
      kSum,
      statistics.numel(),
      static_cast<int64_t>(statistics.scalar_type()),
      static_cast<int64_t>(statistics.device().type())};
}

mesh::ErrorContext context_of(const mesh::Communicator& group) {
  return {mesh::detail::concat(
      "rank ", group.rank(), "/", group.size(), " of ", group.name())};
}

/// Returns the header of the ranks that sum, or kNothing if all are shadows.
/// `own` is null on a shadow.
Header agree(mesh::Communicator& group, const Header* own) {
  auto message = at::full({2 * kHeaderFields}, kNothing, at::kLong);
  auto* numbers = message.mutable_data_ptr<int64_t>();
  if (own) {
    for (size_t i = 0; i < kHeaderFields; ++i) {
      numbers[i] = (*own)[i];
      numbers[kHeaderFields + i] = -(*own)[i];
    }
  }
  group.all_reduce(message, mesh::ReduceOp::kMax, kHeaderName).wait();
  Header header;
  for (size_t i = 0; i < kHeaderFields; ++i) {
    header[i] = numbers[i];
    if (numbers[0] != kNothing && numbers[i] != -numbers[kHeaderFields + i]) {
      mesh::throw_error<mesh::DisagreementError>(mesh::detail::concat(
          "[SyncBatchNorm] the ranks are not at the same layer: one ",
          numbers[0] == kEnded ? "has ended its pass" : "sums",
          ", another ",
          numbers[kHeaderFields] == -kSum ? "sums other statistics"
                                          : "has ended its pass",
          ". All ranks with inputs must run the same layers. (",
          context_of(group).text,
          ")"));
    }
  }
  return header;
}

} // namespace

SyncBatchNormGroup::SyncBatchNormGroup(mesh::Communicator group)
    : group_(std::move(group)) {}

void SyncBatchNormGroup::sum(const at::Tensor& statistics) {
  if (announces_) {
    const auto own = header_of(statistics);
    agree(group_, &own);
  }
  // A shadow knows no shape, so all ranks send a flat tensor.
  group_.all_reduce(statistics.view({-1}), mesh::ReduceOp::kSum, kSumName)
      .wait();
}

void SyncBatchNormGroup::set_announcing(bool announces) {
  announces_ = announces;
}

void SyncBatchNormGroup::end_pass() {
  if (announces_) {
    const Header own{kEnded, 0, 0, 0};
    agree(group_, &own);
  }
}

void SyncBatchNormGroup::shadow_pass() {
  while (true) {
    const auto [what, numel, dtype, device] = agree(group_, nullptr);
    if (what != kSum) {
      return;
    }
    const auto zeros = at::zeros(
        {numel},
        at::TensorOptions()
            .dtype(static_cast<at::ScalarType>(dtype))
            .device(static_cast<c10::DeviceType>(device)));
    group_.all_reduce(zeros, mesh::ReduceOp::kSum, kSumName).wait();
  }
}

std::shared_ptr<SyncBatchNormGroup> make_sync_batch_norm_group(
    const mesh::DeviceMesh& dp_mesh) {
  WEFT_CHECK(
      dp_mesh.ndim() == 1,
      "SyncBatchNorm",
      mesh::ErrorContext{dp_mesh.describe_rank()},
      "mesh: got ",
      dp_mesh.ndim(),
      " mesh dims, expected 1. Pass a slice, e.g. mesh[\"dp\"].");
  // Slices of other ranks make groups of the same name at the same time. The
  // scope distinguishes them by their first rank.
  const auto scope = mesh::detail::concat(
      "batch norm ",
      dp_mesh.world().next_id(),
      " at ",
      dp_mesh.ranks().front());
  return std::make_shared<SyncBatchNormGroup>(dp_mesh.world().make_group(
      mesh::detail::concat(dp_mesh.mesh_dim_names().front(), " batch norm"),
      dp_mesh.ranks(),
      scope));
}

} // namespace weft::ddp
