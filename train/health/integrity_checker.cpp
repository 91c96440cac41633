#include "train/health/integrity_checker.h"

#include "data_parallel/replicas/replica_comparison.h"
#include "data_parallel/replicas/tensor_hash.h"

namespace weft::train {
namespace {

// The limit of records. A record has 8 bytes per tensor, so that all of them
// take a few MB with the largest models.
constexpr size_t kMaxRecords = 512;

} // namespace

IntegrityChecker::IntegrityChecker(
    const config::Recipe& recipe,
    TrainJob& job,
    base::Logger log)
    : recipe_(recipe), job_(job), log_(std::move(log)) {}

bool IntegrityChecker::is_due(int64_t step) const {
  return recipe_.integrity_check.every > 0 &&
         step % recipe_.integrity_check.every == 0;
}

// Hashing on another device than the CPU would block the host twice per step.
bool IntegrityChecker::hashes_weights() const {
  return recipe_.integrity_check.hash_weights &&
         job_.mesh.world().device().is_cpu();
}

void IntegrityChecker::begin(const TrainState& state) {
  if (recipe_.integrity_check.every == 0) {
    return;
  }
  good_step_ = state.step;
  read_tie_record(state.step);
  record(state);
  check(state);
}

void IntegrityChecker::before_update() {
  if (recipe_.integrity_check.every > 0 && hashes_weights()) {
    verify_hashes(/*is_before_update=*/true);
  }
}

void IntegrityChecker::after_update(const TrainState& state) {
  if (recipe_.integrity_check.every > 0 && hashes_weights()) {
    record(state);
  }
}

void IntegrityChecker::check(const TrainState& state) {
  if (recipe_.integrity_check.every == 0) {
    return;
  }
  verify_hashes(/*is_before_update=*/false);
  if (history_.empty() || history_.back().step != state.step) {
    record(state);
  }
  const auto numbers = all_numbers();
  // All replicas may have the same memory corruption.
  if (data_parallel::replicas_match(numbers, job_.mesh) && !corruption_) {
    compare_with_tie_record();
    history_.clear();
    good_step_ = state.step;
    return;
  }
  throw_difference(numbers);
}

// Lists the tensors again after the first update, which creates the state of
// the optimizer.
void IntegrityChecker::list_tensors() {
  const auto parameters_in_state = job_.optimizer->state().size();
  if (tensors_.empty() || parameters_in_state != parameters_in_state_) {
    tensors_ = replicated_tensors(job_);
    parameters_in_state_ = parameters_in_state;
    history_.clear();
  }
}

void IntegrityChecker::record(const TrainState& state) {
  list_tensors();
  numbers_ = replicated_numbers(job_, recipe_, state);
  Record record{.step = state.step, .values = {}};
  record.values.reserve(numbers_.size() + tensors_.size());
  for (const auto& number : numbers_) {
    record.values.push_back(number.value);
  }
  hashes_after_update_.clear();
  for (const auto& item : tensors_) {
    hashes_after_update_.push_back(data_parallel::hash_of_bits(item.tensor));
    record.values.push_back(hashes_after_update_.back());
  }
  halve_history();
  history_.push_back(std::move(record));
}

// Drops every second record if there are kMaxRecords. So the memory is bounded
// for any number of steps between checks.
void IntegrityChecker::halve_history() {
  if (history_.size() < kMaxRecords) {
    return;
  }
  std::vector<Record> kept;
  for (size_t i = 0; i < history_.size(); i += 2) {
    kept.push_back(std::move(history_[i]));
  }
  history_ = std::move(kept);
}

void IntegrityChecker::verify_hashes(bool is_before_update) {
  if (!hashes_weights() || corruption_ || hashes_after_update_.empty()) {
    return;
  }
  for (size_t i = 0; i < hashes_after_update_.size(); ++i) {
    if (data_parallel::hash_of_bits(tensors_[i].tensor) !=
        hashes_after_update_[i]) {
      corruption_ = MemoryCorruption{i, numbers_[0].value, is_before_update};
      return;
    }
  }
}

std::vector<data_parallel::ReplicatedHash> IntegrityChecker::all_numbers()
    const {
  const auto everywhere = data_parallel::all_mesh_dims(job_.mesh);
  std::vector<data_parallel::ReplicatedHash> numbers{
      {corruption_ ? 1 : 0, everywhere}};
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

} // namespace weft::train
