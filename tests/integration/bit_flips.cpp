#include "tests/integration/bit_flips.h"

#include <regex>

#include <torch/torch.h>

#include "data_parallel/parameters/module_state.h"
#include "dtensor/scopes/module_call.h"
#include "mesh/error/error.h"

namespace weft::integration {
namespace {

void turn_over(const at::Tensor& tensor, const Flip& flip) {
  const at::NoGradGuard no_grad;
  const auto local = data_parallel::local_part(tensor);
  if (local.numel() == 0) {
    return;
  }
  TORCH_CHECK(local.is_contiguous() && local.scalar_type() == at::kFloat);
  auto* words = static_cast<uint32_t*>(local.mutable_data_ptr());
  words[flip.element % local.numel()] ^= uint32_t{1} << flip.bit;
}

/// Turns a bit over at its moment: hooks in the model, and the trainer's own
/// callback between backward and update.
class Flipper {
 public:
  Flipper(train::Trainer& trainer, Flip flip, int64_t rank)
      : flip_(flip), is_own_(flip.rank == rank) {
    const auto parameters = data_parallel::parameters_of(*trainer.job().model);
    parameter_ = parameters.at(flip.tensor % parameters.size()).tensor;
    if (!is_own_) {
      return;
    }
    if (flip.where == Flip::Where::kOwnGradient) {
      parameter_.register_hook([this](const at::Tensor& grad) {
        if (is_time_) {
          turn_over(grad, flip_);
        }
      });
    } else if (flip.when == Flip::When::kForward) {
      for (const auto& item : trainer.job().model->named_modules()) {
        if (item.key().ends_with("layers.0")) {
          dtensor::module_hooks(*item.value())
              .before.emplace_back(
                  [this](std::vector<at::Tensor>&) { weight_now(); });
        }
      }
    } else if (flip.when == Flip::When::kBackward) {
      parameters.back().tensor.register_hook(
          [this](const at::Tensor&) { weight_now(); });
    }
  }

  void before_step(int64_t step) {
    is_time_ = is_own_ && step == flip_.step;
    if (flip_.when == Flip::When::kBetweenSteps &&
        flip_.where == Flip::Where::kWeight) {
      weight_now();
    }
  }
  void before_update() {
    if (is_time_ && flip_.where == Flip::Where::kReducedGradient) {
      turn_over(parameter_.grad(), flip_);
      is_time_ = false;
    } else if (flip_.when == Flip::When::kBeforeUpdate) {
      weight_now();
    }
  }

 private:
  void weight_now() {
    if (is_time_ && flip_.where == Flip::Where::kWeight) {
      turn_over(parameter_, flip_);
      is_time_ = false;
    }
  }

  Flip flip_;
  bool is_own_;
  bool is_time_ = false;
  at::Tensor parameter_;
};

} // namespace

Flip random_flip(
    std::mt19937_64& random,
    int64_t ranks,
    size_t tensors,
    int64_t steps) {
  const auto below = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  Flip flip;
  flip.when = static_cast<Flip::When>(below(4));
  flip.rank = below(ranks);
  flip.step = 1 + below(steps - 1);
  flip.tensor = static_cast<size_t>(below(static_cast<int64_t>(tensors)));
  flip.element = below(int64_t{1} << 40);
  flip.bit = static_cast<int>(below(23));
  return flip;
}

int64_t blamed_rank(const std::string& message) {
  static const std::regex pattern(
      R"(\] rank (\d+) has other bits|changed on rank (\d+) after)");
  std::smatch match;
  if (!std::regex_search(message, match, pattern)) {
    return -1;
  }
  return std::stoll(match[1].matched ? match[1] : match[2]);
}

FlipResult train_with_flip(
    const config::Recipe& recipe,
    const mesh::World& world,
    const std::vector<Flip>& flips) {
  FlipResult result;
  train::Trainer trainer(recipe, world);
  train::IntegrityChecker integrity_checker(
      recipe,
      trainer.job(),
      base::Logger({.write = [&](const std::string& line) {
        result.notes.push_back(line);
      }}));
  trainer.set_integrity_checker(&integrity_checker);
  std::vector<std::unique_ptr<Flipper>> flippers;
  for (const auto& flip : flips) {
    flippers.push_back(std::make_unique<Flipper>(trainer, flip, world.rank()));
  }
  trainer.set_stop_request([&] {
    for (auto& flipper : flippers) {
      flipper->before_update();
    }
    return false;
  });
  integrity_checker.begin(trainer.state_after(0));
  for (int64_t step = 0; step < recipe.train.steps; ++step) {
    for (auto& flipper : flippers) {
      flipper->before_step(step);
    }
    try {
      trainer.train_step(step);
      if (integrity_checker.is_due(step + 1) ||
          step + 1 == recipe.train.steps) {
        integrity_checker.check(trainer.state_after(step + 1));
      }
    } catch (const mesh::DisagreementError& error) {
      result.message = error.what_without_backtrace();
      result.steps_until = flips.empty() ? 0 : step + 1 - flips[0].step;
      result.named = blamed_rank(result.message);
      break;
    }
  }
  return result;
}

} // namespace weft::integration
