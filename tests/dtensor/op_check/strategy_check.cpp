#include "tests/dtensor/op_check/strategy_check.h"

#include <algorithm>

#include <torch/torch.h>

#include "dtensor/dtensor_impl.h"
#include "dtensor/op_plan.h"
#include "dtensor/rule.h"
#include "tests/dtensor/op_check/parts_of_op.h"
#include "tests/dtensor/parts.h"

namespace weft::dtensor::check {
namespace {

constexpr int64_t kFailuresPerOp = 3;

class StrategyCheck {
 public:
  StrategyCheck(const Sample& sample, const Grid& grid, Report& report)
      : sample_(sample),
        grid_(grid),
        report_(report),
        rule_(*find_rule(sample.op)),
        tensors_(tensors_of(sample.arguments)),
        expected_(call(sample.op, cloned(sample.arguments))) {}

  void check() {
    for (const auto& where : input_placements()) {
      try {
        infer(where);
        std::vector<std::vector<Strategy>> options;
        for (size_t d = 0; d < grid_.shape.size(); ++d) {
          options.push_back(strategies(static_cast<int64_t>(d), where));
        }
        std::vector<Strategy> chosen(options.size());
        for_each_combination(options, chosen, 0);
      } catch (const std::exception& error) {
        fail("", error);
      }
    }
  }

 private:
  void fail(const std::string& placements, const std::exception& error) {
    const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
    report_.fail(
        {"strategies",
         sample_.name(),
         sample_.where,
         sample_.text + " on " + grid_.meshes[0].to_string() + ": " +
             placements,
         c10_error ? c10_error->what_without_backtrace() : error.what()});
  }

  bool has_failed() const {
    return report_.failures_of("strategies", sample_.name()) >= kFailuresPerOp;
  }

  // Where the inputs lie when the rule is asked: only rules that look at no
  // values care.
  std::vector<Placement> input_placements() const {
    std::vector<Placement> placements{Replicate()};
    if (rule_.value_free && !tensors_.empty()) {
      for (int64_t d = 0; d < tensors_[0].dim(); ++d) {
        placements.push_back(Shard(d));
      }
      placements.push_back(Partial());
    }
    return placements;
  }

  // The call as the dispatcher would see it on one rank.
  OpCall call_with(const Stack& dtensors, const DTensorSpec& common) const {
    OpCall call{sample_.op, dtensors, {}, common};
    for (size_t i = 0; i < dtensors.size(); ++i) {
      const bool list =
          dtensors[i].isTensorList() || dtensors[i].isOptionalTensorList();
      if (dtensors[i].isOptionalTensorList()) {
        const auto tensors = dtensors[i].toOptionalTensorVector();
        for (size_t k = 0; k < tensors.size(); ++k) {
          if (tensors[k]) {
            call.tensors.push_back(
                {i,
                 static_cast<int64_t>(k),
                 *tensors[k],
                 spec_of(*tensors[k])});
          }
        }
        continue;
      }
      int64_t k = 0;
      for (const auto& tensor : tensors_of(dtensors[i])) {
        call.tensors.push_back({i, list ? k++ : -1, tensor, spec_of(tensor)});
      }
    }
    return call;
  }

  using Parts = std::vector<std::vector<at::Tensor>>;

  Stack wrap(
      size_t rank,
      const std::vector<Placements>& placements,
      const Parts& parts) const {
    return map_tensors(
        sample_.arguments, [&](const at::Tensor& whole, size_t i) {
          return make_dtensor(
              parts[i][rank].clone(),
              DTensorSpec(grid_.meshes[rank], placements[i]),
              whole.sizes(),
              whole.strides());
        });
  }

  Stack wrap_all(const Placement& where) const {
    std::vector<Placements> placements;
    for (const auto& tensor : tensors_) {
      const bool fits = !where.is_shard() || where.tensor_dim() < tensor.dim();
      placements.emplace_back(grid_.shape.size(), fits ? where : Replicate());
    }
    return wrap(0, placements, parts_of(placements));
  }

  Parts parts_of(const std::vector<Placements>& placements) const {
    Parts parts;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      parts.push_back(test::cut_all(tensors_[i], placements[i], grid_.shape));
    }
    return parts;
  }

  DTensorSpec common_of(const Stack& dtensors) const {
    const auto tensors = tensors_of(dtensors);
    return tensors.empty() ? DTensorSpec() : spec_of(tensors[0]);
  }

  // The planner's idea of the outputs, against the real ones.
  void infer(const Placement& where) {
    metas_.clear();
    if (is_inplace(sample_.op.schema())) {
      for (const auto& written : expected_) {
        metas_.push_back({written.sizes().vec(), written.strides().vec()});
      }
      return;
    }
    const auto dtensors = wrap_all(where);
    const auto plan = make_op_plan(call_with(dtensors, common_of(dtensors)));
    TORCH_CHECK(
        plan.outputs.size() == expected_.size(),
        "the rule says ",
        plan.outputs.size(),
        " outputs, one rank makes ",
        expected_.size());
    for (size_t i = 0; i < expected_.size(); ++i) {
      const auto& output = plan.outputs[i];
      if (expected_[i].defined()) {
        compare_meta(output, expected_[i]);
      }
      metas_.push_back({output.sizes, output.strides});
    }
  }

