#include "train/trace/step_tracer.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "mesh/error/error.h"
#include "mesh/error/failure.h"
#include "train/metrics/write_file.h"
#include "train/trace/module_spans.h"
#include "train/trace/op_spans.h"

namespace weft::train {
namespace {

// The first track of the groups. The tracks of threads have lower numbers.
constexpr int64_t kMaxThreads = 1000;

std::string title_of(const mesh::World& world, const mesh::DeviceMesh& mesh) {
  std::string place;
  for (int64_t d = 0; d < mesh.ndim(); ++d) {
    fmt::format_to(
        std::back_inserter(place),
        "{}{}={}",
        d == 0 ? "" : " ",
        mesh.mesh_dim_names()[d],
        mesh.coordinate(d));
  }
  return fmt::format("rank {} ({})", world.rank(), place);
}

} // namespace

StepTracer::StepTracer(
    const config::TraceConfig& config,
    std::string run_folder,
    const mesh::World& world,
    const mesh::DeviceMesh& mesh,
    torch::nn::Module& model)
    : config_(config),
      run_folder_(std::move(run_folder)),
      world_(world),
      mesh_(mesh) {
  if (config_.steps > 0) {
    recorder_ = std::make_shared<TraceRecorder>();
    add_module_spans(model, recorder_);
    trace_.rank = world_.rank();
    trace_.title = title_of(world_, mesh_);
  }
}

StepTracer::~StepTracer() = default;

void StepTracer::begin_step(int64_t step) {
  if (!is_chosen(step)) {
    return;
  }
  first_traced_ = first_traced_ == 0 ? step : first_traced_;
  last_traced_ = step;
  recorder_->track(); // makes this thread's track the first one
  recorder_->set_on(true);
  ops_ = std::make_unique<OpSpans>(recorder_);
  step_start_ns_ = monotonic_ns();
}

std::string StepTracer::end_step(int64_t step) {
  if (!is_chosen(step) || !ops_) {
    return "";
  }
  collect_step();
  return is_chosen(step + 1) ? "" : write();
}

std::string StepTracer::finish() {
  if (config_.steps == 0 || is_written_) {
    return "";
  }
  if (first_traced_ == 0) {
    return fmt::format(
        "no step was traced: trace.first_step={} and trace.steps={} select no "
        "step that this process ran",
        config_.first_step,
        config_.steps);
  }
  return write();
}

void StepTracer::collect_step() {
  const int64_t end_ns = monotonic_ns();
  ops_.reset();
  recorder_->set_on(false);
  trace_.events.push_back(
      {fmt::format("step {}", last_traced_),
       "step",
       step_start_ns_,
       end_ns,
       recorder_->track(),
       ""});
  std::ranges::move(recorder_->take(), std::back_inserter(trace_.events));
  for (int64_t d = 0; d < mesh_.ndim(); ++d) {
    collect_group(d, end_ns);
  }
}

// Adds the collectives of this step from the flight recorder. Collectives that
// are in flight end with the step.
void StepTracer::collect_group(int64_t mesh_dim, int64_t end_ns) {
  const auto group = mesh_.group(mesh_dim);
  auto entries = group.flight_recorder().entries();
  if (!entries.empty() && entries.front().sequence > 0 &&
      entries.front().start_ns >= step_start_ns_) {
    trace_.notes.push_back(fmt::format(
        "step {}: the flight recorder of {} kept only the last {} collectives",
        last_traced_,
        group.name(),
        entries.size()));
  }
  std::erase_if(entries, [&](const mesh::FlightRecorderEntry& entry) {
    return entry.start_ns < step_start_ns_;
  });
  for (auto& entry : entries) {
    entry.end_ns = entry.end_ns == 0 ? end_ns : entry.end_ns;
  }
  add_collectives(trace_, group.name(), kMaxThreads * (mesh_dim + 1), entries);
}

std::string StepTracer::path_of(int64_t rank) const {
  return (std::filesystem::path(run_folder_) / "trace" /
          fmt::format("rank{}.json", rank))
      .string();
}

std::string StepTracer::write_own(const std::string& folder) {
  std::set<int64_t> threads;
  for (const auto& event : trace_.events) {
    if (event.track < kMaxThreads) {
      threads.insert(event.track);
    }
  }
  for (const int64_t thread : threads) {
    trace_.tracks[thread] =
        thread == 0 ? "compute" : fmt::format("thread {}", thread + 1);
  }
  if (recorder_->dropped() > 0) {
    trace_.notes.push_back(
        fmt::format("{} spans were too many", recorder_->dropped()));
  }
  try {
    std::filesystem::create_directories(folder);
    // Removes the file of an older run, so that it does not stay if the write
    // fails.
    std::filesystem::remove(path_of(trace_.rank));
    write_file(path_of(trace_.rank), to_chrome_json(trace_));
  } catch (const std::exception& error) {
    return mesh::message_of(error);
  }
  return "";
}

std::string StepTracer::merge(const std::string& folder) const {
  std::vector<std::string> paths;
  for (int64_t rank = 0; rank < world_.world_size(); ++rank) {
    paths.push_back(path_of(rank));
  }
  const auto path =
      (std::filesystem::path(run_folder_) / "trace.json").string();
  std::vector<std::string> problems;
  std::string text = merge_chrome_json(paths, problems);
  try {
    write_file(path, text);
  } catch (const mesh::UsageError& error) {
    problems.emplace_back(error.what_without_backtrace());
  }
  return fmt::format(
      "trace of steps {} to {}: {} ({:.1f} MB; the traces of each rank are in "
      "{}). Open it with chrome://tracing or ui.perfetto.dev{}{}",
      first_traced_,
      last_traced_,
      path,
      static_cast<double>(text.size()) * 1e-6,
      folder,
      problems.empty() ? "" : "; missing: ",
      fmt::join(problems, "; "));
}

std::string StepTracer::write() {
  is_written_ = true;
  const auto folder = (std::filesystem::path(run_folder_) / "trace").string();
  const auto problem = write_own(folder);
  trace_ = {};
  // Ranks whose write failed reach the barrier, too.
  world_.group().barrier("trace");
  if (world_.rank() != 0) {
    return "";
  }
  const auto message = merge(folder);
  return problem.empty() ? message : fmt::format("{}; {}", message, problem);
}

} // namespace weft::train
