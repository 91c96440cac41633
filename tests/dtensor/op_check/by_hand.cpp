#include "tests/dtensor/op_check/by_hand.h"

#include <algorithm>

#include <torch/torch.h>

#include "dtensor/dispatch/op_plan.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "tests/dtensor/op_check/parts_of_op.h"
#include "tests/dtensor/parts.h"

namespace weft::dtensor::check {
namespace {

void compare_meta(const OpPlan::Output& output, const at::Tensor& expected) {
  TORCH_CHECK(
      c10::IntArrayRef(output.sizes) == expected.sizes(),
      "the rule says sizes ",
      output.sizes,
      ", one rank makes ",
      expected.sizes());
  for (int64_t d = 0; d < expected.dim(); ++d) {
    TORCH_CHECK(
        expected.numel() == 0 || expected.size(d) == 1 ||
            output.strides.at(d) == expected.stride(d),
        "the rule says strides ",
        output.strides,
        ", one rank makes ",
        expected.strides(),
        " of sizes ",
        expected.sizes());
  }
}

bool is_narrow(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_floating_point() &&
         tensor.scalar_type() != at::kDouble;
}

// What the op makes in doubles, rounded once; nothing if no input is narrow.
std::vector<at::Tensor> true_values(
    const c10::OperatorHandle& op,
    const Stack& arguments,
    const std::vector<at::Tensor>& expected) {
  if (std::ranges::none_of(tensors_of(arguments), is_narrow)) {
    return {};
  }
  try {
    auto values = call(
        op, map_tensors(arguments, [](const at::Tensor& tensor, size_t) {
          return is_narrow(tensor) ? tensor.to(at::kDouble) : tensor.clone();
        }));
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].defined()) {
        values[i] = values[i].to(expected.at(i).scalar_type());
      }
    }
    return values;
  } catch (const std::exception&) {
    return {};
  }
}

} // namespace

Grid::Grid(const std::vector<int64_t>& s) : shape(s) {
  const std::vector<std::string> names{"dp", "tp"};
  const int64_t n = c10::multiply_integers(s);
  for (int64_t rank = 0; rank < n; ++rank) {
    meshes.push_back(test::fake_mesh(
        rank,
        s,
        {names.begin(), names.begin() + static_cast<int64_t>(s.size())}));
  }
}

Placement output_of(const Strategy& strategy, size_t i) {
  return strategy.outputs.size() == 1 ? strategy.outputs[0]
                                      : strategy.outputs.at(i);
}

ByHand::ByHand(const Sample& sample, Stack arguments, const Grid& grid)
    : sample_(sample),
      grid_(grid),
      rule_(*find_rule(sample.op)),
      arguments_(std::move(arguments)),
      tensors_(tensors_of(arguments_)),
      expected_(call(sample.op, cloned(arguments_))),
      truth_(true_values(sample.op, arguments_, expected_)) {}

// The call as the dispatcher would see it on one rank.
OpCall ByHand::call_with(const Stack& dtensors) const {
  OpCall result{sample_.op, dtensors, {}, DTensorSpec()};
  const auto add = [&](size_t i, int64_t k, const at::Tensor& tensor) {
    result.tensors.push_back({i, k, tensor, spec_of(tensor)});
  };
  for (size_t i = 0; i < dtensors.size(); ++i) {
    const auto& value = dtensors[i];
    if (value.isTensor() && value.toTensor().defined()) {
      add(i, -1, value.toTensor());
    } else if (value.isTensorList()) {
      const auto list = value.toTensorVector();
      for (size_t k = 0; k < list.size(); ++k) {
        add(i, static_cast<int64_t>(k), list[k]);
      }
    } else if (value.isOptionalTensorList()) {
      const auto list = value.toOptionalTensorVector();
      for (size_t k = 0; k < list.size(); ++k) {
        if (list[k]) {
          add(i, static_cast<int64_t>(k), *list[k]);
        }
      }
    }
  }
  if (!result.tensors.empty()) {
    result.common = *result.tensors[0].spec;
  }
  return result;
}

Stack ByHand::wrap(
    size_t rank,
    const std::vector<Placements>& placements,
    const Parts& parts) const {
  return map_tensors(arguments_, [&](const at::Tensor& whole, size_t i) {
    return make_dtensor(
        parts[i][rank].clone(),
        DTensorSpec(grid_.meshes[rank], placements[i]),
        whole.sizes(),
        whole.strides());
  });
}

