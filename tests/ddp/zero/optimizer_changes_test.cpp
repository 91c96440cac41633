// Parameters that are frozen and thawed, groups that come and go, gradients
// that stay away: what an optimizer knew of it all goes through a state dict
// into a new optimizer, which goes on as if nothing had happened, or the state
// is refused by the name of a parameter.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/state_dict/state_dict.h"
#include "ddp/zero/zero_redundancy_optimizer.h"
#include "dtensor/tensor/dtensor.h"
#include "tests/ddp/models.h"
#include "tests/ddp/zero/zero_cases.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using dtensor::StateDict;
using test::ParamGroups;
using test::RankContext;
using test::run_ranks;
using test::zero_case;
using test::ZeroCase;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::vector<ZeroCase> optimizers() {
  namespace optim = torch::optim;
  return {
      zero_case<optim::SGD>("Sgd", optim::SGDOptions(0.1)),
      zero_case<optim::SGD>(
          "SgdMomentum", optim::SGDOptions(0.1).momentum(0.9)),
      zero_case<optim::SGD>(
          "SgdDampening", optim::SGDOptions(0.1).momentum(0.9).dampening(0.5)),
      zero_case<optim::Adam>("Adam", optim::AdamOptions(0.02)),
      zero_case<optim::AdamW>(
          "AdamWAmsgrad", optim::AdamWOptions(0.03).amsgrad(true)),
      zero_case<optim::Adagrad>("Adagrad", optim::AdagradOptions(0.1)),
      zero_case<optim::RMSprop>(
          "RMSprop", optim::RMSpropOptions(0.01).momentum(0.5).centered(true))};
}

enum class Change {
  /// "first" is frozen from the third step on, until the last one. The new
  /// optimizer gets its state before it is frozen again, or after.
  kFreeze,
  kFreezeBeforeLoading,
  /// "first" is frozen until then.
  kThaw,
  /// The group of "third", with a rate of its own, comes then, or goes.
  kAddGroup,
  kRemoveGroup,
  /// "second" has no gradient from then on, or never.
  kNoGradientAnyMore,
  kNeverAGradient
};

const std::map<Change, std::string>& change_names() {
  static const std::map<Change, std::string> names = {
      {Change::kFreeze, "Freeze"},
      {Change::kFreezeBeforeLoading, "FreezeBeforeLoading"},
      {Change::kThaw, "Thaw"},
      {Change::kAddGroup, "AddGroup"},
      {Change::kRemoveGroup, "RemoveGroup"},
      {Change::kNoGradientAnyMore, "NoGradientAnyMore"},
      {Change::kNeverAGradient, "NeverAGradient"}};
  return names;
}

struct ZeroLayout {
  std::string name;
  int64_t dp;
  int64_t tp;
  bool has_zero;
};

const std::vector<ZeroLayout>& layouts() {
  static const std::vector<ZeroLayout> all = {
      {"Dp2", 2, 1, false},
      {"Tp2", 1, 2, false},
      {"Zero2", 2, 1, true},
      {"Zero2Tp2", 2, 2, true}};
  return all;
}

struct Model : torch::nn::Module {
  explicit Model(const mesh::DeviceMesh& mesh) {
    const std::map<std::string, std::vector<int64_t>> shapes = {
        {"first", {5, 3}}, {"second", {4, 3}}, {"third", {3, 3}}};
    double phase = 0.1;
    for (const auto& [name, sizes] : shapes) {
      const auto whole = test::wave(sizes, phase += 0.7, at::kFloat).clone();
      register_parameter(
          name,
          mesh.size("tp") > 1 ? dtensor::distribute_tensor(
                                    whole, mesh["tp"], {dtensor::Shard(0)})
                                    .detach()
                              : whole);
    }
  }

  at::Tensor named(const std::string& name) { return named_parameters()[name]; }
};

/// One training with an optimizer that is made again in its middle, or not.
class Training {
 public:
  Training(
      const ZeroCase& optimizer,
      Change change,
      const ZeroLayout& layout,
      const mesh::DeviceMesh& mesh)
      : case_(optimizer),
        change_(change),
        layout_(layout),
        mesh_(mesh),
        model_(std::make_shared<Model>(mesh)) {}

  /// The parameters at the end. Throws: what saving or loading refuses.
  std::vector<at::Tensor> run(bool is_interrupted) {
    freeze(change_ == Change::kThaw);
    make_optimizer(change_ != Change::kAddGroup);
    step(0);
    step(1);
    make_change();
    step(2);
    if (is_interrupted) {
      replace_optimizer();
    }
    step(3);
    freeze(false);
    step(4);
    std::vector<at::Tensor> result;
    for (const auto& parameter : model_->parameters()) {
      result.push_back(
          dtensor::is_dtensor(parameter)
              ? dtensor::full_tensor(parameter.detach())
              : parameter.detach().clone());
    }
    return result;
  }

 private:
  bool freezes() const {
    return change_ == Change::kFreeze ||
           change_ == Change::kFreezeBeforeLoading;
  }

  void freeze(bool is_frozen) {
    auto first = model_->named("first");
    first.mutable_grad() = at::Tensor();
    first.set_requires_grad(!is_frozen);
  }

