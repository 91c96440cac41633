#include "ddp/zero/zero_redundancy_optimizer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <typeinfo>
#include <unordered_set>

#include <torch/torch.h>

#include "base/string_streams.h"
#include "data_parallel/join/join.h"
#include "data_parallel/parameters/module_state.h"
#include "ddp/reducer/optimizer_in_backward.h"
#include "ddp/zero/zero_state.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"

// Note [Buckets of the sharded optimizer]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// An optimizer steps all of its groups at once. So each bucket has its own
// optimizer on each rank, for this rank's parts of the bucket's parameters: the
// next bucket is updated while one is gathered. Parameters keep the order in
// which forward uses them, so that with overlap_with_forward the first ones are
// gathered first.
//
// Users and schedulers access the groups of the outer optimizer. Their options
// are copied to the inner optimizers before each update.

namespace weft::ddp {
namespace {

using torch::optim::OptimizerParamGroup;

constexpr const char* kZeroOp = "ZeroRedundancyOptimizer";

mesh::ErrorContext where_in(const mesh::DeviceMesh& mesh) {
  return {mesh.describe_rank()};
}

std::string
describe_parameter(size_t group, size_t index, const at::Tensor& p) {
  base::StringWriter out;
  out << "group " << group << " parameter " << index << " " << p.sizes() << " "
      << c10::toString(p.scalar_type());
  const auto local = data_parallel::local_part(p);
  if (!local.is_contiguous()) {
    out << " strides " << local.strides();
  }
  if (const auto* impl = dtensor::dtensor_impl(p)) {
    out << " " << impl->spec().to_string() << " local " << local.sizes();
  }
  out << " on " << c10::DeviceTypeName(local.device().type(), true)
      << (p.requires_grad() ? "" : " frozen");
  return out.str();
}

void check_parameter(
    size_t group,
    size_t index,
    const at::Tensor& p,
    const mesh::DeviceMesh& dp) {
  WEFT_CHECK(
      p.defined(),
      kZeroOp,
      where_in(dp),
      "group ",
      group,
      " parameter ",
      index,
      " is undefined.");
  dtensor::check_materialized(p, kZeroOp);
  const auto text = [&] { return describe_parameter(group, index, p); };
  WEFT_CHECK(
      p.is_leaf(),
      kZeroOp,
      where_in(dp),
      text(),
      " is not a leaf: it was computed from other tensors. Pass the module's "
      "parameters().");
  WEFT_CHECK(
      p.layout() == at::kStrided,
      kZeroOp,
      where_in(dp),
      text(),
      " is sparse. Only dense parameters can be sharded.");
  WEFT_CHECK(
      !p.requires_grad() || OptimizerInBackward::of(p) == nullptr,
      kZeroOp,
      where_in(dp),
      text(),
      " already has an optimizer that steps in backward and frees the "
      "gradient. Use only one of the two optimizers.");
}

/// Returns `groups`. Throws if they have an error that one rank can detect.
std::vector<OptimizerParamGroup> checked_groups(
    std::vector<OptimizerParamGroup> groups,
    const mesh::DeviceMesh& dp) {
  WEFT_CHECK(
      dp.ndim() == 1,
      kZeroOp,
      where_in(dp),
      "mesh: got ",
      dp.ndim(),
      " mesh dims, expected 1, that of the replicas. Pass a slice, e.g. "
      "mesh[\"dp\"].");
  std::unordered_set<const c10::TensorImpl*> seen;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& parameters = groups[g].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      check_parameter(g, i, parameters[i], dp);
      WEFT_CHECK(
          seen.insert(parameters[i].unsafeGetTensorImpl()).second,
          kZeroOp,
          where_in(dp),
          describe_parameter(g, i, parameters[i]),
          " was given twice. Pass each parameter once.");
    }
  }
  WEFT_CHECK(
      !seen.empty(),
      kZeroOp,
      where_in(dp),
      "no parameters were given. Pass the module's parameters().");
  return groups;
}

