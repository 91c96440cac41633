#include "tests/dtensor/op_check/strategy_check.h"

#include <algorithm>
#include <optional>
#include <set>

#include <torch/torch.h>

#include "tests/dtensor/op_check/parts_of_op.h"

namespace weft::dtensor::check {
namespace {

class StrategyCheck {
 public:
  StrategyCheck(
      const Sample& sample,
      const Grid& grid,
      const StrategyOptions& options,
      Report& report)
      : sample_(sample),
        options_(options),
        report_(report),
        hand_(sample, sample.arguments, grid),
        written_(written_tensors(sample.op, sample.arguments)) {}

  void check() {
    for (const auto& where : input_placements()) {
      try {
        metas_ = hand_.infer(where);
        std::vector<std::vector<Strategy>> options;
        for (size_t d = 0; d < hand_.grid().shape.size(); ++d) {
          options.push_back(
              hand_.strategies(static_cast<int64_t>(d), where, metas_));
        }
        if (options.size() == 1 && options_.other_cuts) {
          add_other_cuts(options[0]);
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
    report_.fail(
        {"strategies",
         sample_.name(),
         sample_.where,
         sample_.text + " on " + hand_.grid().meshes[0].to_string() + ": " +
             placements,
         message_of(error)});
  }

  bool has_failed() const {
    return report_.failures_of("strategies", sample_.name()) >= kFailuresPerOp;
  }

  // Where the inputs lie when the rule is asked: only rules that look at no
  // values care.
  std::vector<Placement> input_placements() const {
    std::vector<Placement> placements{Replicate()};
    if (hand_.rule().value_free && !hand_.tensors().empty()) {
      for (int64_t d = 0; d < hand_.tensors()[0].dim(); ++d) {
        placements.push_back(Shard(d));
      }
      placements.push_back(Partial());
    }
    return placements;
  }

  // Strategies that hold for any cut, with cuts that are not the chunk rule's:
  // most rows on the last rank, all of them on the first, two stripes each.
  void add_other_cuts(std::vector<Strategy>& options) const {
    const size_t count = options.size();
    for (size_t i = 0; i < count; ++i) {
      const auto size = cut_size(options[i]);
      if (options[i].chunked_only || !size) {
        continue;
      }
      const auto n = static_cast<size_t>(hand_.grid().shape[0]);
      std::vector<int64_t> last(n);
      last.front() = std::min<int64_t>(1, *size);
      last.back() += *size - last.front();
      std::vector<int64_t> first(n);
      first.front() = *size;
      options.push_back(with_cut(options[i], Shard(0, last)));
      options.push_back(with_cut(options[i], Shard(0, first)));
      if (!hand_.rule().localize) {
        options.push_back(with_cut(options[i], StridedShard(0, 2)));
      }
    }
  }

  // The size of the dims that a strategy cuts, if it is one.
  std::optional<int64_t> cut_size(const Strategy& strategy) const {
    std::set<int64_t> sizes;
    for (size_t i = 0; i < strategy.inputs.size(); ++i) {
      if (strategy.inputs[i].is_shard()) {
        sizes.insert(
            hand_.tensors().at(i).size(strategy.inputs[i].tensor_dim()));
      }
    }
    for (size_t i = 0; i < metas_.size(); ++i) {
      const auto placement = output_of(strategy, i);
      if (placement.is_shard() && hand_.expected()[i].defined()) {
        sizes.insert(metas_[i].sizes.at(placement.tensor_dim()));
      }
    }
    return sizes.size() == 1 ? std::optional(*sizes.begin()) : std::nullopt;
  }

  static Strategy with_cut(Strategy strategy, const Placement& cut) {
    for (auto* placements : {&strategy.inputs, &strategy.outputs}) {
      for (auto& placement : *placements) {
        if (placement.is_shard()) {
          placement = cut.with_tensor_dim(placement.tensor_dim());
        }
      }
    }
    return strategy;
  }

  void for_each_combination(
      const std::vector<std::vector<Strategy>>& options,
      std::vector<Strategy>& chosen,
      size_t mesh_dim) {
    if (has_failed()) {
      return;
    }
    if (mesh_dim == options.size()) {
      if (options_.seed++ % options_.stride == 0) {
        check_strategy(chosen);
      }
      return;
    }
    for (const auto& option : options[mesh_dim]) {
      chosen[mesh_dim] = option;
      for_each_combination(options, chosen, mesh_dim + 1);
    }
  }

  // A value cannot be written where a Partial sum lies, and the reverse.
  bool can_write(const Strategy& strategy) const {
    size_t output = 0;
    for (size_t i = 0; is_inplace(sample_.op.schema()) && i < written_.size();
         ++i) {
      if (written_[i] &&
          strategy.inputs.at(i) != output_of(strategy, output++)) {
        return false;
      }
    }
    return true;
  }

  void check_strategy(const std::vector<Strategy>& chosen) {
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
      run_by_hand(chosen);
    } catch (const std::exception& error) {
      fail(text, error);
      return;
    }
    if (chosen.size() == 1) {
      record(chosen[0], text);
    }
  }

  void run_by_hand(const std::vector<Strategy>& chosen) {
    std::vector<Placements> inputs(hand_.tensors().size());
    std::vector<Placements> outputs(hand_.expected().size());
    for (const auto& strategy : chosen) {
      TORCH_CHECK(
          strategy.inputs.size() == inputs.size(),
          "the strategy places ",
          strategy.inputs.size(),
          " inputs of ",
          inputs.size());
      for (size_t i = 0; i < inputs.size(); ++i) {
        inputs[i].push_back(strategy.inputs[i]);
      }
      for (size_t i = 0; i < outputs.size(); ++i) {
        outputs[i].push_back(output_of(strategy, i));
      }
    }
    const auto results = hand_.run(inputs, outputs, metas_, hand_.cut(inputs));
    for (size_t i = 0; i < outputs.size(); ++i) {
      hand_.compare(results, i, outputs[i]);
    }
  }

  void record(const Strategy& strategy, const std::string& text) {
    bool cuts = false;
    for (const auto* placements : {&strategy.inputs, &strategy.outputs}) {
      for (const auto& placement : *placements) {
        if (placement.is_shard() && !placement.is_chunked()) {
          return;
        }
        cuts |= placement.is_shard();
      }
    }
    auto& result = report_.ops[sample_.name()];
    result.strategies.insert(text);
    if (cuts) {
      result.cutting.insert(text);
    }
  }

  const Sample& sample_;
  StrategyOptions options_;
  Report& report_;
  ByHand hand_;
  std::vector<bool> written_;
  std::vector<OutputMeta> metas_;
};

} // namespace

void check_strategies(
    const Sample& sample,
    const Grid& grid,
    const StrategyOptions& options,
    Report& report) {
  const Rule* rule = find_rule(sample.op);
  const bool resized = rule && rule->view && is_inplace(sample.op.schema());
  if (rule && rule->strategies && !resized && !sample.is_out) {
    StrategyCheck(sample, grid, options, report).check();
  }
}

} // namespace weft::dtensor::check
