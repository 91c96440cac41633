// Rules of layer, RMS, group, batch and weight norm, forward and backward. The
// dims over which a statistic is taken must be replicated.

#include <algorithm>

#include "dtensor/rules/named_dims.h"

namespace weft::dtensor {
namespace {

using rules::tensor_argument;

OutputMeta contiguous_like(const TensorArgument* tensor) {
  return tensor ? rules::contiguous(tensor->sizes().vec()) : OutputMeta{};
}

// An output that `output_mask` does not request has no dims.
std::vector<std::string> asked_for(
    const OpCall& call,
    std::vector<std::string> outputs) {
  if (const auto mask = rules::argument(call, "output_mask");
      mask.isBoolList()) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i] = mask.toBoolList().get(i) ? outputs[i] : "";
    }
  }
  return outputs;
}

// --- layer and RMS norm -----------------------------------------------------

std::string outer_dims(const OpCall& call) {
  const auto normalized =
      rules::argument(call, "normalized_shape").toIntVector();
  return rules::with_whole_tail(
      rules::all_dims(tensor_argument(call, "input")->dim()),
      static_cast<int64_t>(normalized.size()));
}

std::vector<Strategy> layer_norm(const OpCall& call, const StrategyContext&) {
  const auto names = outer_dims(call);
  return rules::cut_named_dims(
      call,
      {{"input", names}},
      std::vector<std::string>(call.op.schema().returns().size(), names));
}

std::vector<Strategy> layer_norm_backward(
    const OpCall& call,
    const StrategyContext&) {
  const auto names = outer_dims(call);
  std::vector<std::string> outputs(call.op.schema().returns().size(), "+");
  outputs[0] = names;
  auto strategies = rules::cut_named_dims(
      call,
      {{"grad_out", names}, {"input", names}, {"mean", names}, {"rstd", names}},
      asked_for(call, outputs));
  rules::add_linear(strategies, call, {"grad_out"});
  return strategies;
}

std::vector<int64_t> statistic_sizes(const OpCall& call) {
  const auto normalized =
      rules::argument(call, "normalized_shape").toIntVector();
  auto sizes = tensor_argument(call, "input")->sizes().vec();
  std::fill_n(sizes.rbegin(), normalized.size(), 1);
  return sizes;
}

std::vector<OutputMeta> layer_norm_sizes(const OpCall& call) {
  const auto statistic = rules::contiguous(statistic_sizes(call));
  std::vector<OutputMeta> outputs(call.op.schema().returns().size(), statistic);
  outputs[0] = contiguous_like(tensor_argument(call, "input"));
  return outputs;
}

std::vector<OutputMeta> layer_norm_backward_sizes(const OpCall& call) {
  const auto mask = rules::argument(call, "output_mask").toBoolList();
  const auto whole = rules::contiguous(
      rules::argument(call, "normalized_shape").toIntVector());
  std::vector<OutputMeta> outputs(call.op.schema().returns().size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (mask.get(i)) {
      outputs[i] =
          i == 0 ? contiguous_like(tensor_argument(call, "input")) : whole;
    }
  }
  return outputs;
}

// --- group norm -------------------------------------------------------------

// The channels may be sharded if each rank has full groups.
std::vector<Strategy> group_norm(
    const OpCall& call,
    const StrategyContext& context) {
  const auto rest = rules::all_dims(tensor_argument(call, "input")->dim());
  const auto names = "n" + std::string(rest.size() - 1, '.');
  auto strategies =
      rules::cut_named_dims(call, {{"input", names}}, {names, "n.", "n."});
  const int64_t groups = rules::argument(call, "group").toInt();
  if (groups % context.all_shards == 0) {
    const auto channels = ".c" + std::string(rest.size() - 2, '.');
    auto cut = rules::cut_named_dims(
        call,
        {{"input", channels}, {"weight", "c"}, {"bias", "c"}},
        {channels, ".c", ".c"});
    cut.at(0).chunked_only = true;
    strategies.push_back(std::move(cut[0]));
  }
  return strategies;
}

