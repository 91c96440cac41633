#include "ddp/gradient_agreement.h"

#include <torch/torch.h>

#include "mesh/error.h"

namespace weft::ddp {
namespace {

constexpr int64_t kNotReady = -1;

/// All ranks' rows, [dp, n] on the CPU.
at::Tensor gather_rows(const Replicas& replicas, std::vector<int64_t> row) {
  const auto own = at::tensor(row, at::kLong);
  const auto n = replicas.dp.size();
  auto& group = replicas.dp.group(int64_t{0});
  // In an imagined world only this rank's row is known.
  if (n == 1 || group.backend() == "fake") {
    return own.unsqueeze(0);
  }
  const auto input = own.to(replicas.device);
  const auto output = at::empty({n, input.numel()}, input.options());
  group.all_gather(output, input, "ddp gradient order").wait();
  return output.cpu();
}

std::vector<int64_t> positions(
    const Replicas& replicas,
    const std::vector<size_t>& ready) {
  std::vector<int64_t> result(replicas.names.size(), kNotReady);
  for (size_t i = 0; i < ready.size(); ++i) {
    result[ready[i]] = static_cast<int64_t>(i);
  }
  return result;
}

/// "rank 1: a.weight, a.bias; rank 3: a.bias", or "" if nothing is missing.
std::string list_missing(const Replicas& replicas, const at::Tensor& rows) {
  const auto values = rows.accessor<int64_t, 2>();
  const auto& ranks = replicas.dp.group(int64_t{0}).ranks();
  std::string text;
  for (int64_t rank = 0; rank < values.size(0); ++rank) {
    std::string names;
    for (size_t i = 0; i < replicas.names.size(); ++i) {
      if (values[rank][static_cast<int64_t>(i)] == kNotReady) {
        names += (names.empty() ? "" : ", ") + replicas.names[i];
      }
    }
    if (!names.empty()) {
      text += (text.empty() ? "rank " : "; rank ") +
              std::to_string(ranks[rank]) + ": " + names;
    }
  }
  return text;
}

void check_nothing_missing(const Replicas& replicas, const at::Tensor& rows) {
  const auto missing = list_missing(replicas, rows);
  WEFT_CHECK(
      missing.empty(),
      "ddp",
      mesh::ErrorContext{replicas.dp.describe_rank()},
      "no gradient in this backward for parameters on ",
      missing,
      ". Use every parameter in forward and in the loss on every rank, freeze "
      "those that are not trained with requires_grad_(false) before the model "
      "is wrapped, or run partial backward passes under no_sync().");
}

void check_kinds(const Replicas& replicas, const at::Tensor& rows) {
  const auto values = rows.accessor<int64_t, 2>();
  const auto n = replicas.names.size();
  for (int64_t rank = 1; rank < values.size(0); ++rank) {
    for (size_t i = 0; i < n; ++i) {
      const auto column = static_cast<int64_t>(n + i);
      if (values[rank][column] != values[0][column]) {
        const auto& ranks = replicas.dp.group(int64_t{0}).ranks();
        mesh::throw_error<mesh::DisagreementError>(mesh::detail::concat(
            "[ddp] the gradient of ",
            replicas.names[i],
            " is a pending sum on rank ",
            ranks[values[0][column] != 0 ? 0 : rank],
            " and not, or over other mesh dims, on rank ",
            ranks[values[0][column] != 0 ? rank : 0],
            ". Parallelize the model alike on all ranks. (",
            replicas.dp.describe_rank(),
            ")"));
      }
    }
  }
}

} // namespace

std::vector<size_t> agree_on_order(
    const Replicas& replicas,
    const std::vector<size_t>& ready,
    const std::vector<int64_t>& kinds) {
  auto row = positions(replicas, ready);
  row.insert(row.end(), kinds.begin(), kinds.end());
  const auto rows = gather_rows(replicas, std::move(row));
  check_nothing_missing(replicas, rows);
  check_kinds(replicas, rows);
  const auto values = rows.accessor<int64_t, 2>();
  std::vector<size_t> order(replicas.names.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[values[0][static_cast<int64_t>(i)]] = i;
  }
  return order;
}

void throw_missing(const Replicas& replicas, const std::vector<size_t>& ready) {
  const auto rows = gather_rows(replicas, positions(replicas, ready));
  check_nothing_missing(replicas, rows);
  TORCH_INTERNAL_ASSERT(false, "a rank raised its flag and misses nothing");
}

} // namespace weft::ddp
