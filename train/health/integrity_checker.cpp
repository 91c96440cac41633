#include "train/health/integrity_checker.h"

#include "data_parallel/replicas/replica_comparison.h"
#include "data_parallel/replicas/tensor_hash.h"

namespace weft::recipes {
namespace {

// Of them 8 bytes a tensor: a few megabytes of the largest models.
constexpr size_t kMostRecords = 512;

} // namespace

Sentinel::Sentinel(const Recipe& recipe, TrainJob& job, Say say)
    : recipe_(recipe), job_(job), say_(std::move(say)) {}

bool Sentinel::is_due(int64_t step) const {
  return recipe_.sentinel.every > 0 && step % recipe_.sentinel.every == 0;
}

// Elsewhere it would wait for the device twice a step.
bool Sentinel::seals() const {
  return recipe_.sentinel.seal && job_.mesh.world().device().is_cpu();
}

void Sentinel::begin(const TrainState& state) {
  if (recipe_.sentinel.every == 0) {
    return;
  }
  good_step_ = state.step;
  read_undecided(state.step);
  record(state);
  check(state);
}

void Sentinel::before_update() {
  if (recipe_.sentinel.every > 0 && seals()) {
    verify_seals(/*is_before_update=*/true);
  }
}

void Sentinel::after_update(const TrainState& state) {
  if (recipe_.sentinel.every > 0 && seals()) {
    record(state);
  }
}

void Sentinel::check(const TrainState& state) {
  if (recipe_.sentinel.every == 0) {
    return;
  }
  verify_seals(/*is_before_update=*/false);
  if (history_.empty() || history_.back().step != state.step) {
    record(state);
  }
  const auto numbers = all_numbers();
  // All ranks may have written where they should not have.
  if (ddp::copies_agree(numbers, job_.mesh) && !broken_) {
    compare_with_undecided();
    history_.clear();
    good_step_ = state.step;
    return;
  }
  throw_difference(numbers);
}

// What the optimizer keeps is there after the first update.
void Sentinel::list_tensors() {
  const auto parameters_in_state = job_.optimizer->state().size();
  if (tensors_.empty() || parameters_in_state != parameters_in_state_) {
    tensors_ = replicated_tensors(job_);
    parameters_in_state_ = parameters_in_state;
    history_.clear();
  }
}

void Sentinel::record(const TrainState& state) {
  list_tensors();
  numbers_ = replicated_numbers(job_, recipe_, state);
  Record record{.step = state.step, .values = {}};
  record.values.reserve(numbers_.size() + tensors_.size());
  for (const auto& number : numbers_) {
    record.values.push_back(number.value);
  }
  sealed_.clear();
  for (const auto& item : tensors_) {
    sealed_.push_back(ddp::hash_of_bits(item.tensor));
    record.values.push_back(sealed_.back());
  }
  thin_out();
  history_.push_back(std::move(record));
}

// Whatever the distance between checks: older steps are dropped, every other.
void Sentinel::thin_out() {
  if (history_.size() < kMostRecords) {
    return;
  }
  std::vector<Record> kept;
  for (size_t i = 0; i < history_.size(); i += 2) {
    kept.push_back(std::move(history_[i]));
  }
  history_ = std::move(kept);
}

void Sentinel::verify_seals(bool is_before_update) {
  if (!seals() || broken_ || sealed_.empty()) {
    return;
  }
  for (size_t i = 0; i < sealed_.size(); ++i) {
    if (ddp::hash_of_bits(tensors_[i].tensor) != sealed_[i]) {
      broken_ = Break{i, numbers_[0].value, is_before_update};
      return;
    }
  }
}

std::vector<ddp::CopiedNumber> Sentinel::all_numbers() const {
  const auto everywhere = ddp::all_mesh_dims(job_.mesh);
  std::vector<ddp::CopiedNumber> numbers{{broken_ ? 1 : 0, everywhere}};
  for (const auto& record : history_) {
    for (size_t i = 0; i < record.values.size(); ++i) {
      const bool is_number = i < numbers_.size();
      numbers.push_back(
          {record.values[i],
           is_number ? everywhere : tensors_[i - numbers_.size()].mesh_dims});
    }
  }
  return numbers;
}

} // namespace weft::recipes
