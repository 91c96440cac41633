#pragma once

#include <string>
#include <vector>

#include "cli/explain/measured.h"
#include "cli/explain/step_estimate.h"

namespace weft::recipes {

/// What goes with an estimate when it is shown.
struct EstimateContext {
  const Recipe& recipe;
  /// null: nothing was measured.
  const MeasuredRun* measured = nullptr;
  /// Of over_budget().
  std::vector<std::string> over_budget = {};
  /// E.g. that a data file is not there.
  std::vector<std::string> notes = {};
};

/// Memory, links and collectives as tables.
std::string to_text(
    const StepEstimate& estimate,
    const EstimateContext& context);

/// The same in one line of JSON, with all digits.
std::string to_json(
    const StepEstimate& estimate,
    const EstimateContext& context);

} // namespace weft::recipes
