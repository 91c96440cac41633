#pragma once

#include <string>
#include <vector>

#include "cli/explain/measured.h"
#include "cli/explain/step_estimate.h"

namespace weft::cli {

/// The context in which an estimate is shown.
struct EstimateContext {
  const config::Recipe& recipe;
  /// The measurements of a run. Null if there are none.
  const MeasuredRun* measured = nullptr;
  /// The result of over_budget().
  std::vector<std::string> over_budget = {};
  /// Notes, e.g. that a data file does not exist.
  std::vector<std::string> notes = {};
};

/// Formats memory, links and collectives as tables.
std::string to_text(
    const StepEstimate& estimate,
    const EstimateContext& context);

/// Formats the same as one line of JSON with all digits.
std::string to_json(
    const StepEstimate& estimate,
    const EstimateContext& context);

} // namespace weft::cli
