#include "train/setup/preflight.h"

#include <vector>

#include <torch/version.h>

#include "base/string_streams.h"
#include "config/schema.h"
#include "data_parallel/parameters/module_state.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/bootstrap/debug_level.h"

namespace weft::train {
namespace {

std::string tensor_text(const at::Tensor& tensor) {
  base::StringWriter out;
  out << tensor.sizes() << ' ' << c10::toString(tensor.scalar_type());
  const auto* impl = dtensor::dtensor_impl(tensor);
  if (impl && impl->spec().mesh_ndim() > 0) {
    out << ' ' << impl->spec().to_string();
  }
  if (!tensor.requires_grad()) {
    out << " frozen";
  }
  return out.str();
}

void add(
    std::vector<mesh::AgreedValue>& values,
    const std::string& kind,
    const std::vector<data_parallel::NamedTensor>& tensors) {
  for (const auto& item : tensors) {
    values.push_back({kind + " " + item.name, tensor_text(item.tensor)});
  }
}

} // namespace

void check_runs_agree(
    const config::Recipe& recipe,
    const std::string& data_fingerprint,
    const mesh::World& world) {
  std::vector<mesh::AgreedValue> values{
      {"the version of weft", WEFT_VERSION},
      {"the version of libtorch", TORCH_VERSION},
      // Only at this level, ranks issue additional collectives.
      {"whether TORCH_DISTRIBUTED_DEBUG is DETAIL",
       mesh::get_debug_level() == mesh::DebugLevel::kDetail ? "yes" : "no"}};
  for (const config::Key& key : config::schema()) {
    if (config::applies(key, recipe)) {
      values.push_back(
          {"recipe, " + std::string(key.path),
           config::value_of(recipe, key.path)});
    }
  }
  values.push_back({"data (names and sizes of the files)", data_fingerprint});
  world.check_agreement(values);
}

void check_models_agree(
    const torch::nn::Module& model,
    const mesh::World& world) {
  std::vector<mesh::AgreedValue> values;
  add(values, "parameter", data_parallel::parameters_of(model));
  add(values, "buffer", data_parallel::buffers_of(model));
  world.check_agreement(values);
}

} // namespace weft::train
