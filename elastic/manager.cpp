#include "elastic/manager.h"

#include <algorithm>
#include <string>

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dtensor/nn/optimizer_state.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "lighthouse/clock.h"
#include "lighthouse/lighthouse.h"
#include "mesh/device_mesh.h"
#include "mesh/error/error.h"

// Note [Ranks of a group]
// ~~~~~~~~~~~~~~~~~~~~~~~
// To the lighthouse a group is one member, for which its rank 0 speaks: the
// leader. The ranks of a group take each decision together, over the world of
// the group. They vote on what may differ between them (whether this rank met
// its peers of the other groups, whether its gradients are complete). The
// leader broadcasts what it alone knows (which epoch comes, whether a step is
// committed). So:
//  - Collectives inside a group always complete: a failure of one among the
//    groups is kept for the vote.
//  - A group is prepared for a step when all its ranks have voted for it (a
//    message of the caller may carry the votes). Then the leaders of the groups
//    exchange a message. When that is complete, all ranks of all groups have
//    complete gradients.
//  - Replies of the lighthouse reach every rank, so that each aborts its own
//    collectives at once.
//  - If a rank is lost, the group's world fails on the other ranks, and weftrun
//    ends them.

namespace weft::elastic {
namespace {

using mesh::CommError;
using mesh::throw_error;
using Phase = lighthouse::Member::Phase;

/// The interval of reports: a quarter of the time after which the lighthouse
/// suspects a silent group.
constexpr lighthouse::Time kHeartbeat =
    lighthouse::LighthouseOptions().suspect / 4;

mesh::World checked(mesh::World world) {
  if (world.device().is_cuda()) {
    throw_error<mesh::UsageError>(
        "[elastic] replica groups on CUDA devices are not supported yet. "
        "Create the world for the CPU");
  }
  return world;
}

/// Returns the mesh of the state of a module and its optimizer: the root mesh
/// of its DTensors, or one of all ranks if it has none.
mesh::DeviceMesh mesh_of(
    const torch::nn::Module& module,
    const mesh::World& world) {
  for (const auto& parameter : module.parameters()) {
    if (const auto* impl = dtensor::dtensor_impl(parameter)) {
      return impl->spec().mesh().root();
    }
  }
  return mesh::DeviceMesh::create(world, {world.world_size()}, {"ranks"});
}

void check_buffers(const torch::nn::Module& module) {
  for (const auto& item : module.named_modules("", /*include_self=*/true)) {
    const auto buffers = item.value()->named_buffers(/*recurse=*/false);
    const auto* mean = buffers.find("running_mean");
    WEFT_CHECK(
        mean == nullptr || !mean->defined() || !item.value()->is_training(),
        "elastic",
        mesh::ErrorContext(),
        item.key().empty() ? "the module" : "\"" + item.key() + "\"",
        " has running statistics of the samples of its own group, so that the "
        "states of the groups would differ. Set track_running_stats to false, "
        "use LayerNorm or GroupNorm, or call eval() on it before.");
  }
}

} // namespace

Manager::Manager(mesh::World world, ManagerOptions options)
    : Manager(
          std::move(world),
          LighthouseLink::from_env(),
          std::move(options)) {}

Manager::Manager(
    mesh::World world,
    std::shared_ptr<LighthouseLink> link,
    ManagerOptions options)
    : world_(checked(std::move(world))),
      link_(std::move(link)),
      options_(std::move(options)),
      member_(
          link_->group().id,
          lighthouse::LighthouseOptions().lease,
          lighthouse::now()),
      step_(options_.step),
      lanes_(options_.lanes),
      quorum_(link_) {
  lanes_.check_enough_for(link_->group().groups);
  state_.set_text("lanes", std::to_string(options_.lanes));
  link_->listen([this](const lighthouse::Reply& reply) { follow(reply); });
}

Manager::~Manager() {
  link_->listen({});
  if (!leads()) {
    return;
  }
  {
    const Lock lock(mutex_);
    if (std::uncaught_exceptions() == 0 && !has_left_for_good_) {
      member_.finish();
      report(lock);
    }
    is_over_ = true;
    changed_.notify_all();
  }
  if (heart_.joinable()) {
    heart_.join();
  }
}

void Manager::register_state(
    std::string name,
    SharedState::Get get,
    SharedState::Load load) {
  state_.add(std::move(name), std::move(get), std::move(load));
}

void Manager::register_text(std::string name, std::string text) {
  state_.set_text(name, std::move(text));
}

void Manager::register_module(
    std::string name,
    std::shared_ptr<torch::nn::Module> module) {
  check_buffers(*module);
  const auto mesh = mesh_of(*module, world_);
  register_state(std::move(name), [module = std::move(module), mesh] {
    return dtensor::module_state_dict(*module, mesh);
  });
}

void Manager::register_optimizer(
    std::string name,
    torch::optim::Optimizer& optimizer,
    const std::shared_ptr<torch::nn::Module>& module) {
  const auto mesh = mesh_of(*module, world_);
  state_.add_numbers(
      name, [&optimizer] { return dtensor::describe_options(optimizer); });
  register_state(
      std::move(name),
      [&optimizer, module, mesh] {
        return dtensor::optimizer_state_dict(optimizer, *module, mesh);
      },
      [&optimizer, module](const dtensor::StateDict& state) {
        dtensor::load_optimizer_state_dict(optimizer, *module, state);
      });
}

int64_t Manager::step() const {
  const std::lock_guard lock(mutex_);
  return step_;
}

bool Manager::is_run_ending() const {
  return link_->store()->check({lighthouse::kRunEndsKey});
}

int64_t Manager::epochs() const {
  const std::lock_guard lock(mutex_);
  return epochs_;
}

// Functions of other threads: replies of the lighthouse, and the heartbeat.

void Manager::follow(const lighthouse::Reply& reply) {
  const Lock lock(mutex_);
  if (leads()) {
    const auto epoch = member_.epoch().number;
    const auto phase = member_.phase();
    const auto ballot = member_.ballot();
    member_.receive(reply, lighthouse::now());
    if (member_.phase() != phase || member_.epoch().number != epoch ||
        member_.ballot() != ballot) {
      report(lock);
    }
  } else if (reply.directive == lighthouse::Directive::kEnter) {
    announced_ = std::max(announced_, reply.epoch.number);
  } else if (reply.directive == lighthouse::Directive::kLeave) {
    ended_ = std::max(ended_, reply.epoch.number);
  }
  if (epoch_world_ && has_ended(met_)) {
    epoch_world_->abort();
    note_end(lock);
  }
  changed_.notify_all();
}

/// Returns true if this group must leave an epoch or has left it.
bool Manager::has_ended(const lighthouse::EpochNumber& epoch) const {
  return leads() ? member_.phase() == Phase::kOutside ||
                       member_.epoch().number != epoch
                 : announced_ > epoch || ended_ >= epoch;
}

void Manager::beat() {
  pthread_setname_np(pthread_self(), "weft_heartbeat");
  Lock lock(mutex_);
  while (!is_over_) {
    report(lock);
    changed_.wait_for(lock, kHeartbeat, [&] { return is_over_; });
  }
}

void Manager::report(const Lock& /*lock*/) {
  try {
    auto report = member_.report(lighthouse::now());
    report.has_left_for_good = has_left_for_good_;
    report.min_groups = options_.min_groups;
    report.join_timeout = options_.join_timeout;
    report.is_stopping =
        options_.is_asked_to_stop && options_.is_asked_to_stop();
    link_->send(report);
  } catch (const CommError&) {
    link_error_ = std::current_exception();
    changed_.notify_all();
  }
}

void Manager::note_end(const Lock& /*lock*/) {
  left_ = left_ == lighthouse::Time{0} ? lighthouse::now() : left_;
}

void Manager::leave(Lock& lock) {
  note_end(lock);
  if (leads()) {
    member_.leave();
  }
  if (epoch_world_) {
    epoch_world_->abort();
    epoch_world_.reset();
  }
  if (leads()) {
    report(lock);
  }
}

// Decisions of the ranks of a group.

bool Manager::is_on_all_ranks(bool holds) {
  if (world_.world_size() == 1) {
    return holds;
  }
  auto count = at::full({1}, holds ? 1 : 0, at::kLong);
  world_.group().all_reduce(count, mesh::ReduceOp::kSum, "vote").wait();
  return count.item<int64_t>() == world_.world_size();
}

std::vector<int64_t> Manager::from_leader(std::vector<int64_t> values) {
  if (world_.world_size() == 1) {
    return values;
  }
  auto tensor = at::tensor(values, at::kLong);
  world_.group().broadcast(tensor, 0, "decision").wait();
  const auto* data = tensor.const_data_ptr<int64_t>();
  return {data, data + tensor.numel()};
}

/// Starts the reports of this group, after which other groups wait for it.
void Manager::begin() {
  is_begun_ = true;
  if (link_->group().is_restarted) {
    buffers_ = StateTransfer::make_buffers(state_);
  }
  if (leads()) {
    heart_ = std::thread([this] { beat(); });
  }
}

std::exception_ptr Manager::error_of_another_rank() {
  try {
    throw_error<CommError>(
        "[elastic] a collective with the other groups failed on another rank "
        "of this group, which has written why");
  } catch (...) {
    return std::current_exception();
  }
}

} // namespace weft::elastic