std::vector<Strategy> group_norm_backward(
    const OpCall& call,
    const StrategyContext& context) {
  const auto ndim = tensor_argument(call, "input")->dim();
  const auto names = "n" + std::string(ndim - 1, '.');
  auto strategies = rules::cut_named_dims(
      call,
      {{"grad_out", names}, {"input", names}, {"mean", "n."}, {"rstd", "n."}},
      asked_for(call, {names, "+", "+"}));
  const int64_t groups = rules::argument(call, "group").toInt();
  if (groups % context.all_shards == 0) {
    const auto channels = ".c" + std::string(ndim - 2, '.');
    auto cut = rules::cut_named_dims(
        call,
        {{"grad_out", channels},
         {"input", channels},
         {"mean", ".c"},
         {"rstd", ".c"},
         {"weight", "c"}},
        asked_for(call, {channels, "c", "c"}));
    cut.at(0).chunked_only = true;
    strategies.push_back(std::move(cut[0]));
  }
  rules::add_linear(strategies, call, {"grad_out"});
  return strategies;
}

Rule::LocalArguments local_groups(const LocalCall& local) {
  const auto& call = local.call;
  Rule::LocalArguments arguments;
  const auto groups = rules::argument(call, "group").toInt();
  const auto channels = rules::argument(call, "C").toInt();
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& name =
        call.op.schema().arguments()[call.tensors[i].argument].name();
    if (name == "input") {
      const auto& sizes = local.inputs[i].sizes;
      arguments.emplace_back(rules::argument_position(call, "N"), sizes[0]);
      arguments.emplace_back(rules::argument_position(call, "C"), sizes[1]);
      const auto local_groups =
          channels == 0 ? groups : groups * sizes[1] / channels;
      arguments.emplace_back(
          rules::argument_position(call, "group"), local_groups);
    }
  }
  return arguments;
}

std::vector<OutputMeta> group_norm_backward_sizes(const OpCall& call) {
  const auto mask = rules::argument(call, "output_mask").toBoolList();
  const auto channels = rules::contiguous({rules::argument(call, "C").toInt()});
  return {
      mask.get(0) ? rules::in_memory_format(*tensor_argument(call, "input"))
                  : OutputMeta{},
      mask.get(1) ? channels : OutputMeta{},
      mask.get(2) ? channels : OutputMeta{}};
}

std::vector<OutputMeta> group_norm_sizes(const OpCall& call) {
  const auto statistic = rules::contiguous(
      {rules::argument(call, "N").toInt(),
       rules::argument(call, "group").toInt()});
  return {
      rules::in_memory_format(*tensor_argument(call, "input")),
      statistic,
      statistic};
}

// --- batch norm -------------------------------------------------------------

// Returns true if the op takes statistics of the batch. Each statistic belongs
// to one channel, so channels may always be sharded, but samples only if the op
// takes no statistics.
bool takes_statistics(const OpCall& call) {
  for (const auto* name : {"training", "train", "update"}) {
    if (const auto value = rules::argument(call, name); value.isBool()) {
      return value.toBool();
    }
  }
  const auto name = call.name();
  return name != "aten::_native_batch_norm_legit_no_training" &&
         name != "aten::_batch_norm_no_update";
}

bool is_functional(const OpCall& call) {
  return call.name().ends_with("_functional");
}

bool is_running(const OpCall& call, const TensorArgument& tensor) {
  return call.op.schema().arguments()[tensor.argument].name().starts_with(
      "running_");
}

// Removes strategies that would redistribute the running statistics. Training
// writes to them, although not every schema declares it, and would then write
// to a copy.
void leave_running_statistics(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    const StrategyContext& context) {
  std::erase_if(strategies, [&](const Strategy& strategy) {
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      const auto& tensor = call.tensors[i];
      if (is_running(call, tensor) && tensor.spec &&
          tensor.spec->placement(context.mesh_dim) != strategy.inputs[i]) {
        return true;
      }
    }
    return false;
  });
}