  void make_change() {
    switch (change_) {
      case Change::kFreeze:
      case Change::kFreezeBeforeLoading:
      case Change::kThaw:
        freeze(freezes());
        break;
      case Change::kAddGroup:
        add_third();
        break;
      case Change::kRemoveGroup:
        optimizer_->param_groups().pop_back();
        break;
      case Change::kNoGradientAnyMore:
      case Change::kNeverAGradient:
        break;
    }
  }

  void make_optimizer(bool has_third) {
    ParamGroups groups;
    groups.emplace_back(std::vector<at::Tensor>{
        model_->named("first"), model_->named("second")});
    if (has_third) {
      groups.emplace_back(std::vector<at::Tensor>{model_->named("third")});
    }
    optimizer_ = layout_.has_zero
                     ? std::make_unique<ZeroRedundancyOptimizer>(
                           std::move(groups), case_.make, mesh_["dp"])
                     : case_.make(std::move(groups));
    if (has_third) {
      set_rate_of_third();
    }
  }

  void add_third() {
    optimizer_->add_param_group(torch::optim::OptimizerParamGroup(
        std::vector<at::Tensor>{model_->named("third")}));
    set_rate_of_third();
  }

  void set_rate_of_third() {
    optimizer_->param_groups().back().options().set_lr(0.007);
  }

  void step(int64_t number) {
    for (auto& item : model_->named_parameters()) {
      auto& parameter = item.value();
      const bool has_none =
          item.key() == "second" &&
          (change_ == Change::kNeverAGradient ||
           (change_ == Change::kNoGradientAnyMore && number >= 2));
      const at::NoGradGuard no_grad;
      parameter.mutable_grad() =
          has_none || !parameter.requires_grad()
              ? at::Tensor()
              : (parameter * (1.0 + 0.3 * static_cast<double>(number)))
                    .detach();
    }
    optimizer_->step();
  }

  void replace_optimizer() {
    const checkpoint::StateDictOptions options{.mesh = mesh_};
    StateDict state;
    for (const auto& [key, tensor] : checkpoint::get_optimizer_state_dict(
             *model_, {optimizer_.get()}, options)) {
      state[key] = tensor.clone();
    }
    if (change_ == Change::kFreeze) {
      freeze(false);
    }
    make_optimizer(change_ != Change::kRemoveGroup);
    // The rate comes out of the state.
    optimizer_->param_groups().back().options().set_lr(0.5);
    checkpoint::set_optimizer_state_dict(
        *model_, {optimizer_.get()}, state, options);
    freeze(freezes());
  }

  const ZeroCase& case_;
  Change change_;
  const ZeroLayout& layout_;
  const mesh::DeviceMesh& mesh_;
  std::shared_ptr<Model> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

/// What has to be refused, because it cannot be done: the text says why.
std::optional<std::string> expected_refusal(
    const std::string& optimizer,
    Change change,
    const ZeroLayout& layout) {
  if (layout.has_zero && change == Change::kRemoveGroup) {
    return "groups cannot be removed";
  }
  // libtorch's own: it makes its state in its constructor alone.
  if (optimizer == "Adagrad" && change == Change::kAddGroup &&
      !layout.has_zero) {
    return "state found NULL";
  }
  if (optimizer == "SgdDampening" && change == Change::kNeverAGradient) {
    return "has no momentum of \"second\"";
  }
  return std::nullopt;
}

struct Counts {
  int equal = 0;
  int refused = 0;
};

void check(
    const ZeroCase& optimizer,
    Change change,
    const ZeroLayout& layout,
    const mesh::DeviceMesh& mesh,
    Counts& counts) {
  SCOPED_TRACE(
      optimizer.name + ", " + change_names().at(change) + ", " + layout.name);
  const auto refusal = expected_refusal(optimizer.name, change, layout);
  try {
    const auto expected =
        Training(optimizer, change, layout, mesh).run(/*is_interrupted=*/false);
    const auto found =
        Training(optimizer, change, layout, mesh).run(/*is_interrupted=*/true);
    EXPECT_FALSE(refusal) << "was not refused";
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(found[i], expected[i]))
          << "parameter " << i << " differs by "
          << (found[i] - expected[i]).abs().max();
    }
    ++counts.equal;
  } catch (const c10::Error& error) {
    EXPECT_TRUE(refusal) << error.what_without_backtrace();
    // The replica that has the parameter names it.
    EXPECT_THAT(
        error.what_without_backtrace(),
        AnyOf(
            HasSubstr(refusal.value_or("")),
            HasSubstr("another replica could not read its part")));
    ++counts.refused;
  }
}

class OptimizerChanges : public ::testing::TestWithParam<ZeroLayout> {};

TEST_P(OptimizerChanges, GoThroughAStateDictOrAreRefused) {
  const auto& layout = GetParam();
  run_ranks(static_cast<int>(layout.dp * layout.tp), [&](RankContext& self) {
    const auto mesh = self.mesh({layout.dp, layout.tp}, {"dp", "tp"});
    Counts counts;
    for (const auto& optimizer : optimizers()) {
      for (const auto& [change, name] : change_names()) {
        check(optimizer, change, layout, mesh, counts);
      }
    }
    // Seven optimizers, seven changes.
    EXPECT_EQ(counts.refused, layout.has_zero ? 8 : 2);
    EXPECT_EQ(counts.equal + counts.refused, 49);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layout,
    OptimizerChanges,
    ::testing::ValuesIn(layouts()),
    [](const auto& info) { return info.param.name; });

} // namespace
} // namespace weft::ddp
