#include "tp/style.h"

#include <torch/torch.h>

#include "dtensor/distribute_module.h"
#include "dtensor/dtensor.h"
#include "dtensor/module_call.h"
#include "dtensor/parameter_info.h"
#include "mesh/error.h"

namespace weft::tp {
namespace {

using torch::nn::EmbeddingImpl;
using torch::nn::LinearImpl;

[[noreturn]] void refuse(
    const char* style,
    const torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const std::string& path,
    const char* fits) {
  mesh::throw_error<c10::ValueError>(
      std::string("[") + style + "] module \"" + path + "\" is a " +
      module.name() + ", not " + fits +
      ". Choose another style, or place its parameters with "
      "dtensor::set_placements(). (" +
      mesh.describe_rank() + ")");
}

// Linear and Embedding in one: which dim of the weight to cut, and where the
// op reads and leaves its tensors.
struct CutWeight {
  const char* style;
  int64_t linear_dim;
  int64_t embedding_dim;
  Placement linear_input;
  LayoutOptions layouts;
  Placement default_output;
};

void cut_weight(
    const CutWeight& cut,
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const std::string& path) {
  const auto output = cut.layouts.output_layouts.value_or(cut.default_output);
  if (auto* linear = module.as<LinearImpl>()) {
    dtensor::distribute_parameter(
        module, "weight", mesh, {Shard(cut.linear_dim)}, path);
    const bool bias_is_cut = cut.linear_dim == 0;
    if (linear->bias.defined()) {
      dtensor::distribute_parameter(
          module, "bias", mesh, {bias_is_cut ? Shard(0) : Replicate()}, path);
    }
    dtensor::parameter_info(linear->weight).linear = {
        Placements{cut.layouts.input_layouts.value_or(cut.linear_input)},
        Placements{output}};
  } else if (auto* embedding = module.as<EmbeddingImpl>()) {
    dtensor::distribute_parameter(
        module, "weight", mesh, {Shard(cut.embedding_dim)}, path);
    dtensor::parameter_info(embedding->weight).embedding = {
        Placements{cut.layouts.input_layouts.value_or(Replicate())},
        Placements{output}};
  } else {
    refuse(cut.style, module, mesh, path, "a Linear or an Embedding");
  }
}

at::Tensor move(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    Placement from,
    Placement to) {
  const auto placed = dtensor::is_dtensor(tensor)
                          ? tensor
                          : dtensor::from_local(tensor, mesh, {from});
  return dtensor::redistribute(placed, {to});
}

} // namespace

ParallelStyle ColwiseParallel(LayoutOptions options) {
  const CutWeight cut{"ColwiseParallel", 0, 1, Replicate(), options, Shard(-1)};
  return ParallelStyle([cut](auto& module, const auto& mesh, const auto& path) {
    cut_weight(cut, module, mesh, path);
  });
}

ParallelStyle RowwiseParallel(LayoutOptions options) {
  const CutWeight cut{"RowwiseParallel", 1, 0, Shard(-1), options, Replicate()};
  return ParallelStyle([cut](auto& module, const auto& mesh, const auto& path) {
    cut_weight(cut, module, mesh, path);
  });
}

ParallelStyle SequenceParallel(int64_t sequence_dim) {
  return ParallelStyle([sequence_dim](
                           torch::nn::Module& module,
                           const mesh::DeviceMesh& mesh,
                           const std::string& path) {
    for (auto& item : module.named_parameters(/*recurse=*/false)) {
      const auto parameter = dtensor::distribute_parameter(
          module, item.key(), mesh, {Replicate()}, path);
      dtensor::parameter_info(parameter).norm.input =
          Placements{Shard(sequence_dim)};
    }
  });
}

ParallelStyle PrepareModuleInput(PrepareModuleInputOptions options) {
  return ParallelStyle([options](
                           torch::nn::Module& module,
                           const mesh::DeviceMesh& mesh,
                           const std::string&) {
    dtensor::module_hooks(module).before.push_back(
        [options, mesh](std::vector<at::Tensor>& inputs) {
          inputs.at(0) = move(
              inputs.at(0),
              mesh,
              options.input_layouts,
              options.desired_input_layouts);
        });
  });
}

ParallelStyle PrepareModuleOutput(PrepareModuleOutputOptions options) {
  return ParallelStyle([options](
                           torch::nn::Module& module,
                           const mesh::DeviceMesh& mesh,
                           const std::string&) {
    dtensor::module_hooks(module).after.push_back(
        [options, mesh](const at::Tensor& output) {
          return move(
              output,
              mesh,
              options.output_layouts,
              options.desired_output_layouts);
        });
  });
}

} // namespace weft::tp
