#include "ddp/batch_norm/sync_batch_norm.h"

#include <algorithm>
#include <array>
#include <optional>
#include <ostream>
#include <tuple>
#include <utility>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/init.h>

#include "data_parallel/parameters/module_state.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "SyncBatchNorm";

// Note [Synchronised statistics]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Forward: each rank computes, for each channel, its count n_r, mean m_r and
// sum q_r of squared differences from that mean (in libtorch's two passes, not
// as a sum of squares). One all_reduce gathers them: each rank fills its row of
// a table that is zero elsewhere. A rank with an empty batch thus has the count
// 0, and so has a rank without inputs (a shadow, see Note [Shadowing ranks]).
// Then each rank combines the rows as Chan et al. do, in double and with
// identical results on all ranks:
//   n = sum n_r,  m = sum n_r m_r / n,  v = (sum q_r + n_r (m_r - m)^2) / n.
// This loses no precision if means are large compared to deviations.
// Backward: with x^ = (x - m) / s and s = sqrt(v + eps), the loss L has
//   dL/dx = w / s (dL/dy - sum(dL/dy) / n - x^ sum(dL/dy x^) / n),
// whose two sums run over all ranks: a second exchange, of 2 C numbers.
struct BatchStatistics {
  double count;
  // The mean and the biased variance, in the dtype of statistics_dtype().
  // Undefined if `count` is 0.
  at::Tensor mean, var;
};

at::ScalarType statistics_dtype(const at::Tensor& input) {
  return at::promote_types(input.scalar_type(), at::kFloat);
}

BatchStatistics batch_statistics(
    const at::Tensor& input,
    SyncBatchNormGroup& channel) {
  const auto dtype = statistics_dtype(input);
  const auto channels = input.size(1);
  const auto table = at::zeros(
      {channel.group().size(), 2 * channels + 1}, input.options().dtype(dtype));
  if (const auto count = input.numel() / channels; count > 0) {
    const auto [mean, var] =
        at::batch_norm_update_stats(input.to(dtype), {}, {}, 0.0);
    const auto own = table[channel.group().rank()];
    own.narrow(0, 0, channels).copy_(mean);
    own.narrow(0, channels, channels).copy_(var).mul_(count);
    own[2 * channels].fill_(count);
  }
  channel.sum(table);
  const auto all = table.to(at::kDouble);
  const auto counts = all.narrow(1, 2 * channels, 1);
  const auto count = counts.sum().item<double>();
  if (count == 0) {
    return {0, {}, {}};
  }
  const auto means = all.narrow(1, 0, channels);
  const auto squares = all.narrow(1, channels, channels);
  const auto mean = (means * counts).sum(0) / count;
  const auto var = (squares + counts * (means - mean).square()).sum(0) / count;
  return {count, mean.to(dtype), var.to(dtype)};
}

at::Tensor cast(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() ? tensor.to(dtype) : tensor;
}

/// Returns [C] as [C, 1, ...], which broadcasts against an input of `dim` dims.
at::Tensor beside(const at::Tensor& channels, int64_t dim) {
  std::vector<int64_t> sizes(dim - 1, 1);
  sizes[0] = -1;
  return channels.view(sizes);
}

/// Holds the group in AutogradContext::saved_data, which stores only IValues.
struct ChannelHolder : torch::CustomClassHolder {
  explicit ChannelHolder(std::shared_ptr<SyncBatchNormGroup> its)
      : channel(std::move(its)) {}
  std::shared_ptr<SyncBatchNormGroup> channel;
};

struct Normalize : torch::autograd::Function<Normalize> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const std::optional<at::Tensor>& own_weight,
      const std::optional<at::Tensor>& own_bias,
      const BatchStatistics& batch,
      const std::shared_ptr<SyncBatchNormGroup>& channel,
      double eps) {
    const auto weight = own_weight.value_or(at::Tensor());
    const auto bias = own_bias.value_or(at::Tensor());
    context->save_for_backward({input, weight, bias, batch.mean, batch.var});
    context->saved_data["count"] = batch.count;
    context->saved_data["eps"] = eps;
    context->saved_data["channel"] =
        c10::IValue::make_capsule(c10::make_intrusive<ChannelHolder>(channel));
    if (input.numel() == 0) {
      return at::empty_like(input);
    }
    const auto dtype = statistics_dtype(input);
    return std::get<0>(at::native_batch_norm(
        input,
        cast(weight, dtype),
        cast(bias, dtype),
        batch.mean,
        batch.var,
        /*training=*/false,
        /*momentum=*/0.0,
        eps));
  }

  static variable_list backward(AutogradContext* context, variable_list grads);
};

