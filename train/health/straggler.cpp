#include "train/health/straggler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "data_parallel/replicas/replica_comparison.h"
#include "train/trace/trace_recorder.h"

namespace weft::train {
namespace {

/// The bounds of the margin, as a fraction of the other ranks' time.
constexpr double kMinShare = 0.1;
constexpr double kMaxShare = 0.3;
constexpr double kMinMs = 0.5;
constexpr double kNoiseFactor = 6;
constexpr size_t kMaxChanges = 256;

using PhaseMs = std::array<double, kPhases>;

double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + (values.size() - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Returns false for a phase that runs in few steps, because it does not slow
// down every step.
bool is_regular(size_t phase) {
  return phase != static_cast<size_t>(Phase::kEval) &&
         phase != static_cast<size_t>(Phase::kCheckpoint);
}

double sum_of(const PhaseMs& phases) {
  double sum = 0;
  for (size_t phase = 0; phase < kPhases; ++phase) {
    sum += is_regular(phase) ? phases[phase] : 0;
  }
  return sum;
}

PhaseMs to_ms(const PhaseTimes& times) {
  PhaseMs result;
  for (size_t phase = 0; phase < kPhases; ++phase) {
    result[phase] = static_cast<double>(times[phase]) * 1e-6;
  }
  return result;
}

void keep_last(auto& list, auto value, size_t most) {
  list.push_back(std::move(value));
  if (list.size() > most) {
    list.erase(list.begin());
  }
}

// Returns true if a rank exceeds the margin in all rounds but one, and half of
// it in that one, which a delay of the other ranks may have distorted.
bool is_persistent(const std::vector<double>& behind, double margin) {
  constexpr double kSpoiled = 0.5;
  return behind.size() == StragglerDetector::kRounds &&
         *std::ranges::min_element(behind) > margin * kSpoiled &&
         std::ranges::count_if(behind, [&](double each) {
           return each > margin;
         }) >= StragglerDetector::kRounds - 1;
}

double mean_of(const std::vector<PhaseMs>& rounds, size_t phase) {
  double sum = 0;
  for (const auto& round : rounds) {
    sum += round[phase];
  }
  return sum / static_cast<double>(rounds.size());
}

} // namespace

std::vector<StragglerEvent> StragglerDetector::add_round(
    const std::vector<PhaseTimes>& times) {
  ranks_.resize(times.size());
  std::vector<PhaseMs> own;
  std::vector<double> sums;
  for (const auto& each : times) {
    own.push_back(to_ms(each));
    sums.push_back(sum_of(own.back()));
  }
  PhaseMs others;
  for (size_t phase = 0; phase < kPhases; ++phase) {
    std::vector<double> values;
    for (const auto& each : own) {
      values.push_back(each[phase]);
    }
    others[phase] = lower_median(values);
  }
  const double typical = lower_median(sums);
  const double mean = std::accumulate(sums.begin(), sums.end(), 0.0) /
                      static_cast<double>(sums.size());
  for (size_t i = 0; i < times.size(); ++i) {
    auto& rank = ranks_[i];
    if (!rank.behind.empty()) {
      keep_last(
          changes_, std::abs(sums[i] - mean - rank.from_mean), kMaxChanges);
    }
    rank.from_mean = sums[i] - mean;
    keep_last(rank.behind, sums[i] - typical, kRounds);
    keep_last(rank.own, own[i], kRounds);
    keep_last(rank.others, others, kRounds);
  }
  const double margin = std::max(
      kMinMs,
      std::clamp(
          kNoiseFactor * noise_ms(), kMinShare * typical, kMaxShare * typical));
  std::vector<StragglerEvent> event;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    auto& rank = ranks_[i];
    const bool is_behind = rank.behind.back() > margin / 2;
    rank.fast_rounds = is_behind ? 0 : rank.fast_rounds + 1;
    if (rank.is_slow ? rank.fast_rounds >= kRounds
                     : is_persistent(rank.behind, margin)) {
      rank.is_slow = !rank.is_slow;
      event.push_back(describe(i));
    }
  }
  return event;
}

double StragglerDetector::noise_ms() const {
  return changes_.empty() ? 0 : lower_median(changes_);
}

StragglerEvent StragglerDetector::describe(size_t index) const {
  const auto& rank = ranks_[index];
  StragglerEvent event{
      .rank = static_cast<int64_t>(index),
      .is_slow = rank.is_slow,
      .cost_ms = lower_median(rank.behind)};
  double most = -1;
  for (size_t phase = 0; phase < kPhases; ++phase) {
    const double own = mean_of(rank.own, phase);
    const double others = mean_of(rank.others, phase);
    if (is_regular(phase) && own - others > most) {
      most = own - others;
      event.phase = static_cast<Phase>(phase);
      event.own_ms = own;
      event.others_ms = others;
    }
  }
  return event;
}

std::string
describe(const StragglerEvent& event, int64_t steps, double step_ms) {
  if (!event.is_slow) {
    return fmt::format(
        "rank {} is as fast as the others again, over the last {} steps",
        event.rank,
        steps);
  }
  return fmt::format(
      "rank {} is slow: {} takes it {:.1f} ms a step, the others {:.1f} ms, "
      "over the last {} steps; they wait {:.1f} ms for it, {:.0f} % of a step",
      event.rank,
      name_of(event.phase),
      event.own_ms,
      event.others_ms,
      steps,
      event.cost_ms,
      100 * event.cost_ms / std::max(step_ms, event.cost_ms));
}

StragglerMonitor::StragglerMonitor(
    const config::Recipe& recipe,
    const mesh::DeviceMesh& mesh,
    base::Logger log)
    : mesh_(mesh),
      every_(recipe.straggler_detection.every),
      log_(std::move(log)) {
  if (every_ > 0 && mesh.size() > 1 && mesh.world().device().is_cpu()) {
    std::vector<mesh::Communicator> groups;
    for (int64_t dim = 0; dim < mesh.ndim(); ++dim) {
      groups.push_back(mesh.group(dim));
    }
    clock_.emplace(std::move(groups));
    round_start_ns_ = monotonic_ns();
  }
}

PhaseTimes StragglerMonitor::round_median() const {
  PhaseTimes result{};
  for (size_t phase = 0; phase < kPhases; ++phase) {
    std::vector<double> values;
    for (const auto& step : steps_) {
      if (step[phase] > 0) {
        values.push_back(static_cast<double>(step[phase]));
      }
    }
    result[phase] =
        values.empty() ? 0 : static_cast<int64_t>(lower_median(values));
  }
  return result;
}

void StragglerMonitor::step_done() {
  if (!clock_) {
    return;
  }
  steps_.push_back(clock_->take());
  if (static_cast<int64_t>(steps_.size()) < every_) {
    return;
  }
  const auto own = round_median();
  const auto rows =
      data_parallel::gather_over_mesh({own.begin(), own.end()}, mesh_);
  std::vector<PhaseTimes> ranks(rows.size());
  for (size_t at = 0; at < rows.size(); ++at) {
    std::ranges::copy(
        rows[at], ranks[static_cast<size_t>(mesh_.ranks()[at])].begin());
  }
  const auto now = monotonic_ns();
  const double step_ms = static_cast<double>(now - round_start_ns_) * 1e-6 /
                         static_cast<double>(every_);
  round_start_ns_ = now;
  steps_.clear();
  for (const auto& event : detector_.add_round(ranks)) {
    if (mesh_.rank() == 0) {
      log_.warning(
          describe(event, StragglerDetector::kRounds * every_, step_ms));
    }
  }
}

} // namespace weft::train
