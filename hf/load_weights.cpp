#include "hf/load_weights.h"

#include <functional>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "checkpoint/files/error.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "hf/weight_reader.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"

namespace weft::hf {
namespace {

constexpr char kUsage = 'u';
constexpr char kDamage = 'd';

// Returns "" if `act` succeeds, otherwise the kind of the error and its text.
std::string failure_of(const std::function<void()>& act) {
  try {
    act();
    return "";
  } catch (const mesh::UsageError& error) {
    return kUsage + std::string(error.what_without_backtrace());
  } catch (const std::exception& error) {
    mesh::rethrow_if_out_of_memory(error);
    return kDamage + mesh::message_of(error);
  }
}

// Throws the error of the first rank that failed, on all ranks.
void agree(const mesh::World& world, const std::string& own) {
  auto group = world.group();
  const auto all = mesh::all_gather_text(group, own, "model.from");
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) {
      continue;
    }
    const auto text = fmt::format(
        "{}{}",
        all[rank].substr(1),
        all.size() == 1 ? "" : fmt::format(" (rank {})", rank));
    if (all[rank].front() == kUsage) {
      mesh::throw_error<mesh::UsageError>(text);
    }
    mesh::throw_error<checkpoint::CheckpointError>(text);
  }
}

WeightReader open_weights_of(const config::Recipe& recipe) {
  return {
      recipe.model, recipe.model.from, config::place_of(recipe, "model.from")};
}

void read_own_part(
    const WeightReader& reader,
    const std::string& name,
    const at::Tensor& tensor) {
  const auto& shape = reader.map().model.at(name).shape;
  TORCH_INTERNAL_ASSERT(tensor.sizes() == c10::IntArrayRef(shape), name);
  auto local = tensor.detach();
  Box own{Sizes(shape.size(), 0), shape};
  if (const auto* impl = dtensor::dtensor_impl(tensor)) {
    local = impl->local().detach();
    const auto box = dtensor::local_box(impl->spec(), tensor.sizes());
    own = {box.offset, box.sizes};
  }
  reader.read(name, own, local);
  // The write bypassed autograd, so the version counter is increased here.
  tensor.unsafeGetTensorImpl()->bump_version();
}

} // namespace

bool is_adapter(const std::string& name) {
  return name.find(".lora_A.") != std::string::npos ||
         name.find(".lora_B.") != std::string::npos;
}

void check_weights(const config::Recipe& recipe) {
  open_weights_of(recipe);
}

LoadedWeights load_weights(
    const config::Recipe& recipe,
    const dtensor::StateDict& state,
    const mesh::World& world) {
  LoadedWeights loaded;
  agree(world, failure_of([&] {
          const at::NoGradGuard no_grad;
          const auto reader = open_weights_of(recipe);
          for (const auto& [name, tensor] : state) {
            if (!is_adapter(name)) {
              read_own_part(reader, name, tensor);
              ++loaded.tensors;
            }
          }
          loaded.bytes_read = reader.bytes_read();
          loaded.notice = reader.notice();
        }));
  return loaded;
}

} // namespace weft::hf
