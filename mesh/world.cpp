#include "mesh/world.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/loopback.h"
#include "base/process.h"
#include "base/usable_cores.h"
#include "mesh/agreement.h"
#include "mesh/backends/fake_backend.h"
#include "mesh/backends/gloo_backend.h"
#include "mesh/backends/hierarchical_backend.h"
#include "mesh/backends/nccl_backend.h"
#include "mesh/backends/paired_backend.h"
#include "mesh/backends/shm/shm_backend.h"
#include "mesh/backends/staged_backend.h"
#include "mesh/bootstrap/cancellable_store.h"
#include "mesh/bootstrap/cancellation.h"
#include "mesh/bootstrap/debug_level.h"
#include "mesh/bootstrap/rendezvous.h"
#include "mesh/crash/crash_handler.h"
#include "mesh/device/device.h"
#include "mesh/device/device_plugin.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"
#include "mesh/error/resource_limits.h"
#include "mesh/watchdog/watchdog.h"

namespace weft::mesh {

// Note [A device after a failed connect]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A peer may open a connection for a group that this rank has given up. gloo's
// listener keeps the connection until the device is destroyed, because no pair
// asks for it. So after a failed connect, no further group is created on that
// device. The device is destroyed with the last of its groups.

struct World::State {
  /// The resources that the groups of a rank share, also between a world and
  /// those that scoped() creates from it.
  struct Transports {
    std::mutex mutex;
    std::shared_ptr<GlooDevice> device;
    std::shared_ptr<ShmProgress> shm;

    std::shared_ptr<GlooDevice> gloo_device(const std::string& address);
    std::shared_ptr<Backend> connect_gloo(
        const GroupMembers& members,
        const GroupRendezvous& rendezvous,
        const std::string& address);
  };

  JobEnvironment job;
  WorldOptions options;
  /// The device of the model and data. See World::device().
  c10::Device tensors{c10::DeviceType::CPU};
  /// The store, whose waits `cancellation` ends. Null in a fake world and in a
  /// world of one rank.
  c10::intrusive_ptr<c10d::Store> store;
  Cancellation cancellation;
  std::shared_ptr<Transports> transports = std::make_shared<Transports>();
  /// Null if there is no store or the watchdog is disabled.
  std::shared_ptr<Watchdog> watch;
  std::atomic<int64_t> next_id = 0;
  std::atomic<int64_t> next_agreement = 0;

  /// Guards `group_keys` and `groups`. It is not held while a group connects,
  /// so that abort() does not block.
  std::mutex mutex;
  std::set<std::string> group_keys;
  std::vector<Communicator> groups;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  // Publishes that this rank has ended, before its groups hang up.
  ~State() {
    if (watch) {
      watch->end();
    }
  }

  std::once_flag world_group_made;
  std::optional<Communicator> world_group;

