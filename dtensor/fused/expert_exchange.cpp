#include "dtensor/fused/expert_exchange.h"

#include <numeric>
#include <optional>
#include <utility>

#include <torch/torch.h>

#include "dtensor/scopes/comm_debug.h"
#include "dtensor/tensor/graph_nodes.h"

namespace weft::dtensor {
namespace {

at::Tensor exchange_below(
    const at::Tensor& rows,
    const RowExchange& exchange,
    mesh::Communicator group,
    const std::string& name) {
  const at::AutoDispatchBelowADInplaceOrView below;
  auto sizes = rows.sizes().vec();
  sizes[0] = std::accumulate(
      exchange.received.begin(), exchange.received.end(), int64_t{0});
  const auto result = at::empty(sizes, rows.options());
  group
      .all_to_all(
          result.split_with_sizes(exchange.received),
          rows.contiguous().split_with_sizes(exchange.sent),
          name)
      .wait();
  return result;
}

struct ExchangeRowsBackward final : torch::autograd::Node {
  RowExchange back;
  std::optional<mesh::Communicator> group;
  std::string label;
  std::string module;

  std::string name() const override { return "ExchangeRowsBackward"; }

  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override {
    if (!grads[0].defined()) {
      return {at::Tensor()};
    }
    const detail::ModuleScope in_module(module);
    return {exchange_rows(grads[0], back, *group, label)};
  }
};

// ---- experts ----------------------------------------------------------------

// Returns how many rows each rank (row of the result) sends to each expert of
// this rank (column).
std::vector<int64_t> exchange_counts(
    const GroupCounts& counts,
    const std::vector<int64_t>& experts_of,
    mesh::Communicator& group,
    c10::Device device,
    const std::string& name) {
  const bool is_meta = device.is_meta();
  const auto options =
      at::TensorOptions(at::kLong).device(is_meta ? device : at::kCPU);
  const auto own = is_meta ? at::empty({std::ssize(counts)}, options)
                           : at::tensor(counts, options);
  const int64_t experts = experts_of[group.rank()];
  const auto arrived = at::empty({group.size(), experts}, options);
  group.all_to_all(arrived.unbind(0), own.split_with_sizes(experts_of), name)
      .wait();
  if (!is_meta) {
    const auto* first = arrived.const_data_ptr<int64_t>();
    return {first, first + arrived.numel()};
  }
  const auto first =
      counts.begin() +
      std::accumulate(
          experts_of.begin(), experts_of.begin() + group.rank(), int64_t{0});
  std::vector<int64_t> alike;
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    alike.insert(alike.end(), first, first + experts);
  }
  return alike;
}

void group_by_expert(
    const std::vector<int64_t>& arrived,
    int64_t senders,
    c10::Device device,
    ExpertExchange& exchange) {
  const int64_t experts = std::ssize(exchange.counts);
  std::vector<int64_t> begins(arrived.size());
  std::exclusive_scan(
      arrived.begin(), arrived.end(), begins.begin(), int64_t{0});
  std::vector<int64_t> order;
  for (int64_t expert = 0; expert < experts; ++expert) {
    for (int64_t sender = 0; sender < senders; ++sender) {
      const int64_t block = sender * experts + expert;
      for (int64_t row = 0; row < arrived[block]; ++row) {
        order.push_back(begins[block] + row);
      }
    }
  }
  std::vector<int64_t> inverse(order.size());
  for (int64_t row = 0; row < std::ssize(order); ++row) {
    inverse[order[row]] = row;
  }
  exchange.grouped = at::tensor(order, at::kLong).to(device);
  exchange.ungrouped = at::tensor(inverse, at::kLong).to(device);
}

} // namespace

at::Tensor exchange_rows(
    const at::Tensor& rows,
    const RowExchange& exchange,
    const mesh::Communicator& group,
    const std::string& name) {
  auto output = exchange_below(rows, exchange, group, name);
  if (records_graph(rows)) {
    auto* node = record<ExchangeRowsBackward>(rows, output);
    node->back = exchange.reversed();
    node->group = group;
    node->label = name;
    node->module = detail::current_module();
  }
  return output;
}

ExpertExchange plan_exchange(
    const GroupCounts& counts,
    const std::vector<int64_t>& experts_of,
    mesh::Communicator& group,
    c10::Device device,
    const std::string& name) {
  const auto arrived = exchange_counts(counts, experts_of, group, device, name);
  const int64_t experts = experts_of[group.rank()];
  ExpertExchange exchange;
  exchange.counts.resize(experts);
  auto next = counts.begin();
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    const auto end = next + experts_of[rank];
    exchange.rows.sent.push_back(std::accumulate(next, end, int64_t{0}));
    next = end;
    int64_t received = 0;
    for (int64_t expert = 0; expert < experts; ++expert) {
      const int64_t rows = arrived[rank * experts + expert];
      exchange.counts[expert] += rows;
      received += rows;
    }
    exchange.rows.received.push_back(received);
  }
  group_by_expert(arrived, group.size(), device, exchange);
  return exchange;
}

} // namespace weft::dtensor