Stack ByHand::wrap_all(const Placement& where) const {
  std::vector<Placements> placements;
  for (const auto& tensor : tensors_) {
    const bool fits = !where.is_shard() || where.tensor_dim() < tensor.dim();
    placements.emplace_back(grid_.shape.size(), fits ? where : Replicate());
  }
  return wrap(0, placements, cut(placements));
}

Parts ByHand::cut(const std::vector<Placements>& inputs) const {
  Parts parts;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    parts.push_back(cut_parts(tensors_[i], inputs[i], grid_.shape));
  }
  return parts;
}

std::vector<OutputMeta> ByHand::infer(const Placement& where) const {
  std::vector<OutputMeta> metas;
  if (is_inplace(sample_.op.schema())) {
    for (const auto& written : expected_) {
      metas.push_back({written.sizes().vec(), written.strides().vec()});
    }
    return metas;
  }
  const auto dtensors = wrap_all(where);
  const auto plan = make_op_plan(call_with(dtensors));
  TORCH_CHECK(
      plan.outputs.size() == expected_.size(),
      "the rule says ",
      plan.outputs.size(),
      " outputs, one rank makes ",
      expected_.size());
  for (size_t i = 0; i < expected_.size(); ++i) {
    if (expected_[i].defined()) {
      compare_meta(plan.outputs[i], expected_[i]);
    }
    metas.push_back({plan.outputs[i].sizes, plan.outputs[i].strides});
  }
  return metas;
}

std::vector<Strategy> ByHand::strategies(
    int64_t mesh_dim,
    const Placement& where,
    const std::vector<OutputMeta>& metas) const {
  const auto dtensors = wrap_all(where);
  const StrategyContext context{
      mesh_dim,
      grid_.shape[mesh_dim],
      c10::multiply_integers(grid_.shape),
      metas};
  std::vector<Strategy> list;
  if (rule_.strategies) {
    list = rule_.strategies(call_with(dtensors), context);
  }
  list.push_back({{Replicate()}, Placements(tensors_.size(), Replicate())});
  return list;
}

Stack ByHand::local_arguments(
    size_t rank,
    const std::vector<Placements>& inputs,
    const std::vector<Placements>& outputs,
    const std::vector<OutputMeta>& metas,
    const Parts& parts) const {
  auto locals = map_tensors(arguments_, [&](const at::Tensor&, size_t i) {
    return parts[i][rank].clone();
  });
  if (!rule_.localize) {
    return locals;
  }
  const auto dtensors = wrap(rank, inputs, parts);
  const auto op_call = call_with(dtensors);
  LocalCall local{op_call, {}, {}, {}, {}};
  for (size_t i = 0; i < inputs.size(); ++i) {
    local.input_specs.emplace_back(grid_.meshes[rank], inputs[i]);
    local.inputs.push_back(
        local_box(local.input_specs[i], tensors_[i].sizes()));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    local.output_specs.emplace_back(grid_.meshes[rank], outputs[i]);
    local.outputs.push_back(
        expected_[i].defined()
            ? local_box(local.output_specs[i], metas[i].sizes)
            : LocalBox());
  }
  for (auto& [argument, value] : rule_.localize(local)) {
    locals[argument] = value;
  }
  return locals;
}

Parts ByHand::run(
    const std::vector<Placements>& inputs,
    const std::vector<Placements>& outputs,
    const std::vector<OutputMeta>& metas,
    const Parts& parts) const {
  Parts results;
  for (size_t rank = 0; rank < grid_.meshes.size(); ++rank) {
    results.push_back(
        call(sample_.op, local_arguments(rank, inputs, outputs, metas, parts)));
    TORCH_CHECK(
        results.back().size() == expected_.size(),
        "rank ",
        rank,
        " makes ",
        results.back().size(),
        " tensors, one rank ",
        expected_.size());
  }
  return results;
}

void ByHand::compare(
    const Parts& results,
    size_t i,
    const Placements& placements) const {
  if (!expected_[i].defined()) {
    return;
  }
  std::vector<at::Tensor> parts;
  for (const auto& rank : results) {
    TORCH_CHECK(rank[i].defined(), "output ", i, " is missing");
    parts.push_back(has_values(sample_.op) ? rank[i] : at::zeros_like(rank[i]));
  }
  const auto joined =
      join_parts(parts, placements, grid_.shape, expected_[i].sizes());
  if (!has_values(sample_.op) ||
      (!truth_.empty() && is_close(joined, truth_[i]))) {
    return;
  }
  require_close(joined, expected_[i], c10::str("output ", i).c_str());
}

} // namespace weft::dtensor::check
