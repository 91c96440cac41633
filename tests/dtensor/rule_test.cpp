// Every strategy of every sharding rule, run by hand on each rank's parts and
// through the dispatcher, against the op on the whole tensors. No rule is
// believed, and none escapes: the ops come from libtorch's own list.

#include <map>
#include <set>

#include <ATen/TensorUtils.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/dispatch.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "dtensor/op_plan.h"
#include "dtensor/rule.h"
#include "mesh/ledger.h"
#include "tests/dtensor/parts.h"

namespace weft::dtensor {
namespace {

using c10::IValue;
using dtensor::test::cut_all;
using dtensor::test::expect_close;
using dtensor::test::fake_mesh;
using dtensor::test::join_all;
using dtensor::test::random;
using Stack = torch::jit::Stack;

// ---- arguments --------------------------------------------------------------

// The same arguments with each tensor replaced by replace(tensor, index).
template <class Replace>
Stack map_tensors(const Stack& arguments, const Replace& replace) {
  Stack mapped;
  size_t next = 0;
  for (const auto& value : arguments) {
    if (value.isTensor() && value.toTensor().defined()) {
      mapped.emplace_back(replace(value.toTensor(), next++));
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& tensor : list) {
        tensor = replace(tensor, next++);
      }
      mapped.emplace_back(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        list.push_back(replace(*tensor, next++));
      }
      mapped.emplace_back(list);
    } else {
      mapped.push_back(value);
    }
  }
  return mapped;
}

std::vector<at::Tensor> tensors_of(const Stack& values) {
  std::vector<at::Tensor> tensors;
  map_tensors(values, [&](const at::Tensor& tensor, size_t) {
    tensors.push_back(tensor);
    return tensor;
  });
  return tensors;
}

Stack cloned(const Stack& arguments) {
  return map_tensors(
      arguments, [](const at::Tensor& t, size_t) { return t.clone(); });
}

std::vector<at::Tensor> run(const c10::OperatorHandle& op, Stack arguments) {
  op.callBoxed(&arguments);
  return tensors_of(arguments);
}

Stack complete(const c10::OperatorHandle& op, Stack arguments) {
  const auto& schema = op.schema().arguments();
  for (size_t i = arguments.size(); i < schema.size(); ++i) {
    arguments.push_back(schema[i].default_value().value_or(IValue()));
  }
  return arguments;
}

std::string describe(const Stack& arguments) {
  std::string text;
  for (const auto& value : arguments) {
    text += text.empty() ? "" : ", ";
    if (value.isTensor() && value.toTensor().defined()) {
      text += c10::str("tensor", value.toTensor().sizes());
    } else if (value.isTensorList()) {
      text += "tensors";
    } else {
      text += c10::str(value);
    }
  }
  return "(" + text + ")";
}

// ---- samples ----------------------------------------------------------------

at::Tensor t(std::vector<int64_t> sizes, uint64_t seed = 1) {
  return random(sizes, seed);
}
at::Tensor positive(std::vector<int64_t> sizes, uint64_t seed = 2) {
  return random(sizes, seed).abs().add(0.25);
}
at::Tensor mask(std::vector<int64_t> sizes, uint64_t seed = 3) {
  return random(sizes, seed).gt(0);
}
at::Tensor indices(std::vector<int64_t> sizes, int64_t below) {
  return random(sizes, 4).mul(1000).abs().to(at::kLong).remainder(below);
}
using Ints = std::vector<int64_t>;
using Tensors = std::vector<at::Tensor>;

// Arguments that no schema tells; keyed by the op's name, with or without
// overload. In-place forms use those of the op that they are a form of.
std::map<std::string, std::vector<Stack>> explicit_samples() {
  const c10::List<std::optional<at::Tensor>> picked(
      {std::optional(indices({3}, 4))});
  const std::vector<Stack> reshapes{
      {t({4, 6}), Ints{24}},
      {t({24}), Ints{4, 6}},
      {t({12, 2, 3}), Ints{12, 6}},
      {t({12, 12}), Ints{12, 4, 3}},
      {t({4, 6}), Ints{8, 3}},
      {t({3, 4}), Ints{1, 3, 4}},
      {t({5, 8}), Ints{5, 2, 4}},
      {t({5, 7}), Ints{35}},
      {t({2, 1, 12}), Ints{2, 3, 4}},
      {t({1, 6, 1}), Ints{6}},
      {t({0, 4}), Ints{4, 0}},
      {t({1}), Ints{}},
      {t({3, 8, 5}), Ints{24, 5}}};
  return {
      {"view", reshapes},
      {"_unsafe_view", reshapes},
      {"view.dtype",
       {{t({4, 6}), IValue(at::kLong)}, {t({5, 3, 2}), IValue(at::kFloat)}}},
      {"expand",
       {{t({3, 1}), Ints{3, 4}},
        {t({4}), Ints{2, 4}},
        {t({1, 5}), Ints{1, 5}},
        {t({12, 1}), Ints{-1, 3}}}},
      {"transpose.int",
       {{t({3, 5, 4}), 0, 2}, {t({3, 5, 4}), -1, 1}, {t({12, 1}), 0, 1}}},
      {"t", {{t({5, 4})}, {t({12, 1})}, {t({5})}}},
      {"permute",
       {{t({3, 5, 4}), Ints{2, 0, 1}}, {t({3, 5, 4}), Ints{-1, 0, 1}}}},
      {"unsqueeze", {{t({5, 4}), 0}, {t({5, 4}), -1}, {t({5, 4}), 1}}},
      {"squeeze.dims",
       {{t({1, 4, 1}), Ints{0, 1}},
        {t({4, 1, 3}), Ints{0, 1, 2}},
        {t({1}), Ints{0}},
        {t({5, 1}), Ints{-1}}}},
      {"select.int", {{t({4, 5}), 0, -1}, {t({4, 5}), 1, 2}, {t({3}), 0, 1}}},
      {"select_backward",
       {{t({5}), Ints{4, 5}, 0, -1}, {t({4, 3}), Ints{4, 5, 3}, 1, 2}}},
      {"slice_backward",
       {{t({3, 5}), Ints{6, 5}, 0, 1, 4, 1},
        {t({4, 2}), Ints{4, 5}, 1, 0, 4, 2}}},
      {"unbind", {{t({3, 5}), 0}, {t({4, 5}), -1}}},
      {"slice.Tensor",
       {{t({6, 5}), 0, 1, 4, 1},
        {t({6, 5}), 1, 0, 5, 1},
        {t({6, 5}), 0, -6, IValue(), 1},
        {t({6, 5}), 0, 0, std::numeric_limits<int64_t>::max(), 2},
        {t({1, 5}), 0, 0, 1, 3}}},
      {"split.Tensor", {{t({7, 5}), 3, 0}, {t({7, 5}), 2, -1}}},
      {"split_with_sizes",
       {{t({7, 5}), Ints{3, 4}, 0}, {t({7, 5}), Ints{0, 5}, 1}}},
      {"mm",
       {{t({4, 6}), t({6, 5})},
        {t({3, 1}), t({1, 2})},
        {t({5, 7}), t({7, 3})}}},
      {"bmm", {{t({4, 3, 6}), t({4, 6, 5})}, {t({1, 3, 2}), t({1, 2, 7})}}},
      {"addmm",
       {{t({5}), t({4, 6}), t({6, 5})},
        {t({4, 5}), t({4, 3}), t({3, 5}), 2, 3},
        {t({1, 5}), t({4, 6}), t({6, 5})},
        {t({4, 1}), t({4, 6}), t({6, 5})},
        {t({}), t({4, 6}), t({6, 5})}}},
      {"baddbmm",
       {{t({4, 3, 5}), t({4, 3, 6}), t({4, 6, 5})},
        {t({3, 1}), t({4, 3, 6}), t({4, 6, 5})}}},
      {"dot", {{t({12}), t({12}, 9)}, {t({5}), t({5}, 9)}}},
      {"mv", {{t({4, 6}), t({6})}, {t({5, 3}), t({3})}}},
      {"cat",
       {{Tensors{t({4, 5}), t({4, 5}, 9)}, 0},
        {Tensors{t({3, 5}), t({3, 2})}, -1},
        {Tensors{t({6}), t({0})}, 0},
        {Tensors{t({2, 3}), t({0})}, 0}}},
      {"stack",
       {{Tensors{t({4, 5}), t({4, 5}, 9)}, 0},
        {Tensors{t({3, 5}), t({3, 5}, 9)}, -1},
        {Tensors{t({}), t({}, 9)}, 0}}},
      {"index_select",
       {{t({4, 5}), 0, indices({3}, 4)},
        {t({4, 5}), -1, indices({7}, 5)},
        {t({4}), 0, indices({}, 4)}}},
      {"gather",
       {{t({4, 5}), 1, indices({4, 3}, 5)},
        {t({4, 5}), 0, indices({2, 5}, 4)},
        {t({4, 5}), 1, indices({3, 3}, 5)}}},
      {"scatter.src",
       {{t({4, 5}), 1, at::arange(5).expand({4, 5}), t({4, 5}, 9)},
        {t({4, 5}),
         0,
         at::arange(4).view({4, 1}).expand({4, 3}),
         t({4, 5}, 9)}}},
      {"scatter.value",
       {{t({4, 5}), 1, indices({4, 3}, 5), 0.5},
        {t({4, 5}), 0, indices({2, 5}, 4), 0.5}}},
      {"scatter.reduce",
       {{t({4, 5}), 1, indices({4, 5}, 5), t({4, 5}, 9), "add"}}},
      {"scatter.value_reduce",
       {{t({4, 5}), 1, indices({4, 5}, 5), 0.5, "multiply"}}},
      {"scatter_add",
       {{t({4, 5}), 1, indices({4, 5}, 5), t({4, 5}, 9)},
        {t({4, 5}), 0, indices({2, 5}, 4), t({2, 5}, 9)}}},
      {"tril", {{t({5, 4})}, {t({4, 3, 3}), -1}, {t({2, 3, 4, 5}), 1}}},
      {"triu", {{t({5, 4})}, {t({4, 3, 3}), -1}, {t({2, 3, 4, 5}), 1}}},
      {"index.Tensor", {{t({4, 5}), picked}}},
      {"new_empty", {{t({4, 6}), Ints{4, 6}}, {t({4, 6}), Ints{3}}}},
      {"new_zeros", {{t({4, 6}), Ints{4, 6}}, {t({4, 6}), Ints{3}}}},
      {"new_ones", {{t({5, 6}), Ints{5, 6}}, {t({4, 6}), Ints{3}}}},
      {"new_full", {{t({5, 6}), Ints{5, 6}, 2.5}, {t({4}), Ints{}, 2.5}}},
      {"new_empty_strided", {{t({4, 6}), Ints{4, 6}, Ints{1, 4}}}},
      {"where.self",
       {{mask({12, 5}), t({12, 5}), t({12, 5}, 9)},
        {mask({12, 1}), t({5}), t({1, 1}, 9)},
        {mask({3, 2}), t({}), t({3, 2}, 9)}}},
      {"masked_fill.Scalar",
       {{t({12, 5}), mask({12, 5}), 0.5}, {t({3, 2}), mask({2}), 0.5}}},
      {"masked_fill.Tensor", {{t({12, 5}), mask({12, 5}), t({})}}},
      {"fill.Tensor", {{t({12, 5}), t({})}, {t({3}), t({})}}},
      {"native_dropout_backward", {{t({12, 5}), mask({12, 5}), 2.0}}},
      {"_to_copy",
       {{t({12, 5})},
        {t({12, 5}), IValue(at::kFloat)},
        {t({5}).mul(3), IValue(at::kLong)},
        {indices({5, 3}, 9), IValue(at::kDouble)}}},
      {"copy",
       {{t({12, 5}), t({12, 5}, 9)},
        {t({12, 5}), t({5}, 9)},
        {indices({3, 2}, 9), t({3, 2}, 9).mul(3)}}},
  };
}

const std::vector<std::vector<int64_t>>
    kShapes{{12, 5}, {3, 2}, {1, 4}, {7}, {}, {2, 3, 4}};

bool is_tensor_type(const c10::Argument& argument) {
  auto type = argument.type();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  return type->kind() == c10::TypeKind::TensorType;
}

// What an argument that is no tensor may be.
std::vector<IValue> plain_choices(const c10::Argument& argument) {
  const auto& name = argument.name();
  const bool list = argument.type()->str().find('[') != std::string::npos;
  if (name == "dim" && !list) {
    return {IValue(0), IValue(1), IValue(-1)};
  }
  if (name == "dim" || name == "dims") {
    return {IValue(Ints{0}), IValue(Ints{-1}), IValue(Ints{1, 0}), IValue()};
  }
  if (name == "keepdim") {
    return {IValue(false), IValue(true)};
  }
  if (name == "alpha") {
    return {IValue(2)};
  }
  if (name == "input_dtype") {
    return {IValue(at::kDouble)};
  }
  if (name == "min" || name == "max") {
    return {IValue(name == "min" ? 0.25 : 0.75)};
  }
  if (argument.default_value()) {
    return {*argument.default_value()};
  }
  switch (argument.type()->kind()) {
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      return {IValue(0.5)};
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return {IValue(2)};
    case c10::TypeKind::BoolType:
      return {IValue(false)};
    case c10::TypeKind::StringType:
      return {IValue("floor")};
    default:
      return {IValue()};
  }
}

// Arguments that the schema tells: tensors of one shape (or broadcast to it),
// numbers, every dim.
std::vector<Stack> schema_samples(
    const c10::OperatorHandle& op,
    const std::vector<std::vector<int64_t>>& tensor_shapes,
    at::ScalarType dtype) {
  std::vector<Stack> samples{{}};
  size_t next = 0;
  for (const auto& argument : op.schema().arguments()) {
    std::vector<IValue> choices;
    if (is_tensor_type(argument)) {
      const auto& shape =
          tensor_shapes[std::min(next, tensor_shapes.size() - 1)];
      auto tensor = next == 0 ? t(shape, 7) : positive(shape, 7 + next);
      choices = {dtype == at::kDouble ? tensor : tensor.mul(3).to(dtype)};
      ++next;
    } else {
      choices = plain_choices(argument);
      if (dtype != at::kDouble && choices[0].isDouble()) {
        choices = {IValue(2)};
      }
    }
    std::vector<Stack> longer;
    for (const auto& sample : samples) {
      for (const auto& choice : choices) {
        longer.push_back(sample);
        longer.back().push_back(choice);
      }
    }
    samples = std::move(longer);
  }
  return samples;
}

bool writes(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return !returns.empty() && returns[0].alias_info() &&
         returns[0].alias_info()->isWrite();
}

bool runs(const c10::OperatorHandle& op, const Stack& arguments) {
  try {
    run(op, cloned(arguments));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::vector<Stack> samples_of(const c10::OperatorHandle& op) {
  static const auto table = explicit_samples();
  auto name = op.schema().name().substr(6);
  if (name.ends_with('_')) {
    name.pop_back();
  }
  for (const auto& key : {name + "." + op.schema().overload_name(), name}) {
    if (const auto it = table.find(key); it != table.end()) {
      std::vector<Stack> samples;
      for (const auto& arguments : it->second) {
        auto sample = complete(op, arguments);
        // An in-place form cannot write to a tensor that is broadcast.
        if (!writes(op) || runs(op, sample)) {
          samples.push_back(std::move(sample));
        }
      }
      return samples;
    }
  }
  std::vector<std::vector<std::vector<int64_t>>> shapes;
  for (const auto& shape : kShapes) {
    shapes.push_back({shape});
  }
  // Ops along a dim do not broadcast, and do not always say so.
  if (!op.schema().argumentIndexWithName("dim")) {
    shapes.push_back({{12, 5}, {1, 5}});
    shapes.push_back({{12, 5}, {5}});
    shapes.push_back({{3, 2}, {}});
    shapes.push_back({{1, 5}, {12, 1}});
  }
  for (const auto dtype : {at::kDouble, at::kLong, at::kBool}) {
    std::vector<Stack> samples;
    for (const auto& each : shapes) {
      for (auto& sample : schema_samples(op, each, dtype)) {
        if (runs(op, sample)) {
          samples.push_back(std::move(sample));
        }
      }
    }
    if (!samples.empty()) {
      return samples;
    }
  }
  return {};
}

// ---- ops --------------------------------------------------------------------

bool has_out_argument(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const auto& argument) {
    return argument.is_out();
  });
}

// Ops with a kernel that is not composed of other ops.
bool runs_on_cpu(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(DispatchKey::CPU) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(
             DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// What the dispatcher sends through rules.
std::vector<c10::OperatorHandle> ops_with_rules() {
  ensure_dispatch_registered();
  std::vector<c10::OperatorHandle> ops;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (name.name.starts_with("aten::") && op && op->hasSchema() &&
        runs_on_cpu(*op) && find_rule(*op) && !has_out_argument(op->schema())) {
      ops.push_back(*op);
    }
  }
  return ops;
}

std::string full_name(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  return schema.name() +
         (schema.overload_name().empty() ? "" : "." + schema.overload_name());
}

// ---- meshes of several dims -------------------------------------------------

struct Grid {
  std::vector<int64_t> shape;
  /// One rank's view each.
  std::vector<mesh::DeviceMesh> meshes;

  explicit Grid(const std::vector<int64_t>& s) : shape(s) {
    const std::vector<std::string> names{"dp", "tp"};
    const int64_t n = c10::multiply_integers(s);
    for (int64_t rank = 0; rank < n; ++rank) {
      meshes.push_back(fake_mesh(
          rank,
          s,
          {names.begin(), names.begin() + static_cast<int64_t>(s.size())}));
    }
  }
};

// ---- the check --------------------------------------------------------------

int failures() {
  return ::testing::UnitTest::GetInstance()
      ->current_test_info()
      ->result()
      ->total_part_count();
}

class OpCheck {
 public:
  OpCheck(const c10::OperatorHandle& op, Stack arguments, const Grid& grid)
      : op_(op),
        rule_(*find_rule(op)),
        arguments_(std::move(arguments)),
        tensors_(tensors_of(arguments_)),
        grid_(grid),
        expected_(run(op, cloned(arguments_))) {}

  void check() {
    for (const auto& wholes : input_placements()) {
      infer(wholes);
      std::vector<std::vector<Strategy>> options;
      for (size_t d = 0; d < grid_.shape.size(); ++d) {
        options.push_back(strategies(static_cast<int64_t>(d), wholes));
      }
      std::vector<Strategy> chosen(options.size());
      for_each_combination(options, chosen, 0);
    }
  }

 private:
  // Where the inputs lie when the rule is asked: only rules that look at no
  // values care.
  std::vector<Placement> input_placements() const {
    std::vector<Placement> placements{Replicate()};
    if (rule_.value_free) {
      for (int64_t d = 0; d < tensors_[0].dim(); ++d) {
        placements.push_back(Shard(d));
      }
      placements.push_back(Partial());
    }
    return placements;
  }

  // The call as the dispatcher would see it on one rank.
  OpCall call_with(const Stack& dtensors, const DTensorSpec& common) const {
    OpCall call{op_, dtensors, {}, common};
    for (size_t i = 0; i < dtensors.size(); ++i) {
      int64_t k = 0;
      const bool list =
          dtensors[i].isTensorList() || dtensors[i].isOptionalTensorList();
      for (const auto& tensor : tensors_of({dtensors[i]})) {
        call.tensors.push_back({i, list ? k++ : -1, tensor, spec_of(tensor)});
      }
    }
    return call;
  }

  Stack wrap(
      size_t rank,
      const std::vector<Placements>& placements,
      const std::vector<std::vector<at::Tensor>>& parts) const {
    return map_tensors(arguments_, [&](const at::Tensor& whole, size_t i) {
      return make_dtensor(
          parts[i][rank].clone(),
          DTensorSpec(grid_.meshes[rank], placements[i]),
          whole.sizes(),
          whole.strides());
    });
  }

  std::vector<std::vector<at::Tensor>> parts_of(
      const std::vector<Placements>& placements) const {
    std::vector<std::vector<at::Tensor>> parts;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      parts.push_back(cut_all(tensors_[i], placements[i], grid_.shape));
    }
    return parts;
  }

  // The planner's idea of the outputs, against the real ones.
  void infer(const Placement& where) {
    const std::vector<Placements> placements(
        tensors_.size(), Placements(grid_.shape.size(), where));
    const auto dtensors = wrap(0, placements, parts_of(placements));
    const DTensorSpec common(grid_.meshes[0], placements[0]);
    metas_.clear();
    if (writes(op_)) {
      metas_.push_back(
          {tensors_[0].sizes().vec(), tensors_[0].strides().vec()});
      return;
    }
    const auto plan = make_op_plan(call_with(dtensors, common));
    ASSERT_EQ(plan.outputs.size(), expected_.size());
    for (size_t i = 0; i < expected_.size(); ++i) {
      const auto& output = plan.outputs[i];
      EXPECT_EQ(c10::IntArrayRef(output.sizes), expected_[i].sizes());
      for (int64_t d = 0; d < expected_[i].dim(); ++d) {
        if (expected_[i].numel() > 0 && expected_[i].size(d) > 1) {
          EXPECT_EQ(output.strides[d], expected_[i].stride(d)) << "dim " << d;
        }
      }
      metas_.push_back({output.sizes, output.strides});
    }
  }

  std::vector<Strategy> strategies(int64_t mesh_dim, const Placement& where)
      const {
    const std::vector<Placements> placements(
        tensors_.size(), Placements(grid_.shape.size(), where));
    const auto dtensors = wrap(0, placements, parts_of(placements));
    const DTensorSpec common(grid_.meshes[0], placements[0]);
    const StrategyContext context{
        mesh_dim,
        grid_.shape[mesh_dim],
        c10::multiply_integers(grid_.shape),
        metas_};
    auto list = rule_.strategies(call_with(dtensors, common), context);
    list.push_back({{Replicate()}, Placements(tensors_.size(), Replicate())});
    return list;
  }

  void for_each_combination(
      const std::vector<std::vector<Strategy>>& options,
      std::vector<Strategy>& chosen,
      size_t mesh_dim) {
    if (mesh_dim == options.size()) {
      check_strategy(chosen);
      return;
    }
    for (const auto& option : options[mesh_dim]) {
      chosen[mesh_dim] = option;
      for_each_combination(options, chosen, mesh_dim + 1);
    }
  }

  void check_strategy(const std::vector<Strategy>& chosen) {
    const int before = failures();
    std::vector<Placements> inputs(tensors_.size());
    std::vector<Placements> outputs(expected_.size());
    for (const auto& strategy : chosen) {
      ASSERT_EQ(strategy.inputs.size(), tensors_.size());
      for (size_t i = 0; i < inputs.size(); ++i) {
        inputs[i].push_back(strategy.inputs[i]);
      }
      for (size_t i = 0; i < outputs.size(); ++i) {
        outputs[i].push_back(
            strategy.outputs.size() == 1 ? strategy.outputs[0]
                                         : strategy.outputs.at(i));
      }
      // A value cannot be written where a pending sum lies, and the reverse.
      if (writes(op_) && strategy.outputs[0] != strategy.inputs[0]) {
        return;
      }
    }
    std::string text;
    for (const auto& placements : inputs) {
      text += to_string(placements) + " ";
    }
    text += "-> " + (outputs.empty() ? "" : to_string(outputs[0]));
    SCOPED_TRACE(text);
    const auto parts = parts_of(inputs);
    try {
      run_by_hand(inputs, outputs, parts);
      run_dispatched(inputs, parts);
    } catch (const c10::Error& error) {
      ADD_FAILURE() << error.what_without_backtrace();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (failures() > before) {
      throw std::runtime_error("one failure of an op is enough");
    }
  }

  // Outputs that nobody initialised have sizes, but no values to compare.
  bool has_values() const {
    return op_.schema().name().find("empty") == std::string::npos;
  }

  void compare(
      const std::vector<std::vector<at::Tensor>>& results,
      const std::vector<Placements>& outputs,
      const char* how) {
    for (size_t i = 0; i < expected_.size(); ++i) {
      std::vector<at::Tensor> of_output;
      for (const auto& rank : results) {
        ASSERT_EQ(rank.size(), expected_.size());
        of_output.push_back(has_values() ? rank[i] : at::zeros_like(rank[i]));
      }
      const auto joined =
          join_all(of_output, outputs[i], grid_.shape, expected_[i].sizes());
      if (has_values()) {
        const bool narrow = joined.scalar_type() == at::kFloat;
        expect_close(joined, expected_[i], narrow ? 1e-5 : 1e-9, how);
      }
    }
  }

  // The rule, taken at its word.
  void run_by_hand(
      const std::vector<Placements>& inputs,
      const std::vector<Placements>& outputs,
      const std::vector<std::vector<at::Tensor>>& parts) {
    std::vector<std::vector<at::Tensor>> results;
    for (size_t rank = 0; rank < grid_.meshes.size(); ++rank) {
      auto locals = map_tensors(arguments_, [&](const at::Tensor&, size_t i) {
        return parts[i][rank].clone();
      });
      if (rule_.localize) {
        const auto dtensors = wrap(rank, inputs, parts);
        const DTensorSpec common(grid_.meshes[rank], inputs[0]);
        std::vector<std::vector<int64_t>> sizes;
        for (size_t i = 0; i < metas_.size(); ++i) {
          sizes.push_back(
              local_box(common.with(outputs[i]), metas_[i].sizes).sizes);
        }
        for (auto& [argument, value] :
             rule_.localize(call_with(dtensors, common), sizes)) {
          locals[argument] = value;
        }
      }
      results.push_back(run(op_, std::move(locals)));
    }
    compare(results, outputs, "by hand");
  }

  // The same inputs through the dispatcher, which may know a better strategy
  // but has no reason to move anything.
  void run_dispatched(
      const std::vector<Placements>& inputs,
      const std::vector<std::vector<at::Tensor>>& parts) {
    std::vector<std::vector<at::Tensor>> results;
    std::vector<Placements> outputs;
    for (size_t rank = 0; rank < grid_.meshes.size(); ++rank) {
      auto& locals = results.emplace_back();
      outputs.clear();
      for (const auto& output : run(op_, wrap(rank, inputs, parts))) {
        ASSERT_TRUE(is_dtensor(output));
        locals.push_back(dtensor_impl(output)->local());
        outputs.push_back(spec_of(output).placements());
        const auto& expected = expected_[outputs.size() - 1];
        ASSERT_EQ(output.sizes(), expected.sizes());
        ASSERT_EQ(output.scalar_type(), expected.scalar_type());
      }
      for (int64_t d = 0; d < grid_.meshes[rank].ndim(); ++d) {
        EXPECT_THAT(
            grid_.meshes[rank].group(d).ledger().counts(),
            ::testing::IsEmpty());
        grid_.meshes[rank].group(d).ledger().reset();
      }
    }
    compare(results, outputs, "dispatched");
  }

  const c10::OperatorHandle& op_;
  const Rule& rule_;
  Stack arguments_;
  std::vector<at::Tensor> tensors_;
  const Grid& grid_;
  std::vector<at::Tensor> expected_;
  std::vector<OutputMeta> metas_;
};

bool is_refused_in_place(const c10::OperatorHandle& op) {
  return writes(op) && find_rule(op)->view;
}

void check_op(const c10::OperatorHandle& op, const std::vector<Grid>& grids) {
  SCOPED_TRACE(full_name(op));
  const auto samples = samples_of(op);
  EXPECT_FALSE(samples.empty()) << "no sample of this op runs";
  for (const auto& sample : samples) {
    SCOPED_TRACE(describe(sample));
    for (const auto& grid : grids) {
      SCOPED_TRACE("mesh " + grid.meshes[0].to_string());
      try {
        OpCheck(op, sample, grid).check();
      } catch (const c10::Error& error) {
        ADD_FAILURE() << error.what_without_backtrace();
        return;
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        return;
      }
    }
  }
}

TEST(Rule, EveryStrategyEqualsOneRank) {
  at::set_num_threads(1);
  std::vector<Grid> grids;
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{2}, {3}, {4}, {2, 2}}) {
    grids.emplace_back(shape);
  }
  const auto ops = ops_with_rules();
  EXPECT_GT(ops.size(), 200U);
  for (const auto& op : ops) {
    if (!is_refused_in_place(op)) {
      check_op(op, grids);
    }
  }
}

TEST(Rule, EveryRuleIsReached) {
  std::set<const Rule*> reached;
  for (const auto& op : ops_with_rules()) {
    reached.insert(find_rule(op));
  }
  for (const auto& [name, rule] : all_rules()) {
    EXPECT_TRUE(reached.contains(rule)) << name;
  }
}

} // namespace
} // namespace weft::dtensor