/// The gradients from this rank's rows, with mean and variance as constants.
struct OwnGradients {
  at::Tensor input, weight, bias;
};

OwnGradients own_gradients(
    const at::Tensor& grad,
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& mean,
    const at::Tensor& var,
    double eps) {
  if (input.numel() == 0) {
    const auto zeros = at::zeros({input.size(1)}, input.options());
    return {at::zeros_like(input), zeros, zeros};
  }
  auto [input_grad, weight_grad, bias_grad] = at::native_batch_norm_backward(
      grad,
      input,
      weight,
      mean,
      var,
      {},
      {},
      /*train=*/false,
      eps,
      {true, true, true});
  return {input_grad, weight_grad, bias_grad};
}

/// Subtracts from `grad` the gradients that flow through mean and variance.
/// `means` are the averages over all ranks of dL/dy and of dL/dy x^.
void subtract_shared(
    const at::Tensor& grad,
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& mean,
    const at::Tensor& inverse_deviation,
    const at::Tensor& means) {
  const auto scale =
      weight.defined() ? weight * inverse_deviation : inverse_deviation;
  const auto dim = input.dim();
  grad.sub_(beside(scale * means[0], dim));
  grad.addcmul_(
      input - beside(mean, dim),
      beside(scale * inverse_deviation * means[1], dim),
      /*value=*/-1);
}

variable_list Normalize::backward(
    AutogradContext* context,
    variable_list grads) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !at::GradMode::is_enabled(),
      "[SyncBatchNorm] second derivatives are not supported. Call backward() "
      "without create_graph.");
  const auto saved = context->get_saved_variables();
  const auto dtype = statistics_dtype(saved[0]);
  const auto input = saved[0].to(dtype);
  const auto weight = cast(saved[1], dtype);
  const auto& mean = saved[3];
  const auto& var = saved[4];
  const auto eps = context->saved_data["eps"].toDouble();
  const auto own =
      own_gradients(grads[0].to(dtype), input, weight, mean, var, eps);
  variable_list result(6);
  if (context->needs_input_grad(0)) {
    const auto sums = at::stack({own.bias, own.weight});
    const auto holder = c10::static_intrusive_pointer_cast<ChannelHolder>(
        context->saved_data["channel"].toCapsule());
    holder->channel->sum(sums);
    if (input.numel() > 0) {
      sums.div_(context->saved_data["count"].toDouble());
      subtract_shared(
          own.input, input, weight, mean, (var + eps).rsqrt(), sums);
    }
  }
  const std::array<at::Tensor, 3> gradients{own.input, own.weight, own.bias};
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (saved[i].defined() && context->needs_input_grad(i)) {
      result[i] = gradients[i].to(saved[i].scalar_type());
    }
  }
  return result;
}

at::Tensor whole(const at::Tensor& tensor) {
  if (!dtensor::is_dtensor(tensor)) {
    return tensor;
  }
  const dtensor::Placements everywhere(
      dtensor::spec_of(tensor).placements().size(), dtensor::Replicate());
  return dtensor::to_local(dtensor::redistribute(tensor, everywhere));
}

/// Returns nullopt for an undefined tensor, because an autograd::Function
/// accepts no undefined tensors.
std::optional<at::Tensor> whole_if_any(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(whole(tensor)) : std::nullopt;
}

/// Moves the running statistics by `factor` towards those of the batch. The
/// running variance is unbiased.
void update_running(
    const at::Tensor& running_mean,
    const at::Tensor& running_var,
    const BatchStatistics& batch,
    double factor) {
  const at::NoGradGuard no_grad;
  const auto blend = [&](const at::Tensor& running, const at::Tensor& own) {
    auto local = data_parallel::local_part(running);
    local.mul_(1 - factor).add_(own.to(local.scalar_type()), factor);
  };
  blend(running_mean, batch.mean);
  blend(running_var, batch.var * (batch.count / (batch.count - 1)));
}

} // namespace

SyncBatchNormImpl::SyncBatchNormImpl(
    const torch::nn::BatchNormOptions& options_,
    std::shared_ptr<SyncBatchNormGroup> channel)
    : options(options_), channel_(std::move(channel)) {
  WEFT_CHECK(
      channel_,
      kOp,
      mesh::ErrorContext{"construction"},
      "the group is null. Create one for the model with "
      "make_sync_batch_norm_group().");
  SyncBatchNormImpl::reset();
}

