// Rules of ops that resize planes or move positions in them: upsampling, grid
// sampling, padding, patches, and shuffles of channels and pixels.

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"
#include "dtensor/rules/planes.h"
#include "dtensor/rules/rule.h"
#include "dtensor/rules/view_dims.h"

namespace weft::dtensor {
namespace {

using rules::ViewDim;
using rules::ViewDims;

// --- upsampling and pads ----------------------------------------------------

// Each output element is a copy of an input element, so every reduction
// commutes with the op.
std::vector<Strategy> picked(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = rules::cut_planes(call, context, {"self"});
  rules::add_pending(strategies, call, rules::every_reduction(), {"self"});
  return strategies;
}

std::vector<Strategy> interpolated(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = rules::cut_planes(call, context, {"self"});
  rules::add_linear(strategies, call, {"self"});
  return strategies;
}

std::vector<Strategy> resampling_backward(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = rules::cut_planes(call, context, {"self", "grad_output"});
  rules::add_linear(strategies, call, {"grad_output"});
  return strategies;
}

Rule::LocalArguments part_input_size(const LocalCall& local) {
  const auto position = rules::argument_position(local.call, "input_size");
  return {{position, local.outputs.at(0).sizes}};
}

// `padding` is [left, right] of the last dim, then of the dim before it.
std::vector<OutputMeta> padded_sizes(const OpCall& call) {
  const auto& input = call.tensors[0];
  const auto padding = call.arguments[1].toIntVector();
  auto sizes = input.sizes().vec();
  for (size_t i = 0; i < padding.size(); ++i) {
    sizes[sizes.size() - 1 - i / 2] += padding[i];
  }
  return {rules::laid_out(
      std::move(sizes), input.dim() > 3 && rules::has_channels_last(input))};
}

std::vector<OutputMeta> unpadded_sizes(const OpCall& call) {
  const auto& input = *rules::tensor_argument(call, "self");
  return {rules::laid_out(
      input.sizes().vec(), input.dim() > 3 && rules::has_channels_last(input))};
}

// Dims without padding may be sharded. The input may be Partial if its
// reduction preserves the padding value.
std::vector<Strategy> constant_pad(const OpCall& call, const StrategyContext&) {
  const auto padding = call.arguments[1].toIntVector();
  auto names = rules::all_dims(call.tensors[0].dim());
  for (size_t i = 0; i < padding.size(); ++i) {
    if (padding[i] != 0) {
      names[names.size() - 1 - i / 2] = '.';
    }
  }
  auto strategies = rules::cut_named_dims(call, {{"self", names}}, {names});
  rules::add_pending(
      strategies, call, rules::reductions_keeping(call.arguments[2]), {"self"});
  return strategies;
}

// --- grid sampling ----------------------------------------------------------

std::string grid_names(const OpCall& call) {
  return rules::tensor_argument(call, "grid")->dim() == 4 ? "xy" : "xyz";
}

// Samples, channels and output positions may be sharded. An output position can
// read any input position, so the input's spatial dims must be replicated.
std::vector<Strategy> grid_sampler(const OpCall& call, const StrategyContext&) {
  const auto positions = grid_names(call);
  auto strategies = rules::cut_named_dims(
      call, {{"input", "nc"}, {"grid", "n" + positions}}, {"nc" + positions});
  rules::add_linear(strategies, call, {"input"});
  return strategies;
}

std::vector<Strategy> grid_sampler_backward(
    const OpCall& call,
    const StrategyContext&) {
  const auto positions = grid_names(call);
  const bool to_input =
      rules::argument(call, "output_mask").toBoolList().get(0);
  auto strategies = rules::cut_named_dims(
      call,
      {{"grad_output", "nc" + positions},
       {"input", "nc"},
       {"grid", "n" + positions}},
      {to_input ? "+nc" : "", "+n" + positions});
  rules::add_linear(strategies, call, {"grad_output"}, {to_input, true});
  rules::add_linear(strategies, call, {"input"}, {false, true});
  return strategies;
}

std::vector<OutputMeta> sampled_sizes(const OpCall& call) {
  auto sizes = call.tensors[1].sizes().vec();
  sizes.pop_back();
  sizes.insert(sizes.begin() + 1, call.tensors[0].sizes()[1]);
  return {rules::contiguous(std::move(sizes))};
}

std::vector<OutputMeta> sampler_gradient_sizes(const OpCall& call) {
  const bool to_input =
      rules::argument(call, "output_mask").toBoolList().get(0);
  return {
      to_input ? rules::contiguous(call.tensors[1].sizes().vec())
               : OutputMeta(),
      rules::contiguous(call.tensors[2].sizes().vec())};
}

// affine_grid_generator(theta [N, ..], size [N, ..], align_corners).
std::vector<Strategy> affine_grid(const OpCall& call, const StrategyContext&) {
  auto strategies = rules::cut_named_dims(call, {{"theta", "n"}}, {"n"});
  rules::add_linear(strategies, call, {"theta"});
  return strategies;
}

std::vector<OutputMeta> affine_grid_sizes(const OpCall& call) {
  auto sizes = call.arguments[1].toIntVector();
  sizes.erase(sizes.begin() + 1);
  sizes.push_back(static_cast<int64_t>(sizes.size()) - 1);
  return {rules::contiguous(std::move(sizes))};
}

Rule::LocalArguments part_samples(const LocalCall& local) {
  auto sizes = local.call.arguments[1].toIntVector();
  sizes[0] = local.outputs.at(0).sizes[0];
  return {{1, sizes}};
}

// --- channels, positions and patches ----------------------------------------

// Converts between [.., C * r * r, H, W] and [.., C, H * r, W * r]. The kernel
// of pixel_unshuffle returns an empty input unchanged, with wrong sizes, so its
// shards must not be empty.
std::vector<Strategy> pixel_shuffle(
    const OpCall& call,
    const StrategyContext& context) {
  const auto from = call.tensors[0].sizes();
  auto dims = rules::kept_dims(call.tensors[0].dim());
  const bool makes_channels = call.name() == "aten::pixel_unshuffle";
  for (auto& dim : dims) {
    if (makes_channels && !rules::divides(from[dim.inputs[0]], context)) {
      dim = ViewDim();
    }
  }
  auto strategies = rules::follow_dims(
      call, context, from, context.outputs.at(0).sizes, dims);
  for (auto& strategy : strategies) {
    strategy.chunked_only |= makes_channels;
  }
  rules::add_pending(strategies, call, rules::every_reduction(), {"self"});
  return strategies;
}

std::vector<Strategy> channel_shuffle(
    const OpCall& call,
    const StrategyContext&) {
  const auto names =
      rules::with_full(rules::all_dims(call.tensors[0].dim()), 1);
  auto strategies = rules::cut_named_dims(call, {{"self", names}}, {names});
  rules::add_pending(strategies, call, rules::every_reduction(), {"self"});
  return strategies;
}

std::vector<OutputMeta> shuffled_sizes(const OpCall& call) {
  const auto& input = call.tensors[0];
  return {rules::laid_out(
      input.sizes().vec(), input.dim() > 3 && rules::has_channels_last(input))};
}

// Converts between [N, C, H, W] and [N, C * patch, patches], with or without N.
// Samples and channels may be sharded.
std::vector<Strategy>
patches(const OpCall& call, const StrategyContext& context, int64_t channel) {
  const auto from = call.tensors[0].sizes();
  const auto& to = context.outputs.at(0).sizes;
  ViewDims dims(to.size());
  for (int64_t d = 0; d <= channel; ++d) {
    if (d < channel || rules::divides(from[d], context)) {
      dims[d].inputs = {d};
    }
  }
  auto strategies = rules::follow_dims(call, context, from, to, dims);
  for (auto& strategy : strategies) {
    strategy.chunked_only |= strategy.inputs[0] == Shard(channel);
  }
  return strategies;
}

std::vector<Strategy> im2col(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = patches(call, context, call.tensors[0].dim() - 3);
  rules::add_pending(strategies, call, rules::every_reduction(), {"self"});
  return strategies;
}

std::vector<Strategy> col2im(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = patches(call, context, call.tensors[0].dim() - 2);
  rules::add_linear(strategies, call, {"self"});
  return strategies;
}

// im2col(self, kernel_size, dilation, padding, stride).
std::vector<OutputMeta> im2col_sizes(const OpCall& call) {
  auto sizes = call.tensors[0].sizes().vec();
  const auto number = [&](size_t argument, size_t dim) {
    const auto list = call.arguments[argument].toIntVector();
    return list.size() == 1 ? list[0] : list.at(dim);
  };
  int64_t patch = 1;
  int64_t count = 1;
  for (size_t d = 0; d < 2; ++d) {
    const int64_t size = sizes[sizes.size() - 2 + d];
    const int64_t reach = number(2, d) * (number(1, d) - 1) + 1;
    patch *= number(1, d);
    count *= (size + 2 * number(3, d) - reach) / number(4, d) + 1;
  }
  sizes.pop_back();
  sizes.back() = count;
  sizes[sizes.size() - 2] *= patch;
  return {rules::contiguous(std::move(sizes))};
}

// col2im(self, output_size, kernel_size, dilation, padding, stride).
std::vector<OutputMeta> col2im_sizes(const OpCall& call) {
  auto sizes = call.tensors[0].sizes().vec();
  const auto plane = call.arguments[1].toIntVector();
  const auto kernel = call.arguments[2].toIntVector();
  sizes.pop_back();
  sizes.back() /= kernel[0] * kernel.back();
  sizes.push_back(plane[0]);
  sizes.push_back(plane.back());
  return {rules::contiguous(std::move(sizes))};
}

} // namespace

void add_padding_rules(RuleTable& table) {
  table.add(
      "reflection_pad1d reflection_pad3d replication_pad1d replication_pad2d "
      "replication_pad3d",
      {.strategies = picked});
  table.add("reflection_pad2d", {.strategies = picked, .infer = padded_sizes});
  table.add(
      "reflection_pad1d_backward reflection_pad3d_backward "
      "replication_pad1d_backward",
      {.strategies = resampling_backward});
  table.add(
      "reflection_pad2d_backward replication_pad2d_backward "
      "replication_pad3d_backward",
      {.strategies = resampling_backward, .infer = unpadded_sizes});
  table.add("constant_pad_nd", {.strategies = constant_pad});
}

void add_resampling_rules(RuleTable& table) {
  table.add(
      "upsample_nearest1d upsample_nearest2d upsample_nearest3d "
      "_upsample_nearest_exact1d _upsample_nearest_exact2d "
      "_upsample_nearest_exact3d",
      {.strategies = picked});
  table.add(
      "upsample_linear1d upsample_bilinear2d upsample_bicubic2d "
      "upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa "
      "_upsample_lanczos2d_aa",
      {.strategies = interpolated});
  table.add(
      "upsample_nearest1d_backward upsample_nearest2d_backward "
      "upsample_nearest3d_backward _upsample_nearest_exact1d_backward "
      "_upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward "
      "upsample_linear1d_backward upsample_bilinear2d_backward "
      "upsample_bicubic2d_backward upsample_trilinear3d_backward "
      "_upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward "
      "_upsample_lanczos2d_aa_backward",
      {.strategies = resampling_backward, .localize = part_input_size});
  table.add(
      "grid_sampler_2d grid_sampler_3d",
      {.strategies = grid_sampler, .infer = sampled_sizes});
  table.add(
      "grid_sampler_2d_backward grid_sampler_3d_backward",
      {.strategies = grid_sampler_backward, .infer = sampler_gradient_sizes});
  table.add(
      "affine_grid_generator",
      {.strategies = affine_grid,
       .infer = affine_grid_sizes,
       .localize = part_samples});
  table.add("pixel_shuffle pixel_unshuffle", {.strategies = pixel_shuffle});
  table.add(
      "channel_shuffle",
      {.strategies = channel_shuffle, .infer = shuffled_sizes});
  table.add("im2col", {.strategies = im2col, .infer = im2col_sizes});
  table.add("col2im", {.strategies = col2im, .infer = col2im_sizes});
}

} // namespace weft::dtensor
