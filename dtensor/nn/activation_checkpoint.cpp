#include "dtensor/nn/activation_checkpoint.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <ATen/Context.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "base/string_streams.h"
#include "dtensor/random/random_state.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/scopes/saved_tensor_hooks.h"
#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

using Tensors = std::vector<at::Tensor>;
using Forward = std::function<Tensors()>;

// --- random numbers ---------------------------------------------------------

struct GeneratorState {
  at::Generator generator;
  at::Tensor state;

  static at::Tensor read(at::Generator& generator) {
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }
  static void write(at::Generator& generator, const at::Tensor& state) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
};

// The recorded states of the generators from which plain tensors draw.
class GeneratorSnapshot {
 public:
  void keep(c10::Device device) {
    auto generator = at::globalContext().defaultGenerator(device);
    generators_.push_back({generator, GeneratorState::read(generator)});
  }

  template <class Body>
  void rewind(const Body& body) const {
    std::vector<GeneratorState> now;
    for (auto [generator, state] : generators_) {
      now.push_back({generator, GeneratorState::read(generator)});
      GeneratorState::write(generator, state);
    }
    const auto end = c10::make_scope_exit([&] {
      for (auto& [generator, state] : now) {
        GeneratorState::write(generator, state);
      }
    });
    body();
  }

 private:
  std::vector<GeneratorState> generators_;
};

// Scope that clears autocast's cache of cast weights after a recomputation
// outside of an autocast scope, because the weights change before the next
// step.
struct AutocastCacheScope {
  AutocastCacheScope() { at::autocast::increment_nesting(); }
  AutocastCacheScope(const AutocastCacheScope&) = delete;
  AutocastCacheScope& operator=(const AutocastCacheScope&) = delete;
  ~AutocastCacheScope() {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
  }
};

// --- one checkpointed run ---------------------------------------------------

struct SavedMeta {
  std::vector<int64_t> sizes;
  at::ScalarType dtype;

  explicit SavedMeta(const at::Tensor& tensor)
      : sizes(tensor.sizes().vec()), dtype(tensor.scalar_type()) {}
  bool operator==(const SavedMeta&) const = default;
};

std::string describe_saved(const SavedMeta& meta) {
  base::StringWriter text;
  text << meta.dtype << " " << c10::IntArrayRef(meta.sizes);
  return text.str();
}

[[noreturn]] void throw_other_tensors(
    size_t index,
    const std::string& first,
    const std::string& second) {
  mesh::throw_error<c10::Error>(
      "[activation_checkpoint] forward must save the same tensors when it is "
      "recomputed, but tensor number " +
      std::to_string(index) + " was " + first + " in forward and is " + second +
      " in the recomputation. forward must do the same each time (no state, no "
      "data-dependent branch); otherwise do not checkpoint this module.");
}

// Thrown to stop a recomputation when all saved tensors are restored.
struct AllRecomputed {};

// A checkpointed forward pass and the state that its recomputation needs.
class CheckpointedRun : public std::enable_shared_from_this<CheckpointedRun> {
 public:
  CheckpointedRun(
      Forward forward,
      GeneratorSnapshot generators,
      const ActivationCheckpointOptions& options)
      : forward_(std::move(forward)),
        generators_(std::move(generators)),
        options_(options) {}

  Tensors run() {
    const auto self = shared_from_this();
    const SavedTensorsHooks hooks(
        [self](const at::Tensor& tensor) -> SavedTensorsHooks::Packed {
          self->saved_.emplace_back(tensor);
          return std::make_shared<Place>(self, self->saved_.size() - 1);
        },
        [](const SavedTensorsHooks::Packed& packed) {
          const auto& place = *static_cast<Place*>(packed.get());
          return place.run->take(place.index);
        });
    const RandomRecorderGuard watch(starts_);
    return forward_();
  }

 private:
  // The position of a saved tensor in the order of saving. It is destroyed with
  // the autograd node that saved the tensor.
  struct Place {
    Place(std::shared_ptr<CheckpointedRun> owner, size_t number)
        : run(std::move(owner)), index(number) {}
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { run->drop(index); }

    std::shared_ptr<CheckpointedRun> run;
    size_t index;
  };

  // Returns a saved tensor and releases it, because a backward pass usually
  // reads each one only once. If a node reads one twice, it is computed twice.
  at::Tensor take(size_t index) {
    const std::lock_guard lock(mutex_);
    auto& tensors = recomputed_[torch::autograd::get_current_graph_task_id()];
    if (tensors.empty() || !tensors[index].defined()) {
      recompute(tensors);
    }
    return std::exchange(tensors[index], at::Tensor());
  }

