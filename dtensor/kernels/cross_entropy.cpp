// Cross entropy of logits with any placements. Rows may stay sharded, and so
// may the classes (loss parallel), whose logits are never gathered.

#include <optional>

#include <torch/torch.h>

#include "dtensor/kernels/cross_entropy.h"
#include "dtensor/kernels/gpu_row_loss.h"
#include "dtensor/kernels/kernels.h"
#include "dtensor/kernels/row_loss.h"
#include "dtensor/kernels/row_statistics.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor {
namespace kernels {
namespace {

constexpr const char* kLossName = "cross_entropy";

void check_targets(
    const at::Tensor& target,
    int64_t classes,
    int64_t ignore_index) {
  if (target.device().is_cpu() && !target.is_floating_point()) {
    const auto wrong = target.lt(0)
                           .logical_or_(target.ge(classes))
                           .logical_and_(target.ne(ignore_index));
    TORCH_CHECK_INDEX(
        !wrong.any().item<bool>(),
        "[cross_entropy] target < number of classes: ",
        target.masked_select(wrong)[0].item<int64_t>(),
        " vs ",
        classes,
        ".");
  }
}

int64_t class_dim(const at::Tensor& logits) {
  return logits.dim() == 1 ? 0 : 1;
}

std::vector<int64_t> sizes_of_rows(const at::Tensor& logits) {
  auto sizes = logits.sizes().vec();
  sizes.erase(sizes.begin() + class_dim(logits));
  return sizes;
}

void check_loss(
    const at::Tensor& logits,
    const at::Tensor& target,
    const CrossEntropyOptions& options) {
  TORCH_CHECK_VALUE(
      logits.dim() >= 1 &&
          target.sizes() == (target.is_floating_point()
                                 ? logits.sizes()
                                 : at::IntArrayRef(sizes_of_rows(logits))),
      "[cross_entropy] target of the logits' sizes (probabilities) or without "
      "the class dim (classes): logits ",
      logits.sizes(),
      " vs target ",
      target.sizes(),
      " of ",
      target.scalar_type(),
      ".");
  const auto& weight = options.weight;
  TORCH_CHECK_VALUE(
      !weight.defined() || (weight.dim() == 1 &&
                            weight.size(0) == logits.size(class_dim(logits))),
      "[cross_entropy] one weight a class: weight ",
      weight.defined() ? weight.sizes() : at::IntArrayRef(),
      " vs logits ",
      logits.sizes(),
      ".");
  // All ranks check this, because a rank without rows does not call libtorch's
  // op, which checks it, too.
  TORCH_CHECK_NOT_IMPLEMENTED(
      !weight.defined() || !weight.requires_grad() ||
          target.is_floating_point() || !at::GradMode::is_enabled(),
      "[cross_entropy] class weights have no gradient where the target is "
      "classes. Pass weight.detach(), or probabilities.");
  TORCH_CHECK_VALUE(
      options.label_smoothing >= 0 && options.label_smoothing <= 1,
      "[cross_entropy] 0 <= label_smoothing <= 1: ",
      options.label_smoothing,
      ".");
}

struct LossInputs {
  at::Tensor logits, target, weight;
  ClassPart part;
  /// True if libtorch's op cannot compute the loss, because the classes are
  /// sharded or z_loss is set.
  bool needs_own = false;
  double z_loss = 0;
  int64_t reduction = at::Reduction::Mean;