// Returns the names of the dims of the input and of the statistics. Statistics
// that are empty, as in evaluation, stay replicated.
rules::NamedDims channel_names(const OpCall& call, const std::string& input) {
  rules::NamedDims names;
  for (const auto& tensor : call.tensors) {
    const auto& name = call.op.schema().arguments()[tensor.argument].name();
    const int64_t channels = tensor_argument(call, "input")->sizes()[1];
    if (name == "input" || name.starts_with("grad_out")) {
      names.emplace_back(name, input);
    } else if (
        tensor.dim() == 1 && tensor.sizes()[0] == channels &&
        !name.starts_with("reserve")) {
      names.emplace_back(
          name, input.find('C') != std::string::npos ? "C" : ".");
    }
  }
  return names;
}

std::vector<std::string> channel_outputs(
    const OpCall& call,
    const StrategyContext& context,
    const std::string& input) {
  std::vector<std::string> outputs{input};
  const int64_t channels = tensor_argument(call, "input")->sizes()[1];
  const size_t count = context.outputs.size();
  for (size_t i = 1; i < count; ++i) {
    const auto& sizes = context.outputs[i].sizes;
    const bool statistic = i < 3 || (is_functional(call) && i + 2 >= count);
    outputs.emplace_back(
        statistic && sizes.size() == 1 && sizes[0] == channels ? "C" : ".");
  }
  return outputs;
}

void require_placed_statistics(
    const std::vector<Strategy>& strategies,
    const OpCall& call,
    const StrategyContext& context) {
  for (const auto& tensor : call.tensors) {
    TORCH_CHECK_VALUE(
        !is_running(call, tensor) || !tensor.spec || !strategies.empty() ||
            tensor.spec->placement(context.mesh_dim).is_replicate(),
        "[",
        call.name(),
        "] cannot write in place to its running statistics with these "
        "placements: ",
        tensor.spec->to_string(),
        ", sizes ",
        tensor.sizes(),
        ". Replicate them, or shard all of them along the channels, so that "
        "each rank has some. (",
        call.mesh().describe_rank(),
        ")");
  }
}

std::vector<Strategy> batch_norm(
    const OpCall& call,
    const StrategyContext& context) {
  const int64_t ndim = tensor_argument(call, "input")->dim();
  const auto rest = rules::all_dims(ndim - 2);
  const auto channels = ".C" + std::string(rest.size(), '.');
  auto strategies = rules::cut_named_dims(
      call,
      channel_names(call, channels),
      channel_outputs(call, context, channels));
  if (takes_statistics(call)) {
    rules::keep_filled_cuts(strategies, call, context);
    if (!is_functional(call)) {
      leave_running_statistics(strategies, call, context);
      require_placed_statistics(strategies, call, context);
    }
    return strategies;
  }
  const auto samples = "N." + rest;
  auto more = rules::cut_named_dims(
      call, {{"input", samples}}, channel_outputs(call, context, samples));
  for (auto& strategy : more) {
    for (size_t i = 1; i < strategy.outputs.size(); ++i) {
      strategy.outputs[i] = Replicate();
    }
    strategies.push_back(std::move(strategy));
  }
  return strategies;
}

std::vector<Strategy> batch_norm_backward(
    const OpCall& call,
    const StrategyContext& context) {
  const int64_t ndim = tensor_argument(call, "input")->dim();
  const auto rest = rules::all_dims(ndim - 2);
  const auto channels = ".C" + std::string(rest.size(), '.');
  auto strategies = rules::cut_named_dims(
      call,
      channel_names(call, channels),
      asked_for(call, {channels, "C", "C"}));
  if (!takes_statistics(call)) {
    const auto samples = "N." + rest;
    auto more = rules::cut_named_dims(
        call,
        channel_names(call, samples),
        asked_for(call, {samples, "+", "+"}));
    strategies.insert(strategies.end(), more.begin(), more.end());
  }
  rules::keep_filled_cuts(strategies, call, context);
  rules::add_linear(strategies, call, {"grad_out", "grad_output"});
  return strategies;
}

// The outputs are (output, mean, 1 / deviation[, working memory][, running mean
// and variance]). In evaluation, mean and 1 / deviation are empty.
std::vector<OutputMeta> batch_norm_sizes(const OpCall& call) {
  const auto& input = *tensor_argument(call, "input");
  const auto statistic =
      rules::contiguous({takes_statistics(call) ? input.sizes()[1] : 0});
  std::vector<OutputMeta> outputs(call.op.schema().returns().size(), statistic);
  outputs[0] = rules::in_memory_format(input);
  if (is_functional(call)) {
    const auto running = rules::contiguous({input.sizes()[1]});
    outputs.back() = running;
    outputs[outputs.size() - 2] = running;
  }
  if (outputs.size() % 2 == 0) {
    outputs[3] = rules::contiguous({0});
  }
  return outputs;
}

