#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "config/recipe.h"
#include "mesh/device_mesh.h"
#include "mesh/world.h"
#include "train/trace/trace_file.h"
#include "train/trace/trace_recorder.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::train {

class OpSpans;

/// Traces the steps that the recipe's `trace` selects: operators, modules,
/// collectives, and the phases that the trainer opens with span(). Each rank
/// writes RUN/trace/rank<r>.json, and rank 0 merges these files to
/// RUN/trace.json. If no step is selected, a step costs two comparisons.
class StepTracer {
 public:
  /// Installs hooks on `model` if any step is selected.
  StepTracer(
      const config::TraceConfig& config,
      std::string run_folder,
      const mesh::World& world,
      const mesh::DeviceMesh& mesh,
      torch::nn::Module& model);
  ~StepTracer();
  StepTracer(const StepTracer&) = delete;
  StepTracer& operator=(const StepTracer&) = delete;

  /// To be called before and after each step, counted from 1, on the thread
  /// that runs it. The end of the last selected step writes the files; rank 0
  /// returns a message for the user. Otherwise the result is "".
  /// Collective: all ranks of the world; the end of the last selected step
  /// blocks until all ranks have written.
  void begin_step(int64_t step);
  std::string end_step(int64_t step);

  /// To be called after the run. Writes the spans so far if the run ended
  /// before the last selected step. Returns a message for the user also if no
  /// step was traced.
  /// Collective: like end_step().
  std::string finish();

  /// Returns a span that lasts as long as a phase ("forward") of a step.
  TraceSpan span(std::string_view name) const {
    return {recorder_ && recorder_->is_on() ? recorder_.get() : nullptr, name};
  }

 private:
  bool is_chosen(int64_t step) const {
    return step >= config_.first_step &&
           step - config_.first_step < config_.steps;
  }
  void collect_step();
  void collect_group(int64_t mesh_dim, int64_t end_ns);
  std::string write();
  std::string write_own(const std::string& folder);
  std::string merge(const std::string& folder) const;
  std::string path_of(int64_t rank) const;

  config::TraceConfig config_;
  std::string run_folder_;
  mesh::World world_;
  mesh::DeviceMesh mesh_;
  std::shared_ptr<TraceRecorder> recorder_;
  std::unique_ptr<OpSpans> ops_;
  RankTrace trace_;
  int64_t step_start_ns_ = 0;
  int64_t first_traced_ = 0;
  int64_t last_traced_ = 0;
  bool is_written_ = false;
};

} // namespace weft::train
