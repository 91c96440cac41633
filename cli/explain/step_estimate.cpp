#include "cli/explain/step_estimate.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <torch/torch.h>

#include "cli/explain/measured.h"
#include "cli/explain/memory_meter.h"
#include "dtensor/debug/explain.h"
#include "dtensor/nn/clip_grad.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/world.h"
#include "train/setup/job_mesh.h"
#include "train/setup/loss.h"
#include "train/setup/train_job.h"
#include "train/setup/validate.h"
#include "train/store/link_costs.h"

namespace weft::cli {
namespace {

// A step of the trainer on tensors of the meta device. A test compares its
// collectives with those in the trainer's flight records.
class DryRun {
 public:
  DryRun(const config::Recipe& recipe, const mesh::DeviceMesh& mesh)
      : recipe_(recipe), job_(train::make_train_job(recipe, mesh, at::kMeta)) {}

  train::TrainJob& job() { return job_; }

  at::Tensor forward() {
    const auto batch = recipe_.train.micro_batch_size;
    const auto& model = recipe_.model;
    if (recipe_.data.type != config::DataType::kDigits) {
      const auto tokens =
          whole({batch, recipe_.data.sequence_length}, at::kLong);
      return loss(tokens, tokens);
    }
    return loss(
        whole(
            {batch, model.channels, model.image_size, model.image_size},
            at::kFloat),
        whole({batch}, at::kLong));
  }

  void update(const at::Tensor& loss) {
    {
      // The trainer reads the loss, which reduces its Partial placements.
      const at::NoGradGuard no_grad;
      dtensor::full_tensor(loss);
    }
    // See Note [Messages of a step].
    const auto batch = train::batch_mesh(job_.mesh);
    if (batch.size() > 1) {
      auto over_dp = at::zeros({4}, at::kDouble);
      batch.group(0).all_reduce(over_dp, mesh::ReduceOp::kSum, "loss").wait();
    }
    dtensor::GradNorm(job_.model->parameters())
        .all_reduce(job_.mesh["tp"], at::zeros({4}, at::kDouble));
    if (job_.average) {
      job_.average->begin();
    }
    job_.optimizer->step();
  }

 private:
  // Returns a tensor that is replicated over "tp", as a batch is. It is a
  // DTensor, because the dispatcher prefers the kernels of the meta device over
  // those of DTensors if an argument is a plain meta tensor.
  at::Tensor whole(c10::IntArrayRef sizes, at::ScalarType dtype) const {
    return dtensor::from_local(
        at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta)),
        job_.mesh["tp"],
        {dtensor::Replicate()});
  }

  at::Tensor loss(const at::Tensor& input, const at::Tensor& target) {
    return train::training_loss(
        recipe_, *job_.model, job_.data_parallel->forward(input), target);
  }

  const config::Recipe& recipe_;
  train::TrainJob job_;
};

mesh::LinkCost price_of(const config::Recipe& recipe, bool between_hosts) {
  return mesh::default_link_cost(
      recipe.device == config::Device::kCuda ? "nccl" : "shm", between_hosts);
}

// Returns the cost that the planner of a run assumes, on whatever hosts its
// ranks are.
mesh::LinkCost planned_price(const config::Recipe& recipe) {
  return mesh::default_link_cost(
      recipe.device == config::Device::kCuda ? "nccl" : "gloo");
}

// Returns true if the ranks are on several hosts. Consecutive ranks share a
// host.
bool spans_hosts(const std::vector<int64_t>& ranks, int64_t ranks_per_host) {
  return std::ranges::any_of(ranks, [&](int64_t rank) {
    return rank / ranks_per_host != ranks.front() / ranks_per_host;
  });
}

std::vector<LinkEstimate> find_links(
    const config::Recipe& recipe,
    const mesh::DeviceMesh& mesh,
    int64_t ranks_per_host) {
  constexpr int64_t kDevicesOfAHost = 8;
  if (ranks_per_host == 0) {
    ranks_per_host =
        recipe.device == config::Device::kCuda ? kDevicesOfAHost : mesh.size();
  }
  std::vector<LinkEstimate> links;
  for (const auto& name : mesh.mesh_dim_names()) {
    const auto& group = mesh.group(name);
    const bool between = spans_hosts(group.ranks(), ranks_per_host);
    links.push_back(
        {name,
         group.size(),
         between,
         train::configured_link_cost(recipe, name)
             .value_or(price_of(recipe, between))});
  }
  return links;
}

// An accumulator of communication records. A part of the step that is repeated
// adds its records `times` times.
class Collector {
 public:
  explicit Collector(StepEstimate& estimate) : estimate_(estimate) {}

