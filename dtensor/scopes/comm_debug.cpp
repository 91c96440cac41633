#include "dtensor/scopes/comm_debug.h"

#include <algorithm>
#include <mutex>
#include <tuple>
#include <utility>

#include <torch/csrc/autograd/graph_task.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "dtensor/scopes/module_call.h"
#include "mesh/communicator/backend.h"

namespace weft::dtensor {

// Note [Who caused a collective]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The observer of mesh/ sees a collective when it is launched. Callers further
// up know the reason: RedistributeScope records the tensor whose redistribution
// it is a step of, and module hooks record the module whose call is running.
// Both are stored in a context that nested modes share. In backward, the calls
// of the modules have ended. So nodes that redistribute gradients store the
// module in which they were created, and the names of parameters, which their
// collectives carry, contain the module.

namespace detail {

struct Move {
  std::string tensor;
  std::string from;
  std::string to;
  std::string cheaper;
  bool is_implicit;
};

struct CommContext {
  std::mutex mutex;
  std::vector<Move> moves;
  std::vector<std::string> modules;
  bool find_cheaper = false;
};

namespace {

// The base of this library's observers. A dynamic_cast to it distinguishes them
// from others.
struct CommObserver : mesh::CollectiveObserver {
  std::shared_ptr<CommContext> context;
};

CommContext* current_context() {
  auto* observer = mesh::collective_observer();
  if (!observer) [[likely]] {
    return nullptr;
  }
  auto* own = dynamic_cast<CommObserver*>(observer);
  return own ? own->context.get() : nullptr;
}

} // namespace

RedistributeScope::RedistributeScope(
    const at::Tensor& tensor,
    const DTensorSpec& from,
    const DTensorSpec& to,
    bool is_implicit,
    std::string_view cheaper)
    : context_(current_context()) {
  if (!context_) {
    return;
  }
  Move move{
      c10::str(tensor.sizes(), " ", tensor.scalar_type()),
      to_string(from.placements()),
      to_string(to.placements()),
      std::string(cheaper),
      is_implicit};
  const std::lock_guard lock(context_->mutex);
  // A scope inside another one is a part of the same redistribution, so it
  // inherits what the outer one knows of its op.
  if (!context_->moves.empty()) {
    move.is_implicit |= context_->moves.back().is_implicit;
    if (move.cheaper.empty()) {
      move.cheaper = context_->moves.back().cheaper;
    }
  }
  context_->moves.push_back(std::move(move));
}

RedistributeScope::~RedistributeScope() {
  if (context_) {
    const std::lock_guard lock(context_->mutex);
    context_->moves.pop_back();
  }
}

bool is_finding_cheaper() {
  const auto* context = current_context();
  return context && context->find_cheaper;
}

std::string current_module() {
  auto* context = current_context();
  if (!context) {
    return "";
  }
  const std::lock_guard lock(context->mutex);
  return context->modules.empty() ? "" : context->modules.back();
}

ModuleScope::ModuleScope(const std::string& module) {
  if (module.empty()) {
    return;
  }
  context_ = current_context();
  if (context_) {
    const std::lock_guard lock(context_->mutex);
    context_->modules.push_back(module);
  }
}

ModuleScope::~ModuleScope() {
  if (context_) {
    const std::lock_guard lock(context_->mutex);
    context_->modules.pop_back();
  }
}

} // namespace detail

namespace {

using detail::CommContext;

constexpr const char* kWatch = "watch";

// Marks a module that already has the hooks of watch(). They report its calls
// to the active CommDebugMode and are never removed.
struct Watched : ModuleHooks {};

void watch(torch::nn::Module& module, const std::string& name) {
  auto& hooks = module_hooks(module);
  if (hooks.named_children().contains(kWatch)) {
    return;
  }
  hooks.register_module(kWatch, std::make_shared<Watched>());
  hooks.before.insert(hooks.before.begin(), [name](std::vector<at::Tensor>&) {
    if (auto* context = detail::current_context()) {
      const std::lock_guard lock(context->mutex);
      context->modules.push_back(name);
    }
  });
  hooks.after.emplace_back([](std::vector<at::Tensor>&) {
    if (auto* context = detail::current_context()) {
      const std::lock_guard lock(context->mutex);
      if (!context->modules.empty()) {
        context->modules.pop_back();
      }
    }
  });
}

// Returns the module in a parameter's name: "model.layers.0.mlp" for
// "model.layers.0.mlp.weight". Empty for the name of an op.
std::string module_of_parameter(const std::string& name) {
  const auto word = name.substr(0, name.find(' '));
  const size_t dot = word.rfind('.');
  const bool is_op = name.find("::") != std::string::npos;
  return is_op || dot == std::string::npos ? "" : word.substr(0, dot);
}

using Counter = std::map<
    std::tuple<std::string, std::string, std::string, bool, bool>,
    std::pair<int64_t, int64_t>>;

Counter count_of(const std::vector<CommRecord>& records) {
  Counter counter;
  for (const auto& record : records) {
    auto& [calls, bytes] = counter[{
        record.module,
        record.op,
        record.mesh_dim,
        record.is_backward,
        record.is_implicit}];
    ++calls;
    bytes += record.bytes;
  }
  return counter;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) {
    text += (text.empty() ? "" : "_") + name;
  }
  return text;
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text + "  ";
}

} // namespace