  // Releases a tensor that is not needed because its autograd node is
  // destroyed.
  void drop(size_t index) {
    const std::lock_guard lock(mutex_);
    for (auto& [pass, tensors] : recomputed_) {
      if (index < tensors.size()) {
        tensors[index] = at::Tensor();
      }
    }
  }

  void recompute(Tensors& tensors) {
    tensors.clear();
    const at::ThreadLocalStateGuard as_in_forward(state_);
    const at::AutoGradMode record(true);
    const AutocastCacheScope casts;
    // The graph of the recomputation can read its saved tensors only while it
    // is built. A module may keep results of forward(), and with them this
    // graph, so the tensors are released at the end.
    const auto during = std::make_shared<Tensors>();
    const SavedTensorsHooks hooks(
        [&, during](const at::Tensor& tensor) -> SavedTensorsHooks::Packed {
          check(tensors.size(), tensor);
          tensors.push_back(tensor);
          during->push_back(tensor);
          if (options_.early_stop && tensors.size() == saved_.size()) {
            throw AllRecomputed();
          }
          return std::make_shared<size_t>(tensors.size() - 1);
        },
        [during](const SavedTensorsHooks::Packed& packed) {
          const size_t index = *static_cast<size_t*>(packed.get());
          TORCH_CHECK(
              index < during->size(),
              "[activation_checkpoint] backward through tensors of the "
              "recomputation. Do not store results of forward in the module.");
          return (*during)[index];
        });
    const auto end = c10::make_scope_exit([&] { during->clear(); });
    generators_.rewind([&] {
      starts_->rewind([&] {
        try {
          forward_();
        } catch (const AllRecomputed&) {
        }
      });
    });
    if (tensors.size() < saved_.size()) {
      throw_other_tensors(
          tensors.size(), describe_saved(saved_[tensors.size()]), "missing");
    }
  }

  void check(size_t index, const at::Tensor& tensor) const {
    if (index >= saved_.size()) {
      throw_other_tensors(index, "missing", describe_saved(SavedMeta(tensor)));
    }
    if (options_.determinism_check && !(saved_[index] == SavedMeta(tensor))) {
      throw_other_tensors(
          index,
          describe_saved(saved_[index]),
          describe_saved(SavedMeta(tensor)));
    }
  }

  Forward forward_;
  GeneratorSnapshot generators_;
  std::shared_ptr<RandomStateRecorder> starts_ =
      std::make_shared<RandomStateRecorder>();
  ActivationCheckpointOptions options_;
  at::ThreadLocalState state_;
  std::vector<SavedMeta> saved_;
  /// Recursive, because a recomputation can destroy nodes of the first run,
  /// which calls drop().
  std::recursive_mutex mutex_;
  // The recomputed tensors, by the graph task id of the backward pass.
  std::map<int, Tensors> recomputed_;
};

// Runs `forward` with checkpointing. If `some` starts with a CUDA tensor, the
// generator of its device is recorded.
Tensors run_checkpointed(
    const Forward& forward,
    const Tensors& some,
    const ActivationCheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) {
    return forward();
  }
  GeneratorSnapshot generators;
  if (options.preserve_rng_state) {
    generators.keep(at::kCPU);
    if (!some.empty() && some.front().is_cuda()) {
      generators.keep(some.front().device());
    }
  }
  return std::make_shared<CheckpointedRun>(
             forward, std::move(generators), options)
      ->run();
}

} // namespace

Tensors activation_checkpoint(
    const std::function<Tensors(const Tensors& inputs)>& forward,
    const Tensors& inputs,
    const ActivationCheckpointOptions& options) {
  return run_checkpointed(
      [forward, inputs] { return forward(inputs); }, inputs, options);
}

void checkpoint_activations(
    torch::nn::Module& module,
    const ActivationCheckpointOptions& options) {
  module_hooks(module).around.emplace_back(
      [&module, options](const ModuleHooks::Forward& forward) {
        return run_checkpointed(forward, module.parameters(), options);
      });
}

std::vector<std::string> apply_activation_checkpointing(
    torch::nn::Module& module,
    const std::function<
        bool(const std::string& name, torch::nn::Module& module)>& check,
    const ActivationCheckpointOptions& options) {
  std::vector<std::string> picked;
  for (const auto& item : module.named_modules()) {
    const auto& name = item.key();
    const bool is_within =
        !picked.empty() &&
        (picked.back().empty() || name.starts_with(picked.back() + "."));
    if (is_within || dynamic_cast<ModuleHooks*>(item.value().get()) ||
        !check(name, *item.value())) {
      continue;
    }
    checkpoint_activations(*item.value(), options);
    picked.push_back(name);
  }
  return picked;
}

} // namespace weft::dtensor