  /// Returns true if libtorch's op computes the loss with its reduction. On a
  /// GPU it does not, because row_losses_on_gpu() has a kernel for the rows,
  /// unless there are none.
  bool is_one_call() const {
    return !needs_own && (!logits.is_cuda() || logits.numel() == 0);
  }
};

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

at::Tensor call_libtorch(const LossInputs& inputs, int64_t reduction) {
  const auto& logits = inputs.logits;
  return at::cross_entropy_loss(
      precise(logits),
      inputs.target,
      if_defined(inputs.weight),
      reduction,
      inputs.part.ignore_index,
      inputs.part.label_smoothing);
}

// Returns the losses of a rank without logits, because libtorch's op rejects
// some of these tensors. The graph has the same inputs as with logits, so that
// backward sends the same gradients.
at::Tensor loss_without_rows(const LossInputs& inputs) {
  const auto& logits = inputs.logits;
  auto loss = precise(logits).sum(inputs.part.dim);
  if (inputs.target.is_floating_point()) {
    loss = loss + inputs.target.sum(inputs.part.dim);
    if (inputs.weight.defined()) {
      loss = loss + inputs.weight.sum();
    }
  }
  return loss;
}

// Returns the weight of each row in a mean.
at::Tensor counts_of(const LossInputs& inputs, const at::Tensor& loss) {
  if (inputs.target.is_floating_point()) {
    return at::ones_like(loss);
  }
  const auto counted = inputs.target.ne(inputs.part.ignore_index);
  return inputs.weight.defined()
             ? inputs.weight.take(inputs.target.mul(counted)).mul(counted)
             : counted;
}

RowLosses losses_of_rows(const LossInputs& inputs) {
  if (auto fused = row_losses_on_gpu(
          inputs.logits, inputs.target, inputs.weight, inputs.part)) {
    return *std::move(fused);
  }
  if (inputs.needs_own) {
    check_targets(inputs.target, inputs.part.classes, inputs.part.ignore_index);
    return row_losses(inputs.logits, inputs.target, inputs.weight, inputs.part);
  }
  const auto loss = inputs.logits.numel() == 0
                        ? loss_without_rows(inputs)
                        : call_libtorch(inputs, at::Reduction::None);
  return {.loss = loss, .log_sum = {}, .weight = {}};
}

// Returns the loss of each row, or with a reduction the sum of the losses. For
// a mean, the weights by which it is divided follow. If the classes have
// weights, which do not apply to the z-loss, the z-loss and its row counts
// follow as two more terms.
std::vector<at::Tensor> terms(const LossInputs& inputs) {
  auto rows = losses_of_rows(inputs);
  const bool is_mean = inputs.reduction == at::Reduction::Mean;
  std::vector<at::Tensor> numbers{rows.loss};
  if (is_mean) {
    const auto counts =
        rows.weight.defined() ? rows.weight : counts_of(inputs, rows.loss);
    numbers.push_back(counts.to(rows.loss.scalar_type()));
  }
  if (inputs.z_loss != 0) {
    auto z = rows.log_sum.square() * inputs.z_loss;
    at::Tensor counted;
    if (!inputs.target.is_floating_point()) {
      counted = inputs.target.ne(inputs.part.ignore_index);
      z = z.masked_fill(counted.logical_not(), 0);
    }
    if (is_mean && inputs.weight.defined() && counted.defined()) {
      numbers.push_back(z);
      numbers.push_back(counted.to(z.scalar_type()));
    } else {
      numbers[0] = rows.loss + z;
    }
  }
  if (inputs.reduction != at::Reduction::None) {
    for (auto& each : numbers) {
      each = each.sum();
    }
  }
  return numbers;
}

at::Tensor quotient(const std::vector<at::Tensor>& sums) {
  const auto mean = sums[0] / sums[1];
  return sums.size() == 4 ? mean + sums[2] / sums[3] : mean;
}

struct LossLayout {
  DTensorSpec logits;
  DTensorSpec rows;
  DTensorSpec weight;
  std::vector<mesh::Communicator*> groups;
};

LossLayout layout_of(const at::Tensor& logits) {
  const auto spec = spec_of(logits).without_partial();
  const int64_t classes = class_dim(logits);
  LossLayout layout{.logits = spec, .rows = spec, .weight = spec, .groups = {}};
  Placements rows;
  Placements weight;
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    const auto& cut = spec.placement(i);
    const int64_t dim = cut.is_shard() ? cut.tensor_dim() : -1;
    rows.push_back(
        dim < 0 || dim == classes
            ? Replicate()
            : cut.with_tensor_dim(dim > classes ? dim - 1 : dim));
    weight.push_back(dim == classes ? cut.with_tensor_dim(0) : Replicate());
    if (dim == classes && spec.mesh().size(i) > 1) {
      layout.groups.push_back(&spec.mesh().group(i));
    }
  }
  layout.rows = spec.with(rows);
  layout.weight = spec.with(weight);
  return layout;
}

LossInputs enter_loss(
    const at::Tensor& x,
    const at::Tensor& target,
    const CrossEntropyOptions& options,
    const LossLayout& layout) {
  const auto enter = [](const at::Tensor& tensor, const DTensorSpec& spec) {
    return to_local_impl(
        place(tensor, spec), spec, spec.placements(), kLossName);
  };
  LossInputs inputs;
  inputs.target =
      enter(target, target.is_floating_point() ? layout.logits : layout.rows);
  inputs.logits = enter(x, layout.logits);
  if (options.weight.defined()) {
    // A rank computes the gradient of the class weights from its own rows only.
    // Therefore it is Partial where the rows are sharded.
    Placements grad;
    for (int64_t i = 0; i < layout.rows.mesh_ndim(); ++i) {
      grad.push_back(
          layout.rows.placement(i).is_shard() ? Partial()
                                              : layout.weight.placement(i));
    }
    inputs.weight = to_local_impl(
        place(options.weight, layout.weight), layout.weight, grad, kLossName);
  }
  inputs.part = {
      .groups = layout.groups,
      .ranges = {{0, x.size(class_dim(x))}},
      .classes = x.size(class_dim(x)),
      .dim = class_dim(x),
      .ignore_index = options.ignore_index,
      .label_smoothing = options.label_smoothing};
  if (!layout.groups.empty()) {
    inputs.part.ranges = local_ranges(layout.logits, x.sizes())[class_dim(x)];
  }
  inputs.needs_own = !layout.groups.empty() || options.z_loss != 0;
  inputs.z_loss = options.z_loss;
  inputs.reduction = options.reduction;
  return inputs;
}

// Returns the mean of a loss with sharded rows. One message over each mesh dim
// adds up all of its terms.
at::Tensor mean_over_ranks(
    const std::vector<at::Tensor>& sums,
    const DTensorSpec& pending) {
  const auto whole = pending.without_partial();
  const auto count = static_cast<int64_t>(sums.size());
  const auto all =
      from_local_impl(at::stack(sums), pending, {count}, {1}, kLossName);
  const auto added =
      to_local_impl(all, whole, whole.placements(), kLossName, {.asked = true});
  return from_local_impl(quotient(added.unbind()), whole, {}, {}, kLossName);
}

at::Tensor distributed_loss(
    const at::Tensor& x,
    const at::Tensor& target,
    const CrossEntropyOptions& options) {
  const auto layout = layout_of(x);
  const auto inputs = enter_loss(x, target, options, layout);
  const auto& rows = layout.rows;
  if (options.reduction == at::Reduction::None) {
    const auto sizes = sizes_of_rows(x);
    return from_local_impl(
        terms(inputs)[0], rows, sizes, row_major_strides(sizes), kLossName);
  }
  if (!rows.has_shard() && inputs.is_one_call() && x.numel() != 0) {
    return from_local_impl(
        call_libtorch(inputs, options.reduction), rows, {}, {}, kLossName);
  }
  Placements placements;
  for (const auto& placement : rows.placements()) {
    placements.push_back(placement.is_shard() ? Partial() : Replicate());
  }
  const auto spec = rows.with(placements);
  const auto sums = terms(inputs);
  if (options.reduction == at::Reduction::Mean && spec.has_partial()) {
    return mean_over_ranks(sums, spec);
  }
  const auto local =
      options.reduction == at::Reduction::Mean ? quotient(sums) : sums[0];
  return from_local_impl(local, spec, {}, {}, kLossName);
}

at::Tensor plain_loss(
    const at::Tensor& logits,
    const at::Tensor& target,
    const CrossEntropyOptions& options) {
  const LossInputs inputs{
      .logits = logits,
      .target = target,
      .weight = options.weight,
      .part =
          {.ranges = {{0, logits.size(class_dim(logits))}},
           .classes = logits.size(class_dim(logits)),
           .dim = class_dim(logits),
           .ignore_index = options.ignore_index,
           .label_smoothing = options.label_smoothing},
      .needs_own = options.z_loss != 0,
      .z_loss = options.z_loss,
      .reduction = options.reduction};
  if (inputs.is_one_call()) {
    return call_libtorch(inputs, options.reduction);
  }
  const auto numbers = terms(inputs);
  return options.reduction == at::Reduction::Mean ? quotient(numbers)
                                                  : numbers[0];
}

} // namespace

at::Tensor cross_entropy_loss(
    const at::Tensor& logits,
    const at::Tensor& target,
    const std::optional<at::Tensor>& weight,
    int64_t reduction,
    c10::SymInt ignore_index,
    double label_smoothing) {
  return cross_entropy(
      logits,
      target,
      {.weight = weight.value_or(at::Tensor()),
       .reduction = reduction,
       .ignore_index = ignore_index.expect_int(),
       .label_smoothing = label_smoothing});
}

} // namespace kernels

at::Tensor cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& target,
    const CrossEntropyOptions& options) {
  kernels::check_loss(logits, target, options);
  const auto common = kernels::common_spec({&logits, &target, &options.weight});
  if (!is_dtensor(logits) && common.mesh_ndim() == 0) {
    return kernels::plain_loss(logits, target, options);
  }
  kernels::check_operands(
      "cross_entropy", common, {logits, target, options.weight});
  return kernels::distributed_loss(
      kernels::place(logits, common), target, options);
}

} // namespace weft::dtensor
