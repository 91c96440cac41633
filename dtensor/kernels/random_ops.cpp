// Ops that fill a tensor with random numbers: see Note [Random ops].

#include "dtensor/kernels/random_ops.h"

#include <cmath>
#include <limits>

#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/random/random_sampling.h"
#include "dtensor/redistribute/redistribute.h"
#include "dtensor/tensor/copied_view.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor::kernels {
namespace {

using Kind = Draw::Kind;
using Stack = torch::jit::Stack;

class DrawArguments {
 public:
  DrawArguments(const c10::OperatorHandle& op, const Stack& stack)
      : op_(op),
        values_(torch::jit::last(stack, op.schema().arguments().size())) {}

  std::string_view op() const { return op_.schema().name(); }
  c10::ArrayRef<c10::IValue> values() const { return values_; }
  const at::Tensor& self() const { return values_[0].toTensor(); }

  c10::IValue find(const char* name) const {
    const auto index = op_.schema().argumentIndexWithName(name);
    return index ? values_[*index] : c10::IValue();
  }
  double number(const char* name, double otherwise = 0) const {
    const auto value = find(name);
    return value.isNone() ? otherwise : value.toScalar().toDouble();
  }
  std::optional<int64_t> integer(const char* name) const {
    const auto value = find(name);
    return value.isNone()     ? std::nullopt
           : value.isTensor() ? std::optional(value.toTensor().item<int64_t>())
                              : std::optional(value.toInt());
  }

 private:
  const c10::OperatorHandle& op_;
  c10::ArrayRef<c10::IValue> values_;
};

// Returns e.g. "uniform" for aten::uniform_.
std::string_view base_name(std::string_view op) {
  op.remove_prefix(std::string_view("aten::").size());
  if (op.ends_with('_')) {
    op.remove_suffix(1);
  }
  return op;
}

// Returns the largest integer that random_() without bounds draws.
uint64_t largest_integer(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return uint64_t{1} << 53;
    case at::kFloat:
      return uint64_t{1} << 24;
    case at::kHalf:
      return uint64_t{1} << 11;
    case at::kBFloat16:
      return uint64_t{1} << 8;
    case at::kBool:
      return 1;
    case at::kByte:
      return std::numeric_limits<uint8_t>::max();
    case at::kChar:
      return std::numeric_limits<int8_t>::max();
    case at::kShort:
      return std::numeric_limits<int16_t>::max();
    case at::kInt:
      return std::numeric_limits<int32_t>::max();
    default:
      return std::numeric_limits<int64_t>::max();
  }
}

void check(bool holds, std::string_view op, const char* what, double value) {
  TORCH_CHECK_VALUE(holds, "[", op, "] ", what, ": ", value, ".");
}

Draw read_integers(const DrawArguments& args, at::ScalarType dtype) {
  const bool is_randint = base_name(args.op()) == "randint_like";
  const auto low = args.integer(is_randint ? "low" : "from");
  const auto high = args.integer(is_randint ? "high" : "to");
  Draw draw{Kind::kIntegers};
  draw.from = low.value_or(0);
  const auto from = static_cast<uint64_t>(draw.from);
  if (high) {
    TORCH_CHECK_VALUE(
        draw.from < *high,
        "[",
        args.op(),
        "] from < to: ",
        draw.from,
        " vs ",
        *high,
        ".");
    draw.range = static_cast<uint64_t>(*high) - from;
  } else {
    // The range includes the largest integer. 2^64 wraps to 0, which Draw
    // defines as 2^64.
    draw.range = largest_integer(dtype) - from + 1;
  }
  return draw;
}

Draw read_draw(const DrawArguments& args, at::ScalarType dtype) {
  const auto name = base_name(args.op());
  const auto op = args.op();
  if (name == "uniform" || name == "rand_like") {
    const Draw draw{
        Kind::kUniform, args.number("from", 0), args.number("to", 1)};
    check(draw.a <= draw.b, op, "from <= to, which is", draw.b);
    return draw;
  }
  if (name.starts_with("normal") || name == "randn_like") {
    const Draw draw{
        Kind::kNormal, args.number("mean", 0), args.number("std", 1)};
    check(draw.b >= 0, op, "std >= 0", draw.b);
    return draw;
  }
  if (name == "log_normal") {
    const Draw draw{Kind::kLogNormal, args.number("mean"), args.number("std")};
    check(draw.b > 0, op, "std > 0", draw.b);
    return draw;
  }
  if (name == "bernoulli" || name == "geometric") {
    const bool geometric = name == "geometric";
    const double p = args.number("p");
    check(
        geometric ? p > 0 && p < 1 : p >= 0 && p <= 1,
        op,
        geometric ? "0 < p < 1" : "0 <= p <= 1",
        p);
    return {geometric ? Kind::kGeometric : Kind::kBernoulli, p};
  }
  if (name == "exponential") {
    const double lambda = args.number("lambd");
    check(lambda > 0, op, "lambda > 0", lambda);
    return {Kind::kExponential, lambda};
  }
  if (name == "cauchy") {
    const Draw draw{Kind::kCauchy, args.number("median"), args.number("sigma")};
    check(draw.b > 0, op, "sigma > 0", draw.b);
    return draw;
  }
  return read_integers(args, dtype);
}

