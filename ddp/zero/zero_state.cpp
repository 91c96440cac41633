#include "ddp/zero/zero_state.h"

#include <optional>
#include <utility>

#include <torch/torch.h>

#include "data_parallel/parameters/module_state.h"
#include "dtensor/nn/optimizer_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/error/error.h"

// Note [State of a divided optimizer]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// dtensor::optimizer_state_dict() reads the state of the parts that this rank
// holds from the bucket's optimizer. For the other parts it reads a temporary
// optimizer of tensors without rows, which has the same keys and dtypes and
// empty moments: this rank's shards. The moments then get the parameter's
// placements and, over dp, the placement of the part. Scalars, such as the step
// count of a parameter, are taken from one rank that holds the parameter.

namespace weft::ddp {
namespace {

using torch::optim::OptimizerParamGroup;
using Kind = ZeroPart::Kind;

constexpr const char* kStateOp = "optimizer_state_dict";

bool is_lead(const ZeroEntry& entry, int64_t rank) {
  return rank == (entry.part.kind == Kind::kOwned ? entry.part.owner : 0);
}

at::Tensor without_rows(const ZeroEntry& entry) {
  const auto local = data_parallel::local_part(entry.parameter);
  auto sizes = local.sizes().vec();
  sizes[entry.part.placement.tensor_dim()] = 0;
  return at::empty(sizes, local.options());
}

bool holds_state(ZeroBucket& bucket, const ZeroEntry& entry) {
  if (!entry.own.defined()) {
    return false;
  }
  const auto& state = bucket.inner().optimizer->state();
  const auto found = state.find(entry.own.unsafeGetTensorImpl());
  return found != state.end() &&
         dtensor::has_optimizer_state(found->second.get());
}

// Takes a step. SGD with dampening creates its momentum only in a step with a
// gradient.
void make_state(LocalOptimizer& inner) {
  for (auto& group : inner.optimizer->param_groups()) {
    const auto* sgd =
        dynamic_cast<const torch::optim::SGDOptions*>(&group.options());
    for (auto& tensor : group.params()) {
      if (sgd && sgd->dampening() != 0 && tensor.requires_grad()) {
        tensor.mutable_grad() = at::zeros_like(tensor);
      }
    }
  }
  inner.optimizer->step();
}

} // namespace

ZeroStateAccess::ZeroStateAccess(
    std::vector<ZeroBucket>& buckets,
    const ZeroOptimizerFactory& factory,
    std::vector<OptimizerParamGroup>& groups,
    const mesh::DeviceMesh& dp,
    const torch::nn::Module& module,
    const dtensor::StateDict* to_be_loaded)
    : groups_(groups),
      dp_(dp),
      joint_(dtensor::joint_mesh(module, dp)),
      to_be_loaded_(to_be_loaded),
      device_(
          data_parallel::local_part(buckets.front().entries().front().parameter)
              .device()) {
  for (const auto& item : module.named_parameters()) {
    names_.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  for (auto& bucket : buckets) {
    for (const auto& entry : bucket.entries()) {
      name_of(entry);
    }
    add_held(bucket);
  }
  note_frozen_state(buckets);
  for (auto& bucket : buckets) {
    add_rest(bucket, factory);
  }
}

const std::string& ZeroStateAccess::name_of(const ZeroEntry& entry) const {
  const auto found = names_.find(entry.parameter.unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(
      found != names_.end(),
      "[",
      kStateOp,
      "] the optimizer updates a tensor of sizes ",
      entry.parameter.sizes(),
      " that is not a parameter of the module. Pass the module whose "
      "parameters() it was made with.");
  return found->second;
}

bool ZeroStateAccess::is_to_be_loaded(const ZeroEntry& entry) const {
  return to_be_loaded_ && dtensor::holds_state(*to_be_loaded_, name_of(entry));
}

// Returns a state for dtensor::optimizer_state_dict() that marks the reader's
// parameters for which state will be loaded.
dtensor::StateDict ZeroStateAccess::held_by(const Reader& reader) const {
  dtensor::StateDict held;
  for (size_t i = 0; i < reader.entries.size(); ++i) {
    if (is_to_be_loaded(*reader.entries[i])) {
      held["state.p" + std::to_string(i) + ".held"] = at::Tensor();
    }
  }
  return held;
}

void ZeroStateAccess::add_held(ZeroBucket& bucket) {
  Reader reader;
  for (const auto& entry : bucket.entries()) {
    if (entry.own.defined()) {
      reader.stand_in.register_parameter(
          "p" + std::to_string(reader.entries.size()),
          entry.own,
          entry.parameter.requires_grad());
      reader.entries.push_back(&entry);
    }
  }
  if (!reader.entries.empty()) {
    bucket.inner().copy_options(groups_);
    reader.inner = &bucket.inner();
    readers_.push_back(std::move(reader));
  }
}

// Finds frozen parameters for which a rank has state, e.g. from before they
// were frozen, so that all replicas have the same keys.
void ZeroStateAccess::note_frozen_state(std::vector<ZeroBucket>& buckets) {
  std::vector<const ZeroEntry*> frozen;
  std::vector<int64_t> flags;
  for (auto& bucket : buckets) {
    for (const auto& entry : bucket.entries()) {
      if (!entry.parameter.requires_grad()) {
        frozen.push_back(&entry);
        flags.push_back(
            holds_state(bucket, entry) || is_to_be_loaded(entry) ? 1 : 0);
      }
    }
  }
  if (frozen.empty()) {
    return;
  }
  auto found = at::tensor(flags, at::kLong).to(device_);
  dp_.group(int64_t{0})
      .all_reduce(found, mesh::ReduceOp::kMax, "zero state")
      .wait();
  if (found.is_meta()) {
    return;
  }
  found = found.cpu();
  for (size_t i = 0; i < frozen.size(); ++i) {
    if (found[static_cast<int64_t>(i)].item<int64_t>() != 0) {
      frozen_with_state_.insert(frozen[i]);
    }
  }
}

void ZeroStateAccess::add_rest(
    ZeroBucket& bucket,
    const ZeroOptimizerFactory& factory) {
  Reader reader;
  std::vector<at::Tensor> tensors;
  for (const auto& entry : bucket.entries()) {
    tensors.push_back(entry.own.defined() ? at::Tensor() : without_rows(entry));
    if (tensors.back().defined()) {
      reader.stand_in.register_parameter(
          "p" + std::to_string(reader.entries.size()),
          tensors.back(),
          entry.parameter.requires_grad() ||
              frozen_with_state_.contains(&entry));
      reader.entries.push_back(&entry);
    }
  }
  if (!reader.entries.empty()) {
    reader.rest =
        LocalOptimizer::make(bucket.entries(), tensors, factory, groups_);
    make_state(reader.rest);
    readers_.push_back(std::move(reader));
  }
}

at::Tensor ZeroStateAccess::place(
    const ZeroEntry& entry,
    const at::Tensor& moment) const {
  const auto& parameter = entry.parameter;
  dtensor::Placements placements(joint_.ndim(), dtensor::Replicate());
  if (const auto* impl = dtensor::dtensor_impl(parameter)) {
    const auto& names = impl->spec().mesh().mesh_dim_names();
    for (size_t i = 0; i < names.size(); ++i) {
      placements[joint_.mesh_dim(names[i])] =
          impl->spec().placement(static_cast<int64_t>(i));
    }
  }
  placements[joint_.mesh_dim(dp_.mesh_dim_names().front())] =
      entry.part.placement;
  return dtensor::make_dtensor(
      moment,
      dtensor::fitted(
          dtensor::DTensorSpec(joint_, placements), parameter.sizes()),
      parameter.sizes(),
      dtensor::dense_strides(parameter.sizes(), parameter.strides()));
}

// Errors show the parameter's name in the module.
dtensor::StateDict ZeroStateAccess::state_of(
    const Reader& reader,
    LocalOptimizer& inner) const {
  const auto held = held_by(reader);
  try {
    return dtensor::optimizer_state_dict(
        *inner.optimizer, reader.stand_in, joint_, &held);
  } catch (const c10::NotImplementedError& error) {
    std::string text = error.what_without_backtrace();
    for (size_t i = 0; i < reader.entries.size(); ++i) {
      const auto own = "\"p" + std::to_string(i) + "\"";
      if (const auto at = text.find(own); at != std::string::npos) {
        text.replace(at, own.size(), "\"" + name_of(*reader.entries[i]) + "\"");
        break;
      }
    }
    mesh::throw_error<c10::NotImplementedError>(text);
  }
}

void ZeroStateAccess::read(Reader& reader, dtensor::StateDict& result) {
  auto& inner = reader.inner ? *reader.inner : reader.rest;
  reader.keys.clear();
  for (const auto& [key, value] : state_of(reader, inner)) {
    // The keys are e.g. "state.p3.exp_avg" and "param_groups.p3.lr".
    const auto begin = key.find('.') + 1;
    const auto end = key.find('.', begin);
    const auto& entry =
        *reader.entries.at(std::stoul(key.substr(begin + 1, end - begin - 1)));
    const auto name = key.substr(0, begin) + name_of(entry) + key.substr(end);
    reader.keys.emplace_back(key, name);
    if (entry.part.kind == Kind::kReplicated || !key.starts_with("state.")) {
      result.emplace(name, value);
    } else if (value.dim() == 0) {
      result.emplace(name, value);
      numbers_[name] = is_lead(entry, dp_.coordinate(int64_t{0}));
    } else {
      result.emplace(name, place(entry, data_parallel::local_part(value)));
    }
  }
}

// Throws on all replicas if one of them has an error.
void ZeroStateAccess::agree(const std::exception_ptr& error) {
  const auto failed = at::full({1}, error ? 1 : 0, at::kLong).to(device_);
  dp_.group(int64_t{0})
      .all_reduce(failed, mesh::ReduceOp::kMax, "zero state")
      .wait();
  if (error) {
    std::rethrow_exception(error);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      failed.is_meta() || failed.item<int64_t>() == 0,
      "[",
      kStateOp,
      "] another replica could not read its part of the state. See the error "
      "on that rank.");
}

void ZeroStateAccess::broadcast_numbers_from_leads(dtensor::StateDict& result) {
  if (numbers_.empty()) {
    return;
  }
  auto values = at::zeros({static_cast<int64_t>(numbers_.size())}, at::kDouble);
  auto* value = values.mutable_data_ptr<double>();
  for (const auto& [name, is_own] : numbers_) {
    *value++ = is_own
                   ? data_parallel::local_part(result.at(name)).item<double>()
                   : 0.0;
  }
  values = values.to(device_);
  dp_.group(int64_t{0})
      .all_reduce(values, mesh::ReduceOp::kSum, "zero state")
      .wait();
  if (values.is_meta()) {
    return;
  }
  values = values.cpu();
  int64_t index = 0;
  for (const auto& [name, is_own] : numbers_) {
    data_parallel::local_part(result.at(name)).fill_(values[index++]);
  }
}

dtensor::StateDict ZeroStateAccess::read() {
  const at::NoGradGuard no_grad;
  dtensor::StateDict result;
  std::exception_ptr error;
  try {
    for (auto& reader : readers_) {
      read(reader, result);
    }
  } catch (...) {
    error = std::current_exception();
  }
  agree(error);
  broadcast_numbers_from_leads(result);
  return result;
}

dtensor::StateDict ZeroStateAccess::state_dict() {
  return read();
}

void ZeroStateAccess::load(const dtensor::StateDict& state) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<std::string, size_t>> groups;
  for (const auto& reader : readers_) {
    for (const auto* entry : reader.entries) {
      groups.emplace_back(name_of(*entry), entry->group);
    }
  }
  dtensor::check_numbers_of_groups(groups, state);
  dtensor::StateDict fitted;
  for (const auto& [name, own] : read()) {
    const auto found = state.find(name);
    TORCH_CHECK_VALUE(
        found != state.end(),
        "[load_optimizer_state_dict] \"",
        name,
        "\" is missing.");
    TORCH_CHECK_VALUE(
        found->second.sizes() == own.sizes(),
        "[load_optimizer_state_dict] \"",
        name,
        "\" is ",
        found->second.sizes(),
        " and should be ",
        own.sizes(),
        ".");
    fitted[name] = data_parallel::local_part(dtensor::redistribute(
        dtensor::on_mesh(found->second, joint_),
        dtensor::spec_of(own).placements()));
  }
  for (auto& reader : readers_) {
    auto& inner = reader.inner ? *reader.inner : reader.rest;
    dtensor::StateDict own;
    for (const auto& [key, name] : reader.keys) {
      own[key] = fitted.at(name);
    }
    dtensor::load_optimizer_state_dict(*inner.optimizer, reader.stand_in, own);
    const auto& loaded = inner.optimizer->param_groups();
    for (size_t i = 0; i < loaded.size(); ++i) {
      groups_[inner.groups[i]].set_options(loaded[i].options().clone());
    }
  }
}

dtensor::StateDict ZeroStateAccess::consolidated(int64_t to) {
  bool is_target = dp_.coordinate(int64_t{0}) == to;
  for (const auto& name : joint_.mesh_dim_names()) {
    is_target = is_target && (dp_.has_mesh_dim(name) ||
                              joint_.coordinate(std::string_view(name)) == 0);
  }
  const at::NoGradGuard no_grad;
  dtensor::StateDict whole;
  for (const auto& [name, tensor] : read()) {
    const auto full = dtensor::full_tensor(tensor);
    if (is_target) {
      whole[name] = full.clone();
    }
  }
  return whole;
}

} // namespace weft::ddp