std::unique_ptr<torch::optim::OptimizerOptions> default_options(
    const ZeroOptimizerFactory& factory,
    const mesh::DeviceMesh& dp) {
  WEFT_CHECK(factory, kZeroOp, where_in(dp), "the factory is empty.");
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{at::zeros({1}).requires_grad_()});
  const auto sample = factory(std::move(groups));
  WEFT_CHECK(
      sample,
      kZeroOp,
      where_in(dp),
      "the factory returned a null pointer. Return an optimizer.");
  WEFT_CHECK(
      dynamic_cast<const torch::optim::LBFGS*>(sample.get()) == nullptr,
      kZeroOp,
      where_in(dp),
      "LBFGS cannot be sharded: it searches along one direction for all "
      "parameters together. Use it directly; its state is identical on all "
      "replicas.");
  return sample->defaults().clone();
}

c10::Device device_of(const std::vector<OptimizerParamGroup>& groups) {
  for (const auto& group : groups) {
    if (!group.params().empty()) {
      return data_parallel::local_part(group.params().front()).device();
    }
  }
  return c10::Device(c10::DeviceType::CPU);
}

/// The properties that all parameters of a bucket have in common.
using BucketKind =
    std::tuple<c10::ScalarType, c10::DeviceType, int, ZeroPart::Kind>;

BucketKind kind_of(const ZeroEntry& entry) {
  const auto local = data_parallel::local_part(entry.parameter);
  return {
      local.scalar_type(),
      local.device().type(),
      local.device().has_index() ? local.device().index() : -1,
      entry.part.kind};
}

std::vector<std::vector<ZeroEntry>> fill_buckets(
    std::vector<ZeroEntry> entries,
    int64_t cap_bytes) {
  std::vector<std::vector<ZeroEntry>> buckets;
  std::map<BucketKind, std::pair<size_t, int64_t>> open;
  for (auto& entry : entries) {
    const auto kind = kind_of(entry);
    const auto bytes = static_cast<int64_t>(
        data_parallel::local_part(entry.parameter).nbytes());
    auto found = open.find(kind);
    if (found == open.end() || found->second.second + bytes > cap_bytes) {
      found = open.insert_or_assign(kind, std::pair{buckets.size(), 0}).first;
      buckets.emplace_back();
    }
    found->second.second += bytes;
    buckets[found->second.first].push_back(std::move(entry));
  }
  return buckets;
}

int64_t checked_cap_bytes(double mib, const mesh::DeviceMesh& dp) {
  WEFT_CHECK(
      mib > 0,
      kZeroOp,
      where_in(dp),
      "bucket_cap_mb is ",
      mib,
      ", but it must be positive. Leave it out to get the default of 25.");
  return static_cast<int64_t>(std::min(mib, 1e9) * (1 << 20));
}

} // namespace

class ZeroRedundancyOptimizer::Hook : public data_parallel::JoinHook {
 public:
  explicit Hook(ZeroRedundancyOptimizer& optimizer) : optimizer_(optimizer) {}
  void main_hook() override { optimizer_.update(); }
  void post_hook(bool /*is_last_joiner*/) override {
    optimizer_.wait_for_parameters();
  }

 private:
  ZeroRedundancyOptimizer& optimizer_;
};

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(
    std::vector<OptimizerParamGroup> groups,
    ZeroOptimizerFactory factory,
    const mesh::DeviceMesh& dp,
    ZeroRedundancyOptimizerOptions options)
    : Optimizer(
          checked_groups(std::move(groups), dp),
          default_options(factory, dp)),
      zero_(std::make_shared<State>(State{
          .dp = dp,
          .options = options,
          .cap_bytes = checked_cap_bytes(options.bucket_cap_mb, dp),
          .factory = std::move(factory),
          .planner = PartPlanner(dp, options.partition),
          .device = device_of(param_groups())})) {
  take_new_parameters();
}

ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() = default;