  void add(
      const std::vector<dtensor::CommRecord>& records,
      const char* phase,
      int64_t times) {
    for (const auto& record : records) {
      auto& group = find(record, record.is_backward ? "backward" : phase);
      group.count += times;
      group.bytes += times * record.bytes;
      group.max_bytes = std::max(group.max_bytes, record.bytes);
      group.estimated_us +=
          static_cast<double>(times) *
          dtensor::estimated_us(
              record.op, record.ranks, record.bytes, link(record.mesh_dim));
    }
  }

 private:
  const mesh::LinkCost& link(const std::string& mesh_dim) const {
    for (const auto& known : estimate_.links) {
      if (known.mesh_dim == mesh_dim) {
        return known.cost;
      }
    }
    // A group over several mesh dims has the link of the outermost one.
    return estimate_.links.front().cost;
  }

  CollectiveGroup& find(
      const dtensor::CommRecord& record,
      const std::string& phase) {
    CollectiveGroup key{
        .phase = phase,
        .op = record.op,
        .mesh_dim = record.mesh_dim,
        .ranks = record.ranks,
        .name = without_numbers(record.name),
        .is_implicit = record.is_implicit,
        .from = record.from,
        .to = record.to,
        .cheaper = record.cheaper};
    for (auto& group : estimate_.collectives) {
      if (group.phase == key.phase && group.op == key.op &&
          group.mesh_dim == key.mesh_dim && group.name == key.name &&
          group.is_implicit == key.is_implicit && group.from == key.from &&
          group.to == key.to) {
        return group;
      }
    }
    return estimate_.collectives.emplace_back(std::move(key));
  }

  StepEstimate& estimate_;
};

int64_t local_bytes(const std::vector<at::Tensor>& tensors) {
  std::set<const void*> seen;
  int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    const auto* impl = dtensor::dtensor_impl(tensor);
    const auto& local = impl ? impl->local() : tensor;
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) {
      bytes += static_cast<int64_t>(local.nbytes());
    }
  }
  return bytes;
}

// The peak memory of forward and backward in addition to parameters and
// gradients. Gradients arrive one by one during backward and stay allocated.
class PeakTally {
 public:
  PeakTally(MemoryMeter& meter, const train::TrainJob& job)
      : meter_(meter), job_(job), base_(meter.live_bytes()) {
    if (is_sharded()) {
      return;
    }
    for (const auto& parameter : job.model->parameters()) {
      if (!parameter.requires_grad()) {
        continue;
      }
      const int64_t bytes = local_bytes({parameter});
      parameter.register_hook([this, bytes](const at::Tensor& /*gradient*/) {
        look();
        gradients_ += grows_ ? bytes : 0;
      });
    }
  }

  /// Called before a forward.
  void begin() { meter_.reset_peak(); }
  /// Called after a backward. The next backward accumulates into the gradients
  /// that this one has allocated.
  void end() {
    if (is_sharded()) {
      look();
    }
    gradients_ = meter_.live_bytes() - base_ - held_for_units();
    grows_ = false;
  }

  /// Returns the bytes that are held in addition to parameters, gradients and
  /// gathered units.
  int64_t held() const {
    return meter_.live_bytes() - base_ - gradients_ - held_for_units();
  }
  int64_t gradients() const { return gradients_; }
  int64_t peak() const {
    return is_sharded() ? peak_ - gradients_ - peak_of_units() : peak_;
  }

 private:
  /// Returns true if the parameters are sharded (FSDP). Backward then gathers
  /// units and frees gradients after their reduction, so the peak is that of
  /// everything together.
  bool is_sharded() const { return job_.ddp == nullptr; }

  /// Return the bytes that are held for units, and the peak of the bytes in
  /// use.
  int64_t held_for_units() const {
    return job_.data_parallel->gathered_memory().held;
  }
  int64_t peak_of_units() const {
    const auto memory = job_.data_parallel->gathered_memory();
    return memory.unsharded + memory.messages;
  }

  void look() {
    peak_ = std::max(
        peak_, meter_.peak_bytes() - base_ - (is_sharded() ? 0 : gradients_));
    meter_.reset_peak();
  }

  MemoryMeter& meter_;
  const train::TrainJob& job_;
  int64_t base_;
  int64_t gradients_ = 0;
  int64_t peak_ = 0;
  bool grows_ = true;
};

at::Tensor
run_micro_batch(DryRun& run, PeakTally& tally, MemoryEstimate& memory) {
  tally.begin();
  const auto loss = run.forward();
  memory.saved_activations = std::max(memory.saved_activations, tally.held());
  loss.backward();
  tally.end();
  return loss.detach();
}