  bool is_fake() const { return options.backend == "fake"; }
  bool is_nccl() const { return options.backend == "nccl"; }
  /// Starts the watchdog. abort() does not end its waits in `uncancelled`.
  void begin_watch(c10::intrusive_ptr<c10d::Store> uncancelled) {
    if (options.watch.enabled) {
      watch = Watchdog::begin(
          c10::make_intrusive<c10d::PrefixStore>(
              "watch", std::move(uncancelled)),
          job.rank,
          job.world_size,
          options.watch);
    }
  }
  void open_tensor_device() {
    if (is_nccl()) {
      tensors = open_device("cuda", job.local_rank, job.local_world_size);
    }
  }
  /// Joins the other ranks in `given`, the store of the caller.
  void open(const c10::intrusive_ptr<c10d::Store>& given) {
    WEFT_CHECK(
        job.rank >= 0 && job.rank < job.world_size,
        "world",
        describe(),
        "rank: got ",
        job.rank,
        ", expected 0 to ",
        job.world_size - 1,
        ".");
    if (job.world_size > 1 && !is_fake()) {
      WEFT_CHECK(given, "world", describe(), "The store is null.");
      constexpr const char* kPrefix = "weft";
      store = make_cancellable_store(given, kPrefix, cancellation);
      publish_domain();
      begin_watch(c10::make_intrusive<c10d::PrefixStore>(kPrefix, given));
    }
  }
  AgreementContext context() const {
    return {*store, job.rank, job.world_size, options.timeout};
  }
  ErrorContext describe() const {
    return {detail::concat("rank ", job.rank, "/", job.world_size)};
  }
  std::string listening_host() const {
    return options.bind_address.empty() ? base::loopback_address()
                                        : options.bind_address;
  }
  std::shared_ptr<ShmProgress> shm_progress();
  int64_t host_cores() const;
  void publish_domain() const;
  HostLayout host_layout(const GroupMembers& members) const;
  GroupRendezvous rendezvous(const std::string& key) const {
    return {
        c10::make_intrusive<c10d::PrefixStore>("group/" + key, store),
        cancellation};
  }
  std::shared_ptr<Backend> connect_host(
      const GroupMembers& members,
      const std::string& key);
  std::shared_ptr<Backend> connect_over_hosts(
      const GroupMembers& members,
      const std::string& key,
      const HostLayout& layout);
  int64_t position_in(
      const std::string& name,
      const std::vector<int64_t>& ranks) const;
  std::shared_ptr<Backend> connect(
      GroupMembers members,
      const std::string& key);
  std::shared_ptr<Backend> connect_device(
      const GroupMembers& members,
      const std::string& key,
      const std::shared_ptr<Backend>& host);
};

std::shared_ptr<GlooDevice> World::State::Transports::gloo_device(
    const std::string& address) {
  const std::lock_guard lock(mutex);
  if (!device) {
    device = make_gloo_device(address);
  }
  return device;
}

// See Note [A device after a failed connect].
std::shared_ptr<Backend> World::State::Transports::connect_gloo(
    const GroupMembers& members,
    const GroupRendezvous& rendezvous,
    const std::string& address) {
  const auto used = gloo_device(address);
  try {
    return make_gloo_backend(members, rendezvous, used);
  } catch (...) {
    const std::lock_guard lock(mutex);
    if (device == used) {
      device.reset();
    }
    throw;
  }
}

std::shared_ptr<ShmProgress> World::State::shm_progress() {
  {
    const std::lock_guard lock(transports->mutex);
    if (transports->shm) {
      return transports->shm;
    }
  }
  const auto cores = host_cores();
  const std::lock_guard lock(transports->mutex);
  if (!transports->shm) {
    transports->shm = make_shm_progress(job.host_ranks, cores);
  }
  return transports->shm;
}

namespace {
std::string domain_key(int64_t rank) {
  return "shm_domain/" + std::to_string(rank);
}
std::string cores_key(int64_t rank) {
  return "cores/" + std::to_string(rank);
}
} // namespace

/// Returns the cores that the ranks of this host can use together. A rank with
/// its own affinity leaves the other cores to the other ranks, and all may
/// share a quota.
int64_t World::State::host_cores() const {
  std::vector<base::CoreShare> shares{base::current_core_share()};
  const int64_t first = job.rank - job.local_rank;
  for (int64_t local = 0; local < job.local_world_size; ++local) {
    const auto key = cores_key(first + local);
    if (local != job.local_rank && store->check({key})) {
      shares.push_back(base::CoreShare::from_text(store->get_to_str(key)));
    }
  }
  return base::count_cores(shares);
}

/// Publishes the host of this rank, for the other members of its groups, and
/// its cores. Keeps an existing entry, because the creator of the store may
/// know the host better.
void World::State::publish_domain() const {
  if (options.backend != "gloo" && !store->check({domain_key(job.rank)})) {
    const auto domain = shm_domain();
    store->set(
        domain_key(job.rank),
        domain.empty() ? detail::concat("rank ", job.rank) : domain);
  }
  store->set(cores_key(job.rank), base::current_core_share().to_text());
}

/// Returns which members share a host. All members get the same hosts.
HostLayout World::State::host_layout(const GroupMembers& members) const {
  std::vector<std::string> keys;
  for (const int64_t rank : members.ranks) {
    keys.push_back(domain_key(rank));
  }
  store->wait(keys, options.timeout);
  std::vector<std::string> domains;
  for (const auto& value : store->multiGet(keys)) {
    domains.emplace_back(value.begin(), value.end());
  }
  return HostLayout::of(domains, members.rank);
}

std::shared_ptr<Backend> World::State::connect_host(
    const GroupMembers& members,
    const std::string& key) {
  const auto layout =
      options.backend == "gloo" ? HostLayout() : host_layout(members);
  if (layout.hosts.size() == 1) {
    return make_shm_backend(members, rendezvous(key), shm_progress());
  }
  if (layout.hosts.empty() || layout.hosts.size() == members.ranks.size()) {
    return transports->connect_gloo(members, rendezvous(key), listening_host());
  }
  return connect_over_hosts(members, key, layout);
}

std::shared_ptr<Backend> World::State::connect_over_hosts(
    const GroupMembers& members,
    const std::string& key,
    const HostLayout& layout) {
  const auto part_of = [&](const std::vector<int64_t>& positions, int64_t own) {
    auto part = members;
    part.rank = own;
    part.ranks.clear();
    for (const int64_t position : positions) {
      part.ranks.push_back(members.ranks[position]);
    }
    return part;
  };
  HostGroups groups;
  const auto& host = layout.hosts[layout.own_host];
  if (host.size() > 1) {
    groups.inside = make_shm_backend(
        part_of(host, layout.own_position),
        rendezvous(detail::concat(key, "/host/", layout.own_host)),
        shm_progress());
  }
  if (layout.own_position == 0) {
    std::vector<int64_t> leaders;
    for (const auto& other : layout.hosts) {
      leaders.push_back(other.front());
    }
    groups.leaders = transports->connect_gloo(
        part_of(leaders, layout.own_host),
        rendezvous(key + "/leaders"),
        listening_host());
  }
  groups.connect_all = [members,
                        shared = transports,
                        own = rendezvous(key + "/all"),
                        address = listening_host()] {
    return shared->connect_gloo(members, own, address);
  };
  return make_hierarchical_backend(members, layout, std::move(groups));
}

int64_t World::State::position_in(
    const std::string& name,
    const std::vector<int64_t>& ranks) const {
  constexpr const char* kOp = "make_group";
  std::set<int64_t> seen;
  for (const int64_t rank : ranks) {
    WEFT_CHECK(
        rank >= 0 && rank < job.world_size,
        kOp,
        describe(),
        "Group \"",
        name,
        "\" names rank ",
        rank,
        ", which the world of ",
        job.world_size,
        " does not have.");
    WEFT_CHECK(
        seen.insert(rank).second,
        kOp,
        describe(),
        "Group \"",
        name,
        "\" names rank ",
        rank,
        " twice.");
  }
  const auto own = std::find(ranks.begin(), ranks.end(), job.rank);
  WEFT_CHECK(
      own != ranks.end(),
      kOp,
      describe(),
      "This rank is not a member of group \"",
      name,
      "\". Only members may create a group.");
  return own - ranks.begin();
}

std::shared_ptr<Backend> World::State::connect_device(
    const GroupMembers& members,
    const std::string& key,
    const std::shared_ptr<Backend>& host) {
  if (uses_host_transport()) {
    return make_staged_backend(host, tensors.type());
  }
  return connect_nccl_backend(
      members,
      key,
      c10::make_intrusive<c10d::PrefixStore>("device/" + key, store),
      tensors,
      cuda_plugin());
}

std::shared_ptr<Backend> World::State::connect(
    GroupMembers members,
    const std::string& key) {
  if (members.ranks.size() == 1) {
    return std::make_shared<FakeBackend>(std::move(members), "self");
  }
  if (is_fake()) {
    return std::make_shared<FakeBackend>(std::move(members), "fake");
  }
  const std::string where = detail::concat(
      " (",
      describe().text,
      ", group \"",
      members.name,
      "\" of ",
      members.ranks.size(),
      " ranks)");
  try {
    auto host = connect_host(members, key);
    return is_nccl()
               ? make_paired_backend(connect_device(members, key, host), host)
               : host;
  } catch (const std::exception& cause) {
    rethrow_if_out_of_memory(cause);
    const auto failure = failure_reason(cause, options.timeout);
    throw_comm_error(
        detail::concat(
            "[make_group] ",
            failure.reason,
            ". The members could not connect.",
            where),
        failure.is_timeout);
  }
}

namespace {

void check_backend(const std::string& backend) {
  if (backend != "cpu" && backend != "gloo" && backend != "nccl" &&
      backend != "fake") {
    throw_error<UsageError>(detail::concat(
        "[world] backend '",
        backend,
        "' is unknown. Use cpu, gloo, nccl or fake."));
  }
}

} // namespace

World::World(std::shared_ptr<State> state) : state_(std::move(state)) {}

namespace {

/// The world of several ranks that from_env() created. A process has at most
/// one at a time, because it has one environment.
struct ProcessWorld {
  std::mutex mutex;
  std::weak_ptr<World::State> state;
};
ProcessWorld process_world;

void check_is_first(
    const std::weak_ptr<World::State>& other,
    const JobEnvironment& job) {
  if (!other.expired()) {
    throw_error<UsageError>(detail::concat(
        "[world] This process already created a World from its environment. "
        "Create it once and pass copies of it; they are cheap and share their "
        "groups. (rank ",
        job.rank,
        "/",
        job.world_size,
        ")"));
  }
}

} // namespace

World World::from_env(WorldOptions options) {
  base::prepare_process();
  check_backend(options.backend);
  set_debug_level_from_env();
  auto state = std::make_shared<State>();
  state->job = current_job_environment();
  state->options = std::move(options);
  install_crash_handler_of_rank();
  const std::lock_guard lock(process_world.mutex);
  if (state->job.world_size > 1 && !state->is_fake()) {
    check_is_first(process_world.state, state->job);
    check_open_file_limit();
  }
  state->open_tensor_device();
  if (state->job.world_size > 1 && !state->is_fake()) {
    process_world.state = state;
    const auto store = connect_store(state->job, state->options.timeout);
    state->store = make_cancellable_store(store, "world", state->cancellation);
    publish_address(*state->store, state->job);
    state->publish_domain();
    rendezvous_barrier(state->context());
    if (state->options.bind_address.empty()) {
      state->options.bind_address =
          listening_address(*state->store, state->job);
    }
    state->begin_watch(store);
  } else {
    drop_inherited_listener(state->job.master_port);
  }
  return World(std::move(state));
}

World World::from_store(
    const c10::intrusive_ptr<c10d::Store>& store,
    int64_t rank,
    int64_t world_size,
    WorldOptions options) {
  check_backend(options.backend);
  auto state = std::make_shared<State>();
  state->job.rank = state->job.local_rank = rank;
  state->job.world_size = state->job.local_world_size = world_size;
  state->job.host_ranks = world_size;
  state->options = std::move(options);
  state->open_tensor_device();
  state->open(store);
  return World(std::move(state));
}

World World::scoped(
    const c10::intrusive_ptr<c10d::Store>& store,
    int64_t rank,
    int64_t world_size,
    std::chrono::milliseconds timeout) const {
  auto state = std::make_shared<State>();
  state->job.rank = state->job.local_rank = rank;
  state->job.world_size = state->job.local_world_size = world_size;
  state->job.host_ranks = std::max(world_size, state_->job.host_ranks);
  state->options = state_->options;
  state->options.timeout = timeout;
  state->options.watch.enabled = false;
  state->tensors = state_->tensors;
  state->transports = state_->transports;
  state->open(store ? store->clone() : store);
  return World(std::move(state));
}

World World::fake(int64_t rank, int64_t world_size) {
  WorldOptions options;
  options.backend = "fake";
  return from_store({}, rank, world_size, std::move(options));
}

int64_t World::rank() const {
  return state_->job.rank;
}

int64_t World::world_size() const {
  return state_->job.world_size;
}

int64_t World::local_rank() const {
  return state_->job.local_rank;
}

int64_t World::local_world_size() const {
  return state_->job.local_world_size;
}

const std::string& World::backend() const {
  return state_->options.backend;
}

c10::Device World::device() const {
  return state_->tensors;
}

std::chrono::milliseconds World::timeout() const {
  return state_->options.timeout;
}

Communicator World::make_group(
    std::string name,
    const std::vector<int64_t>& ranks,
    std::string_view scope) const {
  GroupMembers members;
  members.rank = state_->position_in(name, ranks);
  members.ranks = ranks;
  members.timeout = state_->options.timeout;
  std::string key = scope.empty() ? name : detail::concat(scope, "/", name);
  members.name = std::move(name);
  {
    const std::lock_guard lock(state_->mutex);
    WEFT_CHECK(
        state_->group_keys.insert(key).second,
        "make_group",
        state_->describe(),
        "A group \"",
        key,
        "\" already exists. Give each group a unique name.");
  }
  Communicator made(
      state_->connect(std::move(members), key), state_->watch, key);
  const std::lock_guard lock(state_->mutex);
  state_->groups.push_back(made);
  if (state_->cancellation.is_cancelled()) {
    made.abort();
  }
  return made;
}

Communicator World::group() const {
  std::call_once(state_->world_group_made, [&] {
    std::vector<int64_t> ranks(world_size());
    std::iota(ranks.begin(), ranks.end(), 0);
    state_->world_group.emplace(make_group("world", ranks));
  });
  return *state_->world_group;
}

void World::check_agreement(std::string_view field, std::string_view value)
    const {
  check_agreement({{std::string(field), std::string(value)}});
}

void World::check_agreement(const std::vector<AgreedValue>& values) const {
  const int64_t sequence = state_->next_agreement++;
  if (state_->store) {
    mesh::check_agreement(state_->context(), sequence, values);
  }
}

int64_t World::next_id() const {
  return state_->next_id++;
}

void World::clear_step_error() const noexcept {
  if (state_->watch) {
    state_->watch->clear_step_error();
  }
}

void World::record_step_error(
    std::string_view what,
    const std::exception_ptr& cause) const noexcept {
  try {
    if (state_->watch) {
      state_->watch->record_step_error(what, cause);
    }
  } catch (...) {
    // An error here must not replace the exception that is being recorded.
  }
}

void World::check() const {
  std::vector<Communicator> groups;
  {
    const std::lock_guard lock(state_->mutex);
    groups = state_->groups;
  }
  for (const Communicator& group : groups) {
    group.check();
  }
}

void World::abort() const {
  std::vector<Communicator> groups;
  {
    const std::lock_guard lock(state_->mutex);
    state_->cancellation.cancel("The world was aborted on this rank");
    groups = state_->groups;
  }
  for (Communicator& group : groups) {
    group.abort();
  }
}

} // namespace weft::mesh