void SyncBatchNormImpl::register_own() {
  const auto is_trained = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  };
  register_parameter("weight", weight, is_trained(weight));
  register_parameter("bias", bias, is_trained(bias));
  register_buffer("running_mean", running_mean);
  register_buffer("running_var", running_var);
  register_buffer("num_batches_tracked", num_batches_tracked);
}

void SyncBatchNormImpl::reset() {
  const auto make = [&](bool exists, const auto& tensor) {
    return exists ? tensor() : at::Tensor();
  };
  const auto empty = [&] { return at::empty({options.num_features()}); };
  const auto trained = [&] { return empty().requires_grad_(); };
  weight = make(options.affine(), trained);
  bias = make(options.affine(), trained);
  running_mean = make(options.track_running_stats(), empty);
  running_var = make(options.track_running_stats(), empty);
  num_batches_tracked = make(
      options.track_running_stats(), [] { return at::zeros({}, at::kLong); });
  register_own();
  reset_parameters();
}

void SyncBatchNormImpl::reset_running_stats() {
  if (running_mean.defined()) {
    running_mean.zero_();
    running_var.fill_(1);
    num_batches_tracked.zero_();
  }
}

void SyncBatchNormImpl::reset_parameters() {
  reset_running_stats();
  if (weight.defined()) {
    torch::nn::init::ones_(weight);
    torch::nn::init::zeros_(bias);
  }
}

void SyncBatchNormImpl::check_input(const at::Tensor& input) const {
  const auto where = [&] {
    const auto& group = channel_->group();
    return mesh::ErrorContext{mesh::detail::concat(
        "rank ", group.rank(), "/", group.size(), " of ", group.name())};
  };
  WEFT_CHECK(
      input.dim() >= 2,
      kOp,
      where(),
      "input: got ",
      input.dim(),
      " dims, expected at least 2: [N, C, ...].");
  WEFT_CHECK(
      input.size(1) == options.num_features(),
      kOp,
      where(),
      "input: got ",
      input.size(1),
      " channels in dim 1, expected num_features = ",
      options.num_features(),
      ".");
  WEFT_CHECK(
      input.size(1) >= 1,
      kOp,
      where(),
      "input: got no channels in dim 1, expected at least 1.");
}

double SyncBatchNormImpl::next_average_factor() {
  if (!num_batches_tracked.defined()) {
    return 0;
  }
  num_batches_tracked.add_(1);
  return options.momentum() ? *options.momentum()
                            : 1 / data_parallel::local_part(num_batches_tracked)
                                      .item<double>();
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  check_input(input);
  const bool is_tracked = running_mean.defined();
  const bool synchronises = is_training() && channel_->group().size() > 1;
  const double factor = is_training() ? next_average_factor() : 0;
  if (!synchronises) {
    return torch::nn::functional::detail::batch_norm(
        input,
        running_mean,
        running_var,
        weight,
        bias,
        is_training() || !is_tracked,
        factor,
        options.eps());
  }
  const auto local = whole(input);
  const auto batch = batch_statistics(local.detach(), *channel_);
  WEFT_CHECK(
      batch.count != 1,
      kOp,
      mesh::ErrorContext{channel_->group().name()},
      "expected more than 1 value per channel over all ranks, got 1. Use a "
      "larger batch.");
  if (is_tracked && batch.count > 0) {
    update_running(running_mean, running_var, batch, factor);
  }
  const auto whole_weight = whole_if_any(weight);
  const auto whole_bias = whole_if_any(bias);
  auto output = Normalize::apply(
      local, whole_weight, whole_bias, batch, channel_, options.eps());
  if (!dtensor::is_dtensor(input)) {
    return output;
  }
  const auto& spec = dtensor::spec_of(input);
  return dtensor::from_local(
      output,
      spec.mesh(),
      dtensor::Placements(spec.placements().size(), dtensor::Replicate()));
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "weft::ddp::SyncBatchNorm("
         << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ")";
}

std::vector<std::shared_ptr<SyncBatchNormGroup>> sync_batch_norm_groups(
    const torch::nn::Module& module) {
  std::vector<std::shared_ptr<SyncBatchNormGroup>> channels;
  // modules() with include_self throws unless a shared_ptr owns the module.
  const auto add = [&](const torch::nn::Module& each) {
    const auto* layer = dynamic_cast<const SyncBatchNormImpl*>(&each);
    if (layer &&
        std::find(channels.begin(), channels.end(), layer->channel()) ==
            channels.end()) {
      channels.push_back(layer->channel());
    }
  };
  add(module);
  for (const auto& each : module.modules(/*include_self=*/false)) {
    add(*each);
  }
  return channels;
}

} // namespace weft::ddp