// Plans all parameters at the first call, later those of groups that were
// added.
void ZeroRedundancyOptimizer::take_new_parameters() {
  auto& zero = *zero_;
  const auto& groups = param_groups();
  std::vector<ZeroEntry> entries;
  std::vector<std::string> lines;
  WEFT_CHECK(
      zero.planned.size() <= groups.size(),
      kZeroOp,
      where_in(zero.dp),
      "parameter groups: got ",
      groups.size(),
      ", expected at least ",
      zero.planned.size(),
      ", because groups cannot be removed. Create a new optimizer.");
  auto planned = zero.planned;
  planned.resize(groups.size(), 0);
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& all = groups[g].params();
    WEFT_CHECK(
        planned[g] <= all.size(),
        kZeroOp,
        where_in(zero.dp),
        "parameter group ",
        g,
        ": got ",
        all.size(),
        " parameters, expected at least ",
        planned[g],
        ", because parameters cannot be removed. Create a new optimizer.");
    const std::vector<at::Tensor> fresh(all.begin() + planned[g], all.end());
    for (size_t i = 0; i < fresh.size(); ++i) {
      check_parameter(g, planned[g] + i, fresh[i], zero.dp);
      lines.push_back(describe_parameter(g, planned[g] + i, fresh[i]));
    }
    const auto parts = zero.planner.plan(fresh);
    for (size_t i = 0; i < fresh.size(); ++i) {
      entries.push_back({fresh[i], g, parts[i]});
    }
    planned[g] = all.size();
  }
  if (entries.empty()) {
    return;
  }
  zero.check_agreement(std::move(lines), defaults());
  zero.planned = std::move(planned);
  make_buckets(std::move(entries));
}

void ZeroRedundancyOptimizer::make_buckets(std::vector<ZeroEntry> entries) {
  auto& zero = *zero_;
  for (auto& bucket : fill_buckets(std::move(entries), zero.cap_bytes)) {
    zero.buckets.emplace_back(
        std::move(bucket),
        zero.group(),
        ZeroBucket::Options{
            .in_place = zero.options.parameters_as_bucket_view,
            .name = "zero bucket " + std::to_string(zero.buckets.size())});
    zero.buckets.back().make_inner(zero.factory, param_groups());
  }
}

void ZeroRedundancyOptimizer::State::check_agreement(
    std::vector<std::string> lines,
    const torch::optim::OptimizerOptions& defaults) const {
  auto communicator = group();
  if (dp.size() == 1 || communicator.backend() == "fake") {
    return;
  }
  lines.push_back(mesh::detail::concat(
      "options: partition ",
      options.partition == ZeroPartition::kEvenSplit ? "kEvenSplit"
                                                     : "kWholeParameters",
      ", parameters_as_bucket_view ",
      options.parameters_as_bucket_view,
      ", bucket_cap_mb ",
      options.bucket_cap_mb,
      ", overlap_with_forward ",
      options.overlap_with_forward));
  lines.push_back(
      mesh::detail::concat("optimizer options ", typeid(defaults).name()));
  mesh::check_lines_match(
      communicator,
      lines,
      {.op = kZeroOp,
       .what = "the list of parameters",
       .hint = "Give the optimizer the same on every rank.",
       .where = dp.describe_rank()},
      device);
}

void ZeroRedundancyOptimizer::update() {
  auto& zero = *zero_;
  take_new_parameters();
  wait_for_parameters();
  if (zero.before_update) {
    zero.before_update();
  }
  // When a Join ends, DDP broadcasts the parameters of a rank that trained
  // last. They must be complete then.
  const bool overlaps =
      zero.options.overlap_with_forward && !join_config().enable;
  ZeroBucket* previous = nullptr;
  for (auto& bucket : zero.buckets) {
    bucket.update(param_groups());
    bucket.start_gather();
    if (previous && !overlaps) {
      previous->finish_gather();
    }
    previous = &bucket;
  }
  if (!overlaps) {
    wait_for_parameters();
  }
}

at::Tensor ZeroRedundancyOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    // The closure may read parameters.
    wait_for_parameters();
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  data_parallel::Join::notify_join_context(*this);
  update();
  return loss;
}

void ZeroRedundancyOptimizer::before_update(std::function<void()> function) {
  zero_->before_update = std::move(function);
}

void ZeroRedundancyOptimizer::wait_for_parameters() {
  for (auto& bucket : zero_->buckets) {
    bucket.finish_gather();
  }
}

void ZeroRedundancyOptimizer::wait_for_parameters(
    const torch::nn::Module& module) {
  zero_->wait_for(module);
}

void ZeroRedundancyOptimizer::wait_before_forward(torch::nn::Module& module) {
  // The module owns the hook and may outlive the optimizer, so the hook refers
  // to the state weakly.
  dtensor::module_hooks(module).before.emplace_back(
      [zero = std::weak_ptr<State>(zero_), &module](std::vector<at::Tensor>&) {
        if (const auto alive = zero.lock()) {
          alive->wait_for(module);
        }
      });
}

