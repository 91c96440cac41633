#include "cli/bench/benches.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/bench/measure.h"
#include "mesh/agreement.h" // defines c10d::Store
#include "mesh/bootstrap/rendezvous.h"
#include "mesh/error/error.h"
#include "mesh/world.h"

namespace weft::cli::bench {
namespace {

using mesh::Communicator;
using Call = std::function<void()>;
using Prepare = Call (*)(Communicator group, const at::Tensor& whole);

constexpr uint64_t kMinBytes = 1 << 10;
constexpr uint64_t kMaxBytes = 64 << 20;

struct Collective {
  std::string name;
  /// Returns the call. `whole` is the largest tensor of the collective.
  Prepare prepare;
  bool has_data = true;
};

Call all_reduce(Communicator group, const at::Tensor& whole) {
  return [=]() mutable { group.all_reduce(whole).wait(); };
}

Call all_gather(Communicator group, const at::Tensor& whole) {
  const auto own = whole.chunk(group.size())[0].clone();
  return [=]() mutable { group.all_gather(whole, own).wait(); };
}

Call reduce_scatter(Communicator group, const at::Tensor& whole) {
  const auto own = whole.chunk(group.size())[0].clone();
  return [=]() mutable { group.reduce_scatter(own, whole).wait(); };
}

Call all_to_all(Communicator group, const at::Tensor& whole) {
  const auto inputs = whole.chunk(group.size());
  const auto outputs = whole.clone().chunk(group.size());
  return [=]() mutable { group.all_to_all(outputs, inputs).wait(); };
}

Call broadcast(Communicator group, const at::Tensor& whole) {
  return [=]() mutable { group.broadcast(whole, 0).wait(); };
}

Call barrier(Communicator group, const at::Tensor&) {
  return [=]() mutable { group.barrier(); };
}

const std::vector<Collective>& collectives() {
  static const std::vector<Collective> all{
      {"all_reduce", all_reduce},
      {"all_gather", all_gather},
      {"reduce_scatter", reduce_scatter},
      {"all_to_all", all_to_all},
      {"broadcast", broadcast},
      {"barrier", barrier, false}};
  return all;
}

at::ScalarType dtype_of(const std::string& name) {
  static const std::map<std::string, at::ScalarType> dtypes{
      {"float32", at::kFloat},
      {"float64", at::kDouble},
      {"bfloat16", at::kBFloat16},
      {"float16", at::kHalf},
      {"int32", at::kInt},
      {"int64", at::kLong}};
  return dtypes.at(name);
}

/// A group of all ranks over one transport.
struct Transport {
  std::string name;
  mesh::World world;
  Communicator group;
};

Transport open_transport(
    const c10::intrusive_ptr<c10d::Store>& store,
    const mesh::JobEnvironment& job,
    const std::string& name) {
  mesh::WorldOptions options;
  options.backend = name == "shm" ? "cpu" : name;
  auto world = mesh::World::from_store(
      store, job.rank, job.world_size, std::move(options));
  std::vector<int64_t> ranks(job.world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  // The worlds share the store, so the name keeps their groups apart.
  auto group = world.make_group("bench_" + name, ranks);
  if (group.backend() != name) {
    mesh::throw_error<mesh::UsageError>(
        "[bench] --backend " + name + ": these ranks have " +
        std::string(group.backend()) + " instead.");
  }
  return {name, std::move(world), std::move(group)};
}

std::vector<Transport> open_transports(const std::string& backend) {
  const auto job = mesh::current_job_environment();
  if (job.world_size < 2 || job.local_world_size != job.world_size) {
    mesh::throw_error<mesh::UsageError>(
        "[bench] collective: expected two or more ranks, all on one host, "
        "got " +
        std::to_string(job.world_size) + " of which " +
        std::to_string(job.local_world_size) +
        " are on this host. Start it with weftrun --nproc-per-node=2 -- weft "
        "bench collective.");
  }
  const auto store = mesh::connect_store(job, mesh::WorldOptions{}.timeout);
  std::vector<Transport> transports;
  for (const std::string name : {"gloo", "shm"}) {
    if (backend == "auto" || backend == name) {
      transports.push_back(open_transport(store, job, name));
    }
  }
  return transports;
}

struct CollectiveCase {
  const Collective& collective;
  uint64_t bytes;
  /// The times in us, by transport and round.
  std::vector<std::vector<double>> rounds;
};

/// Returns the number of calls per round. A round takes a few ms, so that
/// neither the resolution of the clock nor the first call matters.
int calls_of(uint64_t bytes) {
  constexpr uint64_t kBytesOfRound = 4 << 20;
  return static_cast<int>(std::clamp<uint64_t>(
      kBytesOfRound / std::max<uint64_t>(bytes, 1), 1, 100));
}

/// Returns a tensor of about `bytes` with the same number of elements per rank,
/// at least one.
at::Tensor make_whole(uint64_t bytes, int64_t ranks, at::ScalarType dtype) {
  const int64_t each = std::max<int64_t>(
      1,
      static_cast<int64_t>(bytes) / ranks /
          static_cast<int64_t>(c10::elementSize(dtype)));
  // full() writes the memory, while at::zeros() may use pages that the kernel
  // has zeroed. Sums of zeros stay zero.
  return at::full({each * ranks}, 0, at::TensorOptions(dtype));
}

void measure(
    CollectiveCase& subject,
    std::vector<Transport>& transports,
    const CollectiveOptions& options) {
  const int calls = calls_of(subject.bytes);
  std::vector<Call> ops;
  for (auto& transport : transports) {
    const auto whole = make_whole(
        subject.bytes, transport.group.size(), dtype_of(options.dtype));
    ops.push_back(subject.collective.prepare(transport.group, whole));
    microseconds(ops.back(), 1 + calls / 10);
  }
  subject.rounds.resize(transports.size());
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < transports.size(); ++i) {
      // The order alternates, so that no transport always comes first.
      const size_t at = round % 2 == 0 ? i : transports.size() - 1 - i;
      transports[at].group.barrier();
      subject.rounds[at].push_back(microseconds(ops[at], calls));
    }
  }
}

/// Replaces each time by the maximum over the ranks, because a round ends when
/// the slowest rank ends.
void take_slowest(CollectiveCase& subject, Communicator group) {
  for (auto& rounds : subject.rounds) {
    const auto times = at::from_blob(
        rounds.data(), {static_cast<int64_t>(rounds.size())}, at::kDouble);
    group.all_reduce(times, mesh::ReduceOp::kMax).wait();
  }
}

nlohmann::ordered_json row_of(
    const CollectiveCase& subject,
    const std::vector<Transport>& transports) {
  nlohmann::ordered_json row{
      {"op", subject.collective.name}, {"bytes", subject.bytes}};
  for (size_t i = 0; i < transports.size(); ++i) {
    const auto [least, most] = std::ranges::minmax(subject.rounds[i]);
    const auto& name = transports[i].name;
    row[name + "_us"] = rounded(median(subject.rounds[i]), 1e2);
    row[name + "_min_us"] = rounded(least, 1e2);
    row[name + "_max_us"] = rounded(most, 1e2);
  }
  if (transports.size() == 2) {
    row["ratio"] =
        rounded(median(subject.rounds[0]) / median(subject.rounds[1]), 1e2);
  }
  return row;
}

std::vector<CollectiveCase> cases_of(const CollectiveOptions& options) {
  auto sizes = options.sizes;
  for (auto bytes = kMinBytes; options.sizes.empty() && bytes <= kMaxBytes;
       bytes *= 4) {
    sizes.push_back(bytes);
  }
  const auto is_wanted = [&](const Collective& collective) {
    return options.ops.empty() ||
           std::ranges::count(options.ops, collective.name) != 0;
  };
  std::vector<CollectiveCase> cases;
  for (const auto& collective : collectives()) {
    for (const auto bytes :
         collective.has_data ? sizes : std::vector<uint64_t>{0}) {
      if (is_wanted(collective)) {
        cases.push_back({collective, bytes, {}});
      }
    }
  }
  return cases;
}

} // namespace

const std::vector<std::string>& collective_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const auto& collective : collectives()) {
      result.push_back(collective.name);
    }
    return result;
  }();
  return names;
}

std::optional<std::string> run_collective(const CollectiveOptions& options) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  auto transports = open_transports(options.backend);
  auto& group = transports[0].group;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (auto& subject : cases_of(options)) {
    measure(subject, transports, options);
    take_slowest(subject, group);
    results.push_back(row_of(subject, transports));
  }
  if (group.rank() != 0) {
    return std::nullopt;
  }
  return base::json_text(nlohmann::ordered_json{
      {"bench", "collective"},
      {"torch", TORCH_VERSION},
      {"ranks", group.size()},
      {"dtype", options.dtype},
      {"rounds", options.rounds},
      {"results", results}});
}

} // namespace weft::cli::bench