void run_step(
    DryRun& run,
    const mesh::DeviceMesh& mesh,
    MemoryMeter& meter,
    StepEstimate& estimate) {
  auto& job = run.job();
  auto& memory = estimate.memory;
  Collector collector(estimate);
  PeakTally tally(meter, job);
  const auto record = [&](const char* phase, int64_t times, const auto& body) {
    const dtensor::CommDebugMode mode(
        {.mesh = mesh, .module = job.model.get(), .find_cheaper = true});
    body();
    collector.add(mode.records(), phase, times);
  };
  at::Tensor loss;
  if (estimate.micro_batches > 1) {
    // All micro-batches except the last are alike.
    record("forward", estimate.micro_batches - 1, [&] {
      const auto local_only = job.data_parallel->no_sync();
      run_micro_batch(run, tally, memory);
    });
  }
  record("forward", 1, [&] { loss = run_micro_batch(run, tally, memory); });
  // The separately counted peaks may occur at different times, so their
  // difference may be less than the saved activations.
  memory.peak_activations = std::max(tally.peak(), memory.saved_activations);
  memory.gradients = tally.gradients();
  const auto gathered = job.data_parallel->gathered_memory();
  memory.unsharded = gathered.unsharded;
  memory.reduction_buffers = gathered.messages;
  const int64_t before = meter.live_bytes();
  record("update", 1, [&] { run.update(loss); });
  memory.optimizer = meter.live_bytes() - before;
}

// Fills the plan cache for all layers with a model of two layers. Planning uses
// tensors of global sizes, which must not appear in the records and the memory
// of the measured step.
void make_plans(const config::Recipe& recipe, const mesh::DeviceMesh& mesh) {
  auto two_layers = recipe;
  two_layers.model.layers = std::min<int64_t>(2, recipe.model.layers);
  DryRun run(two_layers, mesh);
  const auto loss = run.forward();
  loss.backward();
  run.update(loss.detach());
}

} // namespace

int64_t StepEstimate::collective_count() const {
  int64_t sum = 0;
  for (const auto& group : collectives) {
    sum += group.count;
  }
  return sum;
}

int64_t StepEstimate::implicit_count() const {
  int64_t sum = 0;
  for (const auto& group : collectives) {
    sum += group.is_implicit ? group.count : 0;
  }
  return sum;
}

int64_t StepEstimate::bytes() const {
  int64_t sum = 0;
  for (const auto& group : collectives) {
    sum += group.bytes;
  }
  return sum;
}

double StepEstimate::estimated_us() const {
  double sum = 0;
  for (const auto& group : collectives) {
    sum += group.estimated_us;
  }
  return sum;
}

StepEstimate estimate_step(
    const config::Recipe& recipe,
    const EstimateOptions& options) {
  MemoryMeter meter;
  StepEstimate estimate;
  estimate.world_size = recipe.mesh.world_size();
  estimate.micro_batches = train::accumulation_steps(recipe);
  const auto world = mesh::World::fake(0, estimate.world_size);
  const auto mesh = train::make_job_mesh(recipe, world);
  estimate.links = find_links(recipe, mesh, options.ranks_per_host);
  // Plans with the costs of a run, whose cost table ignores hosts.
  for (const auto& name : mesh.mesh_dim_names()) {
    mesh::set_link_cost(
        mesh,
        name,
        train::configured_link_cost(recipe, name)
            .value_or(planned_price(recipe)));
  }
  make_plans(recipe, mesh);
  DryRun run(recipe, mesh);
  run.job().data_parallel->synchronize_parameters();
  const auto parameters = run.job().model->parameters();
  for (const auto& parameter : parameters) {
    estimate.parameter_count += parameter.numel();
  }
  estimate.memory.parameters = local_bytes(parameters);
  std::vector<at::Tensor> buffers;
  for (const auto& buffer : run.job().model->buffers()) {
    buffers.push_back(buffer);
  }
  estimate.memory.buffers = local_bytes(buffers);
  run_step(run, mesh, meter, estimate);
  return estimate;
}

std::vector<std::string> over_budget(
    const StepEstimate& estimate,
    const config::CommunicationBudgetConfig& budget) {
  std::vector<std::string> over;
  const double mb = static_cast<double>(estimate.bytes()) * 1e-6;
  if (budget.mb_per_step > 0 && mb > budget.mb_per_step) {
    over.push_back(fmt::format(
        "{:.2f} MB a step, communication_budget.mb_per_step={}",
        mb,
        budget.mb_per_step));
  }
  if (budget.collectives_per_step > 0 &&
      estimate.collective_count() > budget.collectives_per_step) {
    over.push_back(fmt::format(
        "{} collectives a step, communication_budget.collectives_per_step={}",
        estimate.collective_count(),
        budget.collectives_per_step));
  }
  if (budget.implicit_collectives >= 0 &&
      estimate.implicit_count() > budget.implicit_collectives) {
    over.push_back(fmt::format(
        "{} implicit collectives a step, "
        "communication_budget.implicit_collectives={}",
        estimate.implicit_count(),
        budget.implicit_collectives));
  }
  return over;
}

} // namespace weft::cli