std::vector<OutputMeta> batch_norm_backward_sizes(const OpCall& call) {
  const auto& input = *tensor_argument(call, "input");
  const auto channels = rules::contiguous({input.sizes()[1]});
  std::vector<OutputMeta> outputs{
      rules::in_memory_format(input), channels, channels};
  if (const auto mask = rules::argument(call, "output_mask");
      mask.isBoolList()) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i] = mask.toBoolList().get(i) ? outputs[i] : OutputMeta{};
    }
  }
  return outputs;
}

// --- weight norm -------------------------------------------------------------

// The op is v * g / |v|. All dims of v except `dim` are normalized together,
// and have size 1 in g and in the norms.
std::string kept_dim(const OpCall& call, const char* tensor) {
  const int64_t ndim = tensor_argument(call, tensor)->dim();
  const int64_t dim = rules::argument(call, "dim").toInt();
  std::string names(ndim, '.');
  names.at(dim < 0 ? dim + ndim : dim) = 'k';
  return names;
}

std::vector<Strategy> weight_norm(
    const OpCall& call,
    const StrategyContext& context) {
  const auto names = kept_dim(call, "v");
  auto strategies =
      rules::cut_named_dims(call, {{"v", names}, {"g", names}}, {names, names});
  rules::keep_filled_cuts(strategies, call, context);
  return strategies;
}

std::vector<OutputMeta> weight_norm_sizes(const OpCall& call) {
  return {
      contiguous_like(tensor_argument(call, "v")),
      contiguous_like(tensor_argument(call, "g"))};
}

std::vector<Strategy> weight_norm_backward(
    const OpCall& call,
    const StrategyContext& context) {
  const auto names = kept_dim(call, "saved_v");
  auto strategies = rules::cut_named_dims(
      call,
      {{"grad_w", names},
       {"saved_v", names},
       {"saved_g", names},
       {"saved_norms", names}},
      {names, names});
  rules::keep_filled_cuts(strategies, call, context);
  rules::add_linear(strategies, call, {"grad_w"});
  return strategies;
}

std::vector<OutputMeta> weight_norm_backward_sizes(const OpCall& call) {
  return {
      contiguous_like(tensor_argument(call, "saved_v")),
      contiguous_like(tensor_argument(call, "saved_g"))};
}

} // namespace

void add_normalization_rules(RuleTable& table) {
  table.add(
      "_weight_norm_interface",
      {.strategies = weight_norm, .infer = weight_norm_sizes});
  table.add(
      "_weight_norm_interface_backward",
      {.strategies = weight_norm_backward,
       .infer = weight_norm_backward_sizes});
  table.add(
      "native_layer_norm",
      {.strategies = layer_norm, .infer = layer_norm_sizes});
  table.add(
      "native_layer_norm_backward _fused_rms_norm_backward",
      {.strategies = layer_norm_backward, .infer = layer_norm_backward_sizes});
  table.add(
      "native_group_norm",
      {.strategies = group_norm,
       .infer = group_norm_sizes,
       .localize = local_groups});
  table.add(
      "native_group_norm_backward",
      {.strategies = group_norm_backward,
       .infer = group_norm_backward_sizes,
       .localize = local_groups});
  table.add(
      "native_batch_norm _native_batch_norm_legit "
      "_native_batch_norm_legit_functional "
      "_native_batch_norm_legit_no_training _batch_norm_with_update "
      "_batch_norm_with_update_functional _batch_norm_no_update "
      "cudnn_batch_norm miopen_batch_norm",
      {.strategies = batch_norm, .infer = batch_norm_sizes});
  table.add(
      "native_batch_norm_backward batch_norm_backward "
      "cudnn_batch_norm_backward miopen_batch_norm_backward",
      {.strategies = batch_norm_backward, .infer = batch_norm_backward_sizes});
}

} // namespace weft::dtensor
