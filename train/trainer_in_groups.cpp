// The part of Trainer that trains together with other replica groups: it joins
// them, tells them its state, and repeats a step in which one is lost.
#include "train/trainer.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/ScopeExit.h>

#include "checkpoint/state_dict/state_dict.h"
#include "config/schema.h"
#include "elastic/distributed_data_parallel.h"
#include "elastic/manager.h"
#include "train/health/integrity_checker.h"

namespace weft::train {

void Trainer::join_groups(
    int64_t step,
    const std::function<void(int64_t)>& save) {
  manager_ = std::make_unique<elastic::Manager>(
      world_,
      elastic::ManagerOptions{
          .timeout = std::chrono::seconds(recipe_.comm.timeout_s),
          .step = step,
          .min_groups = recipe_.elastic.min_groups,
          .lanes = recipe_.elastic.lanes,
          .join_timeout = std::chrono::seconds(recipe_.elastic.join_timeout_s),
          .is_asked_to_stop = is_stop_requested_,
          .save = [this, save] {
            leads_ = true;
            save(manager_->step());
          }});
  job_.ddp->register_comm_hook(elastic::detail::make_comm_hook(*manager_));
  register_state();
  if (manager_->is_restarted()) {
    warm_up();
  }
}

// Computes gradients and discards them. The first computation takes longer, and
// the other groups need not wait for it.
void Trainer::warm_up() {
  const auto batch = loader_.train(start_.next_sample, 0);
  forward_backward(batch, start_.step, [](const at::Tensor& /*loss*/) {});
  job_.optimizer->zero_grad();
  has_computed_ = true;
}

// Registers the tensors of a checkpoint, and everything else that a step
// depends on.
void Trainer::register_state() {
  constexpr char kSeparator = '/';
  for (const auto& key : config::schema()) {
    if (!key.path.starts_with("links.")) { // Each group may measure its own.
      manager_->register_text(
          std::string(key.path), config::value_of(recipe_, key.path));
    }
  }
  manager_->register_text("data", data_fingerprint_);
  manager_->register_state(
      "job",
      [this] {
        dtensor::StateDict all;
        for (const auto& [part, dict] : state_dicts(job_)) {
          for (const auto& [name, tensor] : dict) {
            all.emplace(part + kSeparator + name, tensor);
          }
        }
        return all;
      },
      [this](const dtensor::StateDict& all) {
        checkpoint::StateDicts dicts;
        for (const auto& [key, tensor] : all) {
          const auto end = key.find(kSeparator);
          dicts[key.substr(0, end)].emplace(key.substr(end + 1), tensor);
        }
        adopt_state(job_, dicts, recipe_);
      });
  manager_->register_state(
      "run",
      [this] {
        const auto state = state_after(manager_->step());
        return dtensor::StateDict{
            {"counts",
             at::tensor(
                 {state.step,
                  state.tokens,
                  state.next_sample,
                  state.skipped_in_a_row},
                 at::kLong)}};
      },
      [this](const dtensor::StateDict& state) {
        const auto& counts = state.at("counts");
        start_from(
            {.step = counts[0].item<int64_t>(),
             .tokens = counts[1].item<int64_t>(),
             .next_sample = counts[2].item<int64_t>(),
             .data_fingerprint = data_fingerprint_,
             .skipped_in_a_row = counts[3].item<int64_t>()});
        if (integrity_checker_) {
          integrity_checker_->begin(start_); // The weights were replaced.
        }
      });
}

elastic::Step Trainer::begin_step_together() {
  if (begun_) {
    const auto step = *begun_;
    begun_.reset();
    return step;
  }
  const auto step = manager_->begin_step();
  leads_ = step.group() == 0;
  return step;
}

std::vector<Trainer::Part> Trainer::parts_of(const elastic::Step& step) const {
  const int64_t micro_batches = loader_.accumulation_steps();
  const int64_t lanes = recipe_.elastic.lanes;
  std::vector<Part> result;
  if (lanes == 0) {
    const auto [begin, end] = step.share(micro_batches);
    result.push_back(Part::of_range(begin, end));
  } else {
    // A lane has the micro-batches of a data-parallel rank. See BatchLoader.
    const auto [begin, end] = step.lanes();
    for (int64_t lane = begin; lane < end; ++lane) {
      auto& part = result.emplace_back(Part{.lane = lane, .micro_batches = {}});
      for (int64_t i = lane; i < micro_batches; i += lanes) {
        part.micro_batches.push_back(i);
      }
    }
  }
  if (!step.counts() && has_computed_) {
    // The result of this group does not count. Computing nothing leaves the
    // processor to the transfer of the state.
    for (auto& part : result) {
      part.micro_batches.clear();
    }
  }
  return result;
}

std::vector<MicroLoss> Trainer::compute_gradients_together(
    StepMetrics& metrics) {
  while (true) {
    auto step = begin_step_together();
    if (step.number() >= recipe_.train.steps) {
      metrics.step = step.number();
      begun_.emplace(step);
      return {};
    }
    parts_ = parts_of(step);
    metrics.groups = groups_ = step.groups();
    metrics.epoch = manager_->epoch();
    in_step_ = &step;
    const auto back = c10::make_scope_exit([this] { in_step_ = nullptr; });
    auto losses = compute_gradients(step.number(), metrics);
    if (step.commit(is_prepared_)) {
      return losses;
    }
    job_.optimizer->zero_grad();
  }
}

bool Trainer::has_left() const {
  return manager_ && manager_->has_left();
}

// Returns true if the stop signal concerns this group only, not the run. Such a
// group leaves the others, but the last one that has the state stops the run.
// Collective: all ranks; blocks.
bool Trainer::is_meant_alone() {
  const bool is_alone =
      world_.rank() == 0 && groups_ > 1 && !manager_->is_run_ending();
  return says_rank_0(world_, is_alone, "who is to stop");
}

std::optional<elastic::Quorum> Trainer::take_quorum() {
  return manager_ ? manager_->take_quorum() : std::nullopt;
}

void Trainer::run_together(const std::function<void()>& act) {
  while (true) {
    auto step = begin_step_together();
    step.wait_for_transfer(); // `act` may swap the weights for the average.
    act();
    if (step.commit()) {
      return;
    }
  }
}

} // namespace weft::train