  static void compare_meta(
      const OpPlan::Output& output,
      const at::Tensor& expected) {
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

  std::vector<Strategy> strategies(int64_t mesh_dim, const Placement& where)
      const {
    const auto dtensors = wrap_all(where);
    const StrategyContext context{
        mesh_dim,
        grid_.shape[mesh_dim],
        c10::multiply_integers(grid_.shape),
        metas_};
    auto list =
        rule_.strategies(call_with(dtensors, common_of(dtensors)), context);
    list.push_back({{Replicate()}, Placements(tensors_.size(), Replicate())});
    return list;
  }

  void for_each_combination(
      const std::vector<std::vector<Strategy>>& options,
      std::vector<Strategy>& chosen,
      size_t mesh_dim) {
    if (has_failed()) {
      return;
    }
    if (mesh_dim == options.size()) {
      check_strategy(chosen);
      return;
    }
    for (const auto& option : options[mesh_dim]) {
      chosen[mesh_dim] = option;
      for_each_combination(options, chosen, mesh_dim + 1);
    }
  }

  static Placement output_of(const Strategy& strategy, size_t i) {
    return strategy.outputs.size() == 1 ? strategy.outputs[0]
                                        : strategy.outputs.at(i);
  }

  // A value cannot be written where a pending sum lies, and the reverse.
  bool can_write(const Strategy& strategy) const {
    const auto& schema = sample_.op.schema();
    if (!is_inplace(schema)) {
      return true;
    }
    size_t tensor = 0;
    size_t output = 0;
    for (size_t i = 0; i < sample_.arguments.size(); ++i) {
      for (size_t k = tensors_of(sample_.arguments[i]).size(); k > 0; --k) {
        if (is_written(schema, i) &&
            strategy.inputs.at(tensor) != output_of(strategy, output++)) {
          return false;
        }
        ++tensor;
      }
    }
    return true;
  }

  void check_strategy(const std::vector<Strategy>& chosen) {
    std::vector<Placements> inputs(tensors_.size());
    std::vector<Placements> outputs(expected_.size());
    std::string text;
    for (const auto& strategy : chosen) {
      if (!can_write(strategy)) {
        return;
      }
      text += (text.empty() ? "" : " | ") +
              describe(strategy.inputs, strategy.outputs);
    }
    ++report_.cases["strategies"];
    try {
      for (const auto& strategy : chosen) {
        TORCH_CHECK(
            strategy.inputs.size() == tensors_.size(),
            "the strategy places ",
            strategy.inputs.size(),
            " inputs of ",
            tensors_.size());
        for (size_t i = 0; i < inputs.size(); ++i) {
          inputs[i].push_back(strategy.inputs[i]);
        }
        for (size_t i = 0; i < outputs.size(); ++i) {
          outputs[i].push_back(output_of(strategy, i));
        }
      }
      run_by_hand(inputs, outputs, parts_of(inputs));
    } catch (const std::exception& error) {
      fail(text, error);
      return;
    }
    if (chosen.size() == 1) {
      record(chosen[0], text);
    }
  }

  void record(const Strategy& strategy, const std::string& text) {
    auto& result = report_.ops[sample_.name()];
    result.strategies.insert(text);
    const auto cuts = [](const Placement& p) { return p.is_shard(); };
    if (std::ranges::any_of(strategy.inputs, cuts) ||
        std::ranges::any_of(strategy.outputs, cuts)) {
      result.cutting.insert(text);
    }
  }

  Stack local_arguments(
      size_t rank,
      const std::vector<Placements>& inputs,
      const std::vector<Placements>& outputs,
      const Parts& parts) const {
    auto locals = map_tensors(
        sample_.arguments,
        [&](const at::Tensor&, size_t i) { return parts[i][rank].clone(); });
    if (!rule_.localize) {
      return locals;
    }
    const auto dtensors = wrap(rank, inputs, parts);
    const auto call = call_with(dtensors, common_of(dtensors));
    LocalCall local{call, {}, {}, {}, {}};
    for (size_t i = 0; i < inputs.size(); ++i) {
      local.input_specs.emplace_back(grid_.meshes[rank], inputs[i]);
      local.inputs.push_back(
          local_box(local.input_specs[i], tensors_[i].sizes()));
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      local.output_specs.emplace_back(grid_.meshes[rank], outputs[i]);
      local.outputs.push_back(
          local_box(local.output_specs[i], metas_[i].sizes));
    }
    for (auto& [argument, value] : rule_.localize(local)) {
      locals[argument] = value;
    }
    return locals;
  }

  void run_by_hand(
      const std::vector<Placements>& inputs,
      const std::vector<Placements>& outputs,
      const Parts& parts) {
    Parts results;
    for (size_t rank = 0; rank < grid_.meshes.size(); ++rank) {
      results.push_back(
          call(sample_.op, local_arguments(rank, inputs, outputs, parts)));
      TORCH_CHECK(results.back().size() == expected_.size());
    }
    for (size_t i = 0; i < expected_.size(); ++i) {
      if (!expected_[i].defined()) {
        continue;
      }
      std::vector<at::Tensor> of_output;
      for (const auto& rank : results) {
        of_output.push_back(
            has_values(sample_.op) ? rank[i] : at::zeros_like(rank[i]));
      }
      const auto joined =
          join_parts(of_output, outputs[i], grid_.shape, expected_[i].sizes());
      if (has_values(sample_.op)) {
        require_close(joined, expected_[i], "by hand");
      }
    }
  }

  const Sample& sample_;
  const Grid& grid_;
  Report& report_;
  const Rule& rule_;
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> expected_;
  std::vector<OutputMeta> metas_;
};

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

void check_strategies(const Sample& sample, const Grid& grid, Report& report) {
  const Rule* rule = find_rule(sample.op);
  const bool resized = rule && rule->view && is_inplace(sample.op.schema());
  if (rule && rule->strategies && !resized) {
    StrategyCheck(sample, grid, report).check();
  }
}

} // namespace weft::dtensor::check
