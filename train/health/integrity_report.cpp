// The part of IntegrityChecker that runs after a difference was found. It
// determines the ranks that are wrong and how far they deviate.
#include <algorithm>

#include <fmt/format.h>

#include "base/read_file.h"
#include "checkpoint/store/store.h"
#include "data_parallel/replicas/replica_comparison.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"
#include "train/health/integrity_checker.h"
#include "train/metrics/write_file.h"
#include "train/store/run_store.h"

namespace weft::train {
namespace {

std::string from_first_rank(
    const mesh::DeviceMesh& mesh,
    const std::string& own) {
  constexpr const char* kName = "the integrity check's record";
  auto text = own;
  for (int64_t dim = mesh.ndim() - 1; dim >= 0; --dim) {
    text = mesh::all_gather_text(mesh.group(dim), text, kName)[0];
  }
  return text;
}

} // namespace

void IntegrityChecker::throw_difference(
    const std::vector<data_parallel::ReplicatedHash>& numbers) {
  auto found = memory_corruption();
  if (!found) {
    const auto vote = data_parallel::find_replica_mismatch(numbers, job_.mesh);
    found = difference(vote);
    keep_tie_record(*found, vote);
  }
  mesh::throw_error<mesh::DisagreementError>(fmt::format(
      "[integrity_check] {} {} ({})",
      describe(*found),
      advice(*found),
      job_.mesh.describe_rank()));
}

// Returns the earliest corruption that any rank found, with all ranks that
// found it.
std::optional<Divergence> IntegrityChecker::memory_corruption() const {
  std::vector<int64_t> own{-1, 0, 0};
  if (corruption_) {
    own = {
        static_cast<int64_t>(corruption_->tensor),
        corruption_->step,
        corruption_->is_before_update ? 1 : 0};
  }
  const auto rows = data_parallel::gather_over_mesh(own, job_.mesh);
  const std::vector<int64_t>* first = nullptr;
  for (const auto& row : rows) {
    if (row[0] >= 0 && (!first || row[1] < (*first)[1])) {
      first = &row;
    }
  }
  if (!first) {
    return std::nullopt;
  }
  const auto tensor = static_cast<size_t>((*first)[0]);
  Divergence found;
  found.is_memory_corruption = true;
  found.what = tensors_.at(tensor).name;
  found.good_step = good_step_;
  found.step = (*first)[1];
  found.is_before_update = (*first)[2] != 0;
  for (size_t at = 0; at < rows.size(); ++at) {
    if (rows[at] == *first) {
      found.mismatched_ranks.push_back(job_.mesh.ranks()[at]);
    }
  }
  measure(found, tensor);
  return found;
}

Divergence IntegrityChecker::difference(
    const data_parallel::ReplicaMismatch& vote) const {
  const size_t values = numbers_.size() + tensors_.size();
  const size_t record = (vote.index - 1) / values;
  const size_t item = (vote.index - 1) % values;
  Divergence found;
  found.step = history_.at(record).step;
  found.good_step = record > 0 ? history_[record - 1].step : good_step_;
  found.majority_ranks = vote.majority_ranks;
  found.mismatched_ranks = vote.mismatched_ranks;
  found.tied_ranks = vote.tied_ranks;
  if (item < numbers_.size()) {
    found.what = numbers_[item].name;
  } else {
    found.what = tensors_[item - numbers_.size()].name;
    measure(found, item - numbers_.size());
  }
  return found;
}

// Measures how far the copies differ. The first rank is the reference, because
// |a - b| does not depend on which copy is wrong.
void IntegrityChecker::measure(Divergence& found, size_t tensor) const {
  const auto& item = tensors_.at(tensor);
  bool has_copies = false;
  for (int64_t dim = 0; dim < job_.mesh.ndim(); ++dim) {
    has_copies = has_copies ||
                 ((item.mesh_dims >> dim & 1U) != 0 && job_.mesh.size(dim) > 1);
  }
  if (!has_copies) {
    return;
  }
  const auto distance = data_parallel::measure_replica_deviation(
      item.tensor, item.mesh_dims, job_.mesh, job_.mesh.ranks().at(0));
  found.largest = distance.largest;
  found.nan_ranks = distance.nan_ranks;
}

void IntegrityChecker::keep_tie_record(
    const Divergence& found,
    const data_parallel::ReplicaMismatch& vote) {
  if (found.tied_ranks.empty() || job_.mesh.rank() != 0) {
    return;
  }
  TieRecord record{
      .what = found.what,
      .step = found.step,
      .tied_ranks = found.tied_ranks,
      .values = std::vector<int64_t>(vote.values.size())};
  for (size_t at = 0; at < vote.values.size(); ++at) {
    record.values[static_cast<size_t>(job_.mesh.ranks()[at])] = vote.values[at];
  }
  try {
    write_file(tie_record_path(recipe_).string(), to_json(record, recipe_));
  } catch (const mesh::UsageError& error) {
    log_.warning(error.what_without_backtrace());
  }
}

void IntegrityChecker::read_tie_record(int64_t step) {
  const bool is_first = job_.mesh.rank() == 0;
  const auto text = from_first_rank(
      job_.mesh,
      is_first ? base::read_file(tie_record_path(recipe_)).value_or("")
               : std::string());
  tie_record_ = parse_tie_record(text, recipe_);
  if (tie_record_ && tie_record_->step <= step) {
    tie_record_.reset();
  }
}

// All ranks have the same record and history, so they return at the same place.
void IntegrityChecker::compare_with_tie_record() {
  if (!tie_record_) {
    return;
  }
  const auto record =
      std::ranges::find(history_, tie_record_->step, [](const Record& each) {
        return each.step;
      });
  const auto tensor = std::ranges::find(
      tensors_, tie_record_->what, [](const auto& each) { return each.name; });
  if (record == history_.end() || tensor == tensors_.end()) {
    return;
  }
  const auto at =
      numbers_.size() + static_cast<size_t>(tensor - tensors_.begin());
  const auto rows =
      data_parallel::gather_over_mesh({record->values.at(at)}, job_.mesh);
  std::vector<int64_t> now(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    now[static_cast<size_t>(job_.mesh.ranks()[i])] = rows[i][0];
  }
  if (job_.mesh.rank() == 0) {
    log_.warning(describe_replay(*tie_record_, now));
    std::error_code ignored; // the run has passed the step of the record
    std::filesystem::remove(tie_record_path(recipe_), ignored);
  }
  tie_record_.reset();
}

std::string IntegrityChecker::advice(const Divergence& found) const {
  const auto steps = checkpoint::list_steps(checkpoints_path(recipe_));
  auto text = std::string("Nothing was saved since. The same command ");
  text += steps.empty() ? std::string("begins again")
                        : fmt::format(
                              "resumes from step {}, whose state was compared "
                              "before it was saved",
                              steps.front().step);
  if (!found.tied_ranks.empty()) {
    text += fmt::format(
        ", does step {} again and then says which rank was wrong", found.step);
  }
  return text +
         ". If it happens again on one rank, take its host out of the job.";
}

} // namespace weft::train