bool fill_knows(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
         dtype == at::kBFloat16;
}

// Writes the numbers of fill_uniform() or fill_normal(), also if the positions
// of this rank are not a box or the dtype is not one of theirs.
void fill_numbers(
    const at::Tensor& local,
    const RandomPart& part,
    const Draw& draw) {
  const bool normal = draw.kind == Kind::kNormal;
  if (!part.is_box() || !fill_knows(local.scalar_type())) {
    const auto indices = part.indices();
    local.copy_(
        normal ? sample_filled_normal(indices, part.key, draw.a, draw.b)
               : sample_filled_uniform(indices, part.key, draw.a, draw.b));
    return;
  }
  const auto dense =
      local.is_contiguous() ? local : at::empty(local.sizes(), local.options());
  (normal ? fill_normal : fill_uniform)(
      dense, part.box(), part.global_sizes, part.key, draw.a, draw.b);
  if (!dense.is_same(local)) {
    local.copy_(dense);
  }
}

// Writes the numbers of fill_integers(), also if it does not support the
// tensor.
void fill_whole_numbers(
    const at::Tensor& local,
    const RandomPart& part,
    const Draw& draw) {
  const bool direct = part.is_box() && local.is_cpu() &&
                      local.is_contiguous() &&
                      !at::isComplexType(local.scalar_type()) &&
                      draw.range != 0 && draw.range <= uint64_t{1} << 32;
  if (direct) {
    fill_integers(
        local, part.box(), part.global_sizes, part.key, draw.from, draw.range);
  } else {
    local.copy_(
        sample_integers(part.indices(), part.key, draw.from, draw.range));
  }
}

at::Tensor sample(const RandomPart& part, const Draw& draw) {
  const auto indices = part.indices();
  switch (draw.kind) {
    case Kind::kExponential:
      return sample_exponential(indices, part.key, draw.a);
    case Kind::kGeometric:
      return sample_geometric(indices, part.key, draw.a);
    case Kind::kCauchy:
      return sample_cauchy(indices, part.key, draw.a, draw.b);
    default:
      return sample_log_normal(indices, part.key, draw.a, draw.b);
  }
}

// Converts values that all ranks of a Partial drew alike to terms. For a sum or
// a product, all ranks of the mesh dim but the first one get 0 or 1. For other
// reductions equal terms are correct.
void keep_own_term(const at::Tensor& local, const DTensorSpec& spec) {
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    const auto& placement = spec.placement(i);
    if (!placement.is_partial() || spec.mesh().coordinate(i) == 0) {
      continue;
    }
    if (placement.is_partial(ReduceOp::kSum)) {
      local.zero_();
    } else if (placement.is_partial(ReduceOp::kProduct)) {
      local.fill_(1);
    }
  }
}

bool is_inplace(const c10::OperatorHandle& op) {
  return op.schema().name().ends_with('_');
}

// Fills a tensor that has no mesh, or whose initialization is deferred.
void random_fill_unplaced(
    const c10::OperatorHandle& op,
    const DrawArguments& args,
    Stack* stack) {
  const auto self = args.self();
  auto* impl = dtensor_impl(self);
  const bool is_like = base_name(args.op()).ends_with("_like");
  if (impl->deferred && !is_like) {
    OpCall call{op, args.values(), {}, {}};
    call.tensors.push_back({0, -1, self, impl->spec()});
    if (run_deferred(call, *stack)) {
      return;
    }
  }
  (*stack)[stack->size() - op.schema().arguments().size()] =
      is_like ? at::empty(self.sizes(), self.options()) : impl->local();
  const c10::impl::ExcludeDispatchKeyGuard plain(
      c10::DispatchKey::DeferredInit);
  op.callBoxed(stack);
  if (is_inplace(op)) {
    stack->back() = self;
  } else if (!is_dtensor(stack->back().toTensor())) {
    const auto result = stack->back().toTensor();
    stack->back() =
        make_dtensor(result, DTensorSpec(), result.sizes(), result.strides());
  }
}