struct CommDebugMode::Recorder final : detail::CommObserver {
  explicit Recorder(const CommDebugOptions& options)
      : mesh(options.mesh), outer(mesh::collective_observer()) {
    auto* own = dynamic_cast<detail::CommObserver*>(outer);
    context = own ? own->context : std::make_shared<CommContext>();
    was_finding_cheaper = context->find_cheaper;
    context->find_cheaper |= options.find_cheaper;
  }

  std::string dim_of(
      const mesh::GroupMembers& group,
      const mesh::FlightRecorder& flight_recorder) const {
    for (int64_t i = 0; mesh && i < mesh->ndim(); ++i) {
      if (&mesh->group(i).flight_recorder() == &flight_recorder) {
        return mesh->mesh_dim_names()[i];
      }
    }
    // The group of a flattened mesh is named after the mesh's dims. If it has
    // all ranks, it can be the world's group, so its name is composed here.
    if (mesh && mesh->ndim() > 1 && group.ranks == mesh->ranks()) {
      std::vector<std::string> names;
      for (int64_t i = 0; i < mesh->ndim(); ++i) {
        if (mesh->size(i) > 1) {
          names.push_back(mesh->mesh_dim_names()[i]);
        }
      }
      return joined(names);
    }
    return group.name.substr(0, group.name.rfind('/'));
  }

  void launched(
      const mesh::GroupMembers& group,
      const mesh::FlightRecorder& flight_recorder,
      const mesh::FlightRecorderEntry& call) override {
    if (outer) {
      outer->launched(group, flight_recorder, call);
    }
    CommRecord record;
    record.op = call.op;
    record.mesh_dim = dim_of(group, flight_recorder);
    record.ranks = static_cast<int64_t>(group.ranks.size());
    record.bytes = call.bytes;
    record.shape = call.shape;
    record.dtype = call.dtype;
    record.name = call.name;
    record.module = module_of_parameter(call.name);
    record.is_backward = torch::autograd::get_current_graph_task_id() != -1;
    const std::lock_guard lock(context->mutex);
    if (record.module.empty() && !context->modules.empty()) {
      record.module = context->modules.back();
    }
    if (!context->moves.empty()) {
      const auto& move = context->moves.back();
      record.is_implicit = move.is_implicit;
      record.tensor = move.tensor;
      record.from = move.from;
      record.to = move.to;
      record.cheaper = move.cheaper;
    }
    records.push_back(std::move(record));
  }

  std::optional<mesh::DeviceMesh> mesh;
  mesh::CollectiveObserver* outer;
  bool was_finding_cheaper = false;
  std::vector<CommRecord> records;
};

CommDebugMode::CommDebugMode(const CommDebugOptions& options)
    : recorder_(std::make_shared<Recorder>(options)) {
  if (options.module) {
    // Hooks are modules as well, so the list of modules is made before watch()
    // adds hooks.
    for (const auto& item : options.module->named_modules()) {
      if (!dynamic_cast<ModuleHooks*>(item.value().get())) {
        watch(
            *item.value(),
            item.key().empty() ? module_type_name(*item.value()) : item.key());
      }
    }
  }
  observe_ = std::make_unique<mesh::CollectiveObserverGuard>(recorder_);
  if (options.find_cheaper) {
    watch_ = std::make_unique<detail::RedistributeObserverGuard>();
  }
}

CommDebugMode::~CommDebugMode() {
  const std::lock_guard lock(recorder_->context->mutex);
  recorder_->context->find_cheaper = recorder_->was_finding_cheaper;
}

std::vector<CommRecord> CommDebugMode::records() const {
  const std::lock_guard lock(recorder_->context->mutex);
  return recorder_->records;
}

std::map<std::string, int64_t> CommDebugMode::get_comm_counts() const {
  std::map<std::string, int64_t> counts;
  for (const auto& record : records()) {
    ++counts[record.op];
  }
  return counts;
}

int64_t CommDebugMode::get_total_counts() const {
  return static_cast<int64_t>(records().size());
}

std::string CommDebugMode::generate_comm_debug_tracing_table() const {
  const auto all = records();
  std::string text;
  std::string module;
  bool first = true;
  for (const auto& [key, sums] : count_of(all)) {
    const auto& [name, op, dim, backward, implicit] = key;
    if (first || name != module) {
      text += (name.empty() ? std::string("(no module)") : name) + "\n";
    }
    first = false;
    module = name;
    text += "  " + padded(op, 22) + padded(dim, 4) +
            padded(backward ? "backward" : "forward", 8) +
            padded(implicit ? "implicit" : "explicit", 8) +
            padded(std::to_string(sums.first) + " x", 6) +
            std::to_string(sums.second) + " bytes\n";
  }
  return text + c10::str("total ", all.size(), " collectives\n");
}

std::string CommDebugMode::generate_json_dump() const {
  using Json = nlohmann::ordered_json;
  Json json{
      {"total", get_total_counts()},
      {"counts", get_comm_counts()},
      {"collectives", Json::array()}};
  for (const auto& record : records()) {
    json["collectives"].push_back(
        {{"op", record.op},
         {"mesh_dim", record.mesh_dim},
         {"ranks", record.ranks},
         {"bytes", record.bytes},
         {"name", record.name},
         {"module", record.module},
         {"pass", record.is_backward ? "backward" : "forward"},
         {"implicit", record.is_implicit},
         {"tensor", record.tensor},
         {"from", record.from},
         {"to", record.to}});
  }
  return base::json_text(json);
}

} // namespace weft::dtensor
