#include "cli/bench/startup.h"

#include <utility>

#include <nlohmann/json.hpp>

namespace weft::recipes::bench {

std::optional<std::string> run_startup(StepOptions options) {
  options.warmup = 0;
  options.steps = 1;
  const auto step = run_step(options);
  if (!step) {
    return std::nullopt;
  }
  const auto all = nlohmann::ordered_json::parse(*step);
  nlohmann::ordered_json result{{"bench", "startup"}};
  for (const char* key :
       {"torch", "dp", "tp", "first_step_s", "start_s", "peak_rss_mb"}) {
    result[key] = all.at(key);
  }
  return result.dump();
}

} // namespace weft::recipes::bench