// Handles rand_like and randn_like in a DeferredInit scope, where they are
// factories. Returns false for other calls.
bool deferred_like(const DrawArguments& args, Stack* stack, size_t arguments) {
  const auto name = base_name(args.op());
  const auto self = args.self();
  if (dtensor_impl(self)->spec().mesh_ndim() != 0 ||
      (name != "rand_like" && name != "randn_like")) {
    return false;
  }
  const auto dtype = args.find("dtype");
  auto made = at::empty(
      self.sizes(),
      self.options().dtype(
          dtype.isNone() ? self.scalar_type() : dtype.toScalarType()));
  if (!is_deferred(made)) {
    return false;
  }
  made = name == "rand_like" ? made.uniform_() : made.normal_();
  torch::jit::drop(*stack, arguments);
  stack->emplace_back(std::move(made));
  return true;
}

at::Tensor new_random(const DrawArguments& args) {
  const auto& self = args.self();
  const auto dtype = args.find("dtype");
  const auto options = self.options().dtype(
      dtype.isNone() ? self.scalar_type() : dtype.toScalarType());
  const auto format = args.find("memory_format");
  const bool row_major = !format.isNone() && format.toMemoryFormat() ==
                                                 at::MemoryFormat::Contiguous;
  return draw_dtensor(
      spec_of(self),
      self.sizes(),
      row_major ? row_major_strides(self.sizes())
                : dense_strides(self.sizes(), self.strides()),
      options,
      read_draw(args, options.dtype().toScalarType()));
}

} // namespace

void fill_part(
    const at::Tensor& local,
    const RandomPart& part,
    const Draw& draw) {
  if (local.is_meta()) {
    return; // A dry run has no values.
  }
  switch (draw.kind) {
    case Kind::kUniform:
    case Kind::kNormal:
      fill_numbers(local, part, draw);
      break;
    case Kind::kBernoulli: {
      const auto numbers =
          at::empty(local.sizes(), local.options().dtype(at::kFloat));
      fill_numbers(numbers, part, {Kind::kUniform, 0, 1});
      local.copy_(numbers.lt(draw.a));
      break;
    }
    case Kind::kIntegers:
      fill_whole_numbers(local, part, draw);
      break;
    default:
      local.copy_(sample(part, draw));
  }
}

at::Tensor draw_dtensor(
    const DTensorSpec& spec,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides,
    const at::TensorOptions& options,
    const Draw& draw) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto whole = spec.without_partial();
  const auto part = next_random_part(whole, sizes);
  const auto local = at::empty_strided(
      part.local_sizes, dense_strides(part.local_sizes, strides), options);
  fill_part(local, part, draw);
  return make_dtensor(local, whole, sizes, strides);
}

void write_value(const at::Tensor& self, const at::Tensor& value) {
  auto* impl = dtensor_impl(self);
  refresh(value);
  refresh(self);
  check_write(self, "random");
  impl->local().copy_(redistribute_local(
      dtensor_impl(value)->local(),
      value.sizes(),
      spec_of(value),
      impl->spec(),
      "random"));
  note_write(self, "random");
}

void check_no_generator(
    std::string_view op,
    const std::optional<at::Generator>& generator) {
  TORCH_CHECK_VALUE(
      !generator || !generator->defined(),
      "[",
      op,
      "] generators are not supported: a DTensor's random numbers come from "
      "its mesh, so that they do not depend on its sharding. Leave the "
      "generator out and call weft::dtensor::manual_seed(mesh, seed).");
}

void random_fill(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const DrawArguments args(op, *stack);
  const auto self = args.self();
  const size_t arguments = op.schema().arguments().size();
  if (deferred_like(args, stack, arguments)) {
    return;
  }
  auto* impl = dtensor_impl(self);
  if (impl->spec().mesh_ndim() == 0) {
    random_fill_unplaced(op, args, stack);
    return;
  }
  const auto generator = args.find("generator");
  check_no_generator(
      args.op(),
      generator.isNone() ? std::nullopt
                         : std::optional(generator.toGenerator()));
  at::Tensor result = self;
  if (!is_inplace(op)) {
    result = new_random(args);
  } else if (impl->deferred) {
    random_fill_unplaced(op, args, stack);
    return;
  } else {
    refresh(self);
    check_write(self, args.op());
    const auto draw = read_draw(args, self.scalar_type());
    fill_part(
        impl->local(), next_random_part(impl->spec(), self.sizes()), draw);
    keep_own_term(impl->local(), impl->spec());
    note_write(self, args.op());
  }
  torch::jit::drop(*stack, arguments);
  stack->emplace_back(std::move(result));
}

} // namespace weft::dtensor::kernels
