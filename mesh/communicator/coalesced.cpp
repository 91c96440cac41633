#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "mesh/communicator/backend.h"
#include "mesh/communicator/call.h"
#include "mesh/communicator/communicator.h"
#include "mesh/communicator/packing.h"
#include "mesh/communicator/work.h"
#include "mesh/error/error.h"

// Note [Coalescing]
// ~~~~~~~~~~~~~~~~~
// The tensors of each dtype, in the order of their first appearance, are packed
// into one buffer and sent as one message. Where a buffer is divided among the
// ranks, it is rank-major: all tensors' parts for rank 0, then those for
// rank 1.

namespace weft::mesh {
namespace {

using Tensors = std::vector<at::Tensor>;

/// For each dtype, the indices of its tensors in the call.
using DtypeGroups =
    std::vector<std::pair<c10::ScalarType, std::vector<size_t>>>;

DtypeGroups group_by_dtype(const Tensors& tensors) {
  DtypeGroups groups;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto dtype = tensors[i].scalar_type();
    auto found = std::find_if(groups.begin(), groups.end(), [&](auto& group) {
      return group.first == dtype;
    });
    if (found == groups.end()) {
      groups.push_back({dtype, {}});
      found = groups.end() - 1;
    }
    found->second.push_back(i);
  }
  return groups;
}

Tensors pick(const Tensors& tensors, const std::vector<size_t>& indices) {
  Tensors picked;
  picked.reserve(indices.size());
  for (const size_t i : indices) {
    picked.push_back(tensors[i]);
  }
  return picked;
}

/// Returns the parts of `tensors` in rank-major order. See Note [Coalescing].
Tensors rank_major(const Tensors& tensors, int64_t size) {
  Tensors parts;
  parts.reserve(tensors.size() * size);
  for (int64_t rank = 0; rank < size; ++rank) {
    for (const at::Tensor& tensor : tensors) {
      const int64_t count = tensor.numel() / size;
      parts.push_back(tensor.reshape({-1}).narrow(0, rank * count, count));
    }
  }
  return parts;
}

/// Runs `one` for the tensors of each dtype that has elements.
template <class One>
Work for_each_dtype(
    const GroupState& group,
    const std::string& op,
    std::string_view name,
    const Tensors& tensors,
    const One& one) {
  for (const at::Tensor& tensor : tensors) {
    check_tensor(group, make_call(op, name, tensor), tensor);
  }
  std::vector<Work> works;
  for (const auto& [dtype, indices] : group_by_dtype(tensors)) {
    const Tensors picked = pick(tensors, indices);
    FlightRecorderEntry call = make_call(op, name, picked.front());
    call.bytes = total_bytes(picked);
    if (call.bytes > 0) {
      call.shape = {call.bytes / static_cast<int64_t>(c10::elementSize(dtype))};
      works.push_back(one(std::move(call), picked, indices));
    }
  }
  return works.empty() ? Work() : combine(std::move(works));
}

void check_counterparts(
    const GroupState& group,
    const std::string& op,
    std::string_view name,
    const Tensors& wholes,
    const Tensors& parts) {
  FlightRecorderEntry call = make_call(op, name, {});
  WEFT_CHECK(
      wholes.size() == parts.size(),
      op,
      group.describe(call),
      "the number of inputs must equal the number of outputs: ",
      wholes.size(),
      " vs ",
      parts.size(),
      " tensors.");
  for (size_t i = 0; i < wholes.size(); ++i) {
    call = make_call(op, name, parts[i]);
    check_tensor(group, call, parts[i]);
    check_tensor(group, call, wholes[i]);
    WEFT_CHECK(
        wholes[i].numel() == group.backend->size() * parts[i].numel(),
        op,
        group.describe(call),
        "the full tensor must have ranks * (elements of the part) elements: ",
        wholes[i].numel(),
        " vs ",
        group.backend->size() * parts[i].numel(),
        ". Pair ",
        i,
        " has a full tensor that does not hold one part per rank.");
  }
}

} // namespace

Work Communicator::all_reduce_coalesced(
    const std::vector<at::Tensor>& tensors,
    ReduceOp op,
    std::string_view name) {
  const at::NoGradGuard no_grad;
  return for_each_dtype(
      *state_,
      "all_reduce_coalesced",
      name,
      tensors,
      [&](FlightRecorderEntry call, const Tensors& picked, const auto&) {
        check_op(*state_, call, op);
        call.argument = static_cast<int64_t>(op);
        const Packed packed = Packed::input(picked);
        return launch(
            state_,
            std::move(call),
            [&](Backend& backend) {
              return backend.all_reduce(packed.buffer(), op);
            },
            packed.unpack());
      });
}

Work Communicator::all_gather_coalesced(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& inputs,
    std::string_view name) {
  const std::string op = "all_gather_coalesced";
  check_counterparts(*state_, op, name, outputs, inputs);
  for (const at::Tensor& output : outputs) {
    WEFT_CHECK(
        output.is_contiguous(),
        op,
        state_->describe(make_call(op, name, output)),
        "An output is not contiguous.");
  }
  const at::NoGradGuard no_grad;
  return for_each_dtype(
      *state_,
      op,
      name,
      outputs,
      [&](FlightRecorderEntry call,
          const Tensors& picked,
          const auto& indices) {
        const Packed from = Packed::input(pick(inputs, indices));
        const Packed to = Packed::output(rank_major(picked, size()));
        const std::vector<int64_t> counts(size(), from.buffer().numel());
        return launch(
            state_,
            std::move(call),
            [&](Backend& backend) {
              return backend.all_gather(to.buffer(), from.buffer(), counts);
            },
            to.unpack());
      });
}

Work Communicator::reduce_scatter_coalesced(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& inputs,
    ReduceOp reduce_op,
    std::string_view name) {
  const std::string op = "reduce_scatter_coalesced";
  check_counterparts(*state_, op, name, inputs, outputs);
  const at::NoGradGuard no_grad;
  return for_each_dtype(
      *state_,
      op,
      name,
      inputs,
      [&](FlightRecorderEntry call,
          const Tensors& picked,
          const auto& indices) {
        check_op(*state_, call, reduce_op);
        call.argument = static_cast<int64_t>(reduce_op);
        const Packed from = Packed::input(rank_major(picked, size()));
        const Packed to = Packed::output(pick(outputs, indices));
        const std::vector<int64_t> counts(size(), to.buffer().numel());
        return launch(
            state_,
            std::move(call),
            [&](Backend& backend) {
              return backend.reduce_scatter(
                  to.buffer(), from.buffer(), counts, reduce_op);
            },
            to.unpack());
      });
}

Work Communicator::broadcast_coalesced(
    const std::vector<at::Tensor>& tensors,
    int64_t root,
    std::string_view name) {
  const at::NoGradGuard no_grad;
  return for_each_dtype(
      *state_,
      "broadcast_coalesced",
      name,
      tensors,
      [&](FlightRecorderEntry call, const Tensors& picked, const auto&) {
        check_root(*state_, call, root);
        call.argument = root;
        const Packed packed = Packed::input(picked);
        return launch(
            state_,
            std::move(call),
            [&](Backend& backend) {
              return backend.broadcast(packed.buffer(), root);
            },
            packed.unpack());
      });
}

} // namespace weft::mesh