void ZeroRedundancyOptimizer::State::wait_for(const torch::nn::Module& module) {
  std::optional<std::unordered_set<const c10::TensorImpl*>> wanted;
  for (auto& bucket : buckets) {
    if (!bucket.is_gathering()) {
      continue;
    }
    if (!wanted) {
      wanted.emplace();
      for (const auto& parameter : module.parameters()) {
        wanted->insert(parameter.unsafeGetTensorImpl());
      }
    }
    const auto& entries = bucket.entries();
    if (std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
          return wanted->contains(entry.parameter.unsafeGetTensorImpl());
        })) {
      bucket.finish_gather();
    }
  }
}

void ZeroRedundancyOptimizer::save(torch::serialize::OutputArchive&) const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "[",
      kZeroOp,
      "] a rank's archive would contain only a part of the state. Save "
      "state_dict() by weft::checkpoint, or consolidate_state_dict().");
}

void ZeroRedundancyOptimizer::load(torch::serialize::InputArchive&) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "[",
      kZeroOp,
      "] use load_state_dict() with the result of state_dict().");
}

std::shared_ptr<data_parallel::JoinHook> ZeroRedundancyOptimizer::join_hook(
    const data_parallel::JoinKwargs& /*kwargs*/) {
  return std::make_shared<Hook>(*this);
}

c10::Device ZeroRedundancyOptimizer::join_device() const {
  return zero_->device;
}

mesh::Communicator ZeroRedundancyOptimizer::join_process_group() const {
  return zero_->group();
}

mesh::DeviceMesh ZeroRedundancyOptimizer::join_model_parallel_mesh() const {
  std::set<std::string> used;
  for (const auto& bucket : zero_->buckets) {
    for (const auto& entry : bucket.entries()) {
      if (const auto* impl = dtensor::dtensor_impl(entry.parameter)) {
        const auto& names = impl->spec().mesh().mesh_dim_names();
        used.insert(names.begin(), names.end());
      }
    }
  }
  if (used.empty()) {
    return {};
  }
  std::vector<std::string> dims;
  for (const auto& name : zero_->dp.root().mesh_dim_names()) {
    if (used.contains(name)) {
      dims.push_back(name);
    }
  }
  return zero_->dp.root().slice(dims);
}

const mesh::DeviceMesh& ZeroRedundancyOptimizer::mesh() const {
  return zero_->dp;
}

std::vector<std::pair<at::Tensor, ZeroPart>> ZeroRedundancyOptimizer::parts()
    const {
  std::vector<std::pair<at::Tensor, ZeroPart>> all;
  for (const auto& group : param_groups()) {
    for (const auto& parameter : group.params()) {
      for (const auto& bucket : zero_->buckets) {
        for (const auto& entry : bucket.entries()) {
          if (entry.parameter.is_same(parameter)) {
            all.emplace_back(parameter, entry.part);
          }
        }
      }
    }
  }
  return all;
}

ZeroStateAccess ZeroRedundancyOptimizer::state_access(
    const torch::nn::Module& module,
    const dtensor::StateDict* to_be_loaded) {
  take_new_parameters();
  wait_for_parameters();
  return {
      zero_->buckets,
      zero_->factory,
      param_groups(),
      zero_->dp,
      module,
      to_be_loaded};
}

dtensor::StateDict ZeroRedundancyOptimizer::state_dict(
    const torch::nn::Module& module,
    const dtensor::StateDict* to_be_loaded) {
  return state_access(module, to_be_loaded).state_dict();
}

void ZeroRedundancyOptimizer::load_state_dict(
    const torch::nn::Module& module,
    const dtensor::StateDict& state) {
  state_access(module, &state).load(state);
}

dtensor::StateDict ZeroRedundancyOptimizer::consolidate_state_dict(
    const torch::nn::Module& module,
    int64_t to) {
  WEFT_CHECK(
      0 <= to && to < zero_->dp.size(),
      "consolidate_state_dict",
      where_in(zero_->dp),
      "there is no rank ",
      to,
      " among ",
      zero_->dp.size(),
      " replicas.");
  return state_access(module).consolidated(to);
}

std::vector<at::Tensor> without_repeats(
    const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  for (const auto& parameter : parameters) {
    const bool is_listed = std::ranges::any_of(
        result, [&](const auto& each) { return each.is_same(parameter); });
    if (!is_listed) {
      result.push_back(parameter);
    }
  }
  return result;
}

} // namespace weft::ddp
