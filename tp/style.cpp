#include "tp/style.h"

#include <torch/torch.h>

#include "dtensor/tensor/parameter_info.h"
#include "mesh/error/error.h"
#include "tp/module_tensors.h"

namespace weft::tp {
namespace {

using torch::nn::EmbeddingImpl;
using torch::nn::LinearImpl;

mesh::ErrorContext where(const StyleTarget& target) {
  return {target.mesh.describe_rank()};
}

// The sharding of a Linear's or an Embedding's weight: the dim to shard, and
// the placements of the op's input and output.
struct ShardedWeight {
  const char* style;
  int64_t linear_dim;
  int64_t embedding_dim;
  Placement linear_input;
  /// The output's placement along a mesh dim that shards the weight.
  Placement output;
  LayoutOptions options;
};

struct ShardedLayouts {
  Placements weight, bias, input, output;
};

void check_weight(
    const ShardedWeight& cut,
    const StyleTarget& target,
    const Placements& weight,
    int64_t tensor_dim) {
  bool cuts = false;
  for (const auto& placement : weight) {
    cuts |= placement.is_shard();
    WEFT_CHECK(
        placement.is_replicate() ||
            (placement.is_chunked() && placement.is_shard(tensor_dim)),
        cut.style,
        where(target),
        target.name(),
        ": weight_layouts has ",
        placement.to_string(),
        ", but this style shards the weight of a ",
        target.module.name(),
        " as ",
        Shard(tensor_dim).to_string(),
        " or, on a mesh dim, not at all, ",
        Replicate().to_string(),
        ".");
  }
  WEFT_CHECK(
      cuts,
      cut.style,
      where(target),
      target.name(),
      ": weight_layouts does not shard along any mesh dim. Use the NoParallel "
      "style.");
}

// Only a shard along the summed dim can leave a Partial sum as the output. The
// bias must be added after the reduction.
void check_output(
    const ShardedWeight& cut,
    const StyleTarget& target,
    const ShardedLayouts& layouts,
    bool has_bias) {
  for (size_t i = 0; i < layouts.output.size(); ++i) {
    if (!layouts.output[i].is_partial()) {
      continue;
    }
    const bool is_pending =
        layouts.weight[i].is_shard() &&
        layouts.output[i].is_partial(dtensor::ReduceOp::kSum) &&
        cut.output.is_replicate();
    WEFT_CHECK(
        is_pending,
        cut.style,
        where(target),
        target.name(),
        ": output_layouts ",
        layouts.output[i].to_string(),
        " along mesh dim ",
        i,
        " is not supported. Only RowwiseParallel can leave the output Partial, "
        "and only as Partial() (a sum) along mesh dims that shard the weight. "
        "Use Shard or Replicate along the other mesh dims.");
    WEFT_CHECK(
        !has_bias,
        cut.style,
        where(target),
        target.name(),
        ": output_layouts ",
        layouts.output[i].to_string(),
        ", but the bias is added only after the reduction. Build the module "
        "without bias.");
  }
}

ShardedLayouts layouts_of(
    const ShardedWeight& cut,
    const StyleTarget& target,
    int64_t tensor_dim,
    Placement default_input) {
  const auto& mesh = target.mesh;
  const auto& options = cut.options;
  const auto read = [&](const std::optional<Layout>& layout,
                        const char* what,
                        const Placements& otherwise) {
    if (!layout) {
      return otherwise;
    }
    layout->check(mesh, cut.style, target.name() + ": " + what);
    return layout->on(mesh);
  };
  ShardedLayouts layouts;
  layouts.weight = read(
      options.weight_layouts,
      "weight_layouts",
      Placements(mesh.ndim(), Shard(tensor_dim)));
  check_weight(cut, target, layouts.weight, tensor_dim);
  Placements input;
  for (const auto& placement : layouts.weight) {
    input.push_back(placement.is_shard() ? default_input : Replicate());
  }
  layouts.input = read(options.input_layouts, "input_layouts", input);
  Placements output;
  for (size_t i = 0; i < layouts.weight.size(); ++i) {
    const bool is_cut = layouts.weight[i].is_shard();
    output.push_back(is_cut ? cut.output : layouts.input[i]);
    layouts.bias.push_back(is_cut && tensor_dim == 0 ? Shard(0) : Replicate());
  }
  layouts.output = read(options.output_layouts, "output_layouts", output);
  return layouts;
}

[[noreturn]] void refuse_type(
    const ShardedWeight& cut,
    const StyleTarget& target) {
  mesh::throw_error<c10::ValueError>(
      std::string("[") + cut.style + "] " + target.name() + " is a " +
      target.module.name() +
      ", not a Linear or an Embedding. Choose another style, or place its "
      "parameters with dtensor::distribute_parameter(). (" +
      where(target).text + ")");
}

void check_embedding(
    const ShardedWeight& cut,
    const StyleTarget& target,
    const EmbeddingImpl& embedding) {
  const auto& options = embedding.options;
  const char* what = options.sparse()               ? "sparse gradients"
                     : options.max_norm()           ? "max_norm"
                     : options.scale_grad_by_freq() ? "scale_grad_by_freq"
                                                    : nullptr;
  WEFT_CHECK(
      what == nullptr,
      cut.style,
      where(target),
      target.name(),
      " is an Embedding with ",
      what ? what : "",
      ", which requires all rows of the weight on one rank. Build it without "
      "that option.");
}

void check_has_weight(
    const ShardedWeight& cut,
    const StyleTarget& target,
    const at::Tensor& weight) {
  WEFT_CHECK(
      weight.defined() && weight.dim() == 2,
      cut.style,
      where(target),
      target.name(),
      " has a weight of 2 dims: ",
      weight.defined() ? std::to_string(weight.dim()) + " dims" : "none",
      " vs 2 dims. If the module shares another module's weight, parallelize "
      "that module instead.");
}

ShardedLayouts fit_layouts(
    const ShardedWeight& cut,
    const StyleTarget& target) {
  if (auto* linear = target.module.as<LinearImpl>()) {
    check_has_weight(cut, target, linear->weight);
    auto layouts = layouts_of(cut, target, cut.linear_dim, cut.linear_input);
    check_output(cut, target, layouts, linear->bias.defined());
    return layouts;
  }
  if (auto* embedding = target.module.as<EmbeddingImpl>()) {
    check_has_weight(cut, target, embedding->weight);
    check_embedding(cut, target, *embedding);
    auto layouts = layouts_of(cut, target, cut.embedding_dim, Replicate());
    check_output(cut, target, layouts, /*has_bias=*/false);
    return layouts;
  }
  refuse_type(cut, target);
}

std::map<std::string, Placements> place_sharded(
    const ShardedWeight& cut,
    const StyleTarget& target) {
  const auto layouts = fit_layouts(cut, target);
  std::map<std::string, Placements> places{{"weight", layouts.weight}};
  const auto* linear = target.module.as<LinearImpl>();
  if (linear && linear->bias.defined()) {
    places["bias"] = layouts.bias;
  }
  return places;
}

void apply_sharded(const ShardedWeight& cut, const StyleTarget& target) {
  const auto layouts = fit_layouts(cut, target);
  dtensor::OpLayout layout;
  layout.input = layouts.input;
  layout.output = layouts.output;
  if (auto* linear = target.module.as<LinearImpl>()) {
    dtensor::parameter_info(linear->weight).linear = layout;
  } else if (auto* embedding = target.module.as<EmbeddingImpl>()) {
    dtensor::parameter_info(embedding->weight).embedding = layout;
  }
  if (cut.options.use_local_output) {
    place_outputs(target.module, target.mesh, {.use_local = true});
  }
}

ParallelStyle shard_style(ShardedWeight cut) {
  return ParallelStyle(
      {.name = cut.style,
       .places_parameters = true,
       .place =
           [cut](const auto& target) { return place_sharded(cut, target); },
       .apply = [cut](const auto& target) { apply_sharded(cut, target); }});
}

} // namespace

ParallelStyle ColwiseParallel(LayoutOptions options) {
  return shard_style(
      {"ColwiseParallel", 0, 1, Replicate(), Shard(-1), std::move(options)});
}

ParallelStyle RowwiseParallel(LayoutOptions options) {
  return shard_style(
      {"RowwiseParallel", 1, 0, Shard(-1), Replicate(), std::move(options)});
}

} // namespace weft::tp
