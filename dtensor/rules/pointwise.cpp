// Rules of ops that compute each output element from the input elements at the
// same position.

#include "dtensor/rules/pointwise.h"
#include "dtensor/rules/partial.h"

#include <algorithm>
#include <cmath>

#include <c10/core/ScalarTypeToTypeMeta.h>

namespace weft::dtensor {
namespace {

// ---- copies -----------------------------------------------------------------

// Returns the reductions that commute with a conversion of dtypes. A conversion
// to integers rounds each term of a Partial sum instead of the sum. A narrower
// integer type can wrap, which changes the order.
PartialPassThroughs
converts(size_t argument, at::ScalarType from, at::ScalarType to) {
  if (from == to) {
    return moves({argument});
  }
  if (to == at::kBool || from == at::kBool) {
    return {};
  }
  if (c10::isComplexType(from) || c10::isComplexType(to)) {
    return linear({argument}) + (c10::isComplexType(to)
                                     ? multiplicative({argument})
                                     : PartialPassThroughs());
  }
  if (!c10::isIntegralType(to, /*includeBool=*/false)) {
    return moves({argument});
  }
  if (!c10::isIntegralType(from, /*includeBool=*/false)) {
    return monotone_increasing(argument);
  }
  const bool widens =
      c10::elementSize(to) > c10::elementSize(from) && c10::isSignedType(to);
  return linear({argument}) + multiplicative({argument}) +
         (widens ? monotone_increasing(argument) : PartialPassThroughs());
}

PartialPassThroughs to_copy_carries(const OpCall& call) {
  const auto from = call.tensors[0].tensor.scalar_type();
  if (!call.outs.empty()) {
    return converts(0, from, call.outs[0].tensor.scalar_type());
  }
  const auto& dtype = call.arguments[1];
  return converts(0, from, dtype.isInt() ? dtype.toScalarType() : from);
}

// copy does not read the destination's values, so the destination may be
// replicated while the source is Partial. In place, the destination has the
// placement of the result.
PartialPassThroughs copy_carries(const OpCall& call) {
  auto carries = converts(
      1,
      call.tensors.back().tensor.scalar_type(),
      call.tensors[0].tensor.scalar_type());
  const auto source_only = carries;
  for (auto& carry : carries) {
    if (carry.from == carry.to) {
      carry.arguments = {0, 1};
    }
  }
  return source_only + carries;
}

Rule copies(const PartialPassThroughFn& carries) {
  return {
      .strategies = [carries](
                        const OpCall& call, const StrategyContext& context) {
        auto strategies = shard_any_dim(call, context);
        append_carries(strategies, call, carries(call));
        return strategies;
      }};
}

// The result is zero whatever the input holds, and every reduction preserves
// zeros.
std::vector<Strategy> zero_strategies(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = shard_any_dim(call, context);
  for (const auto op : rules::every_reduction()) {
    strategies.push_back({{Partial(op)}, {Partial(op)}});
  }
  return strategies;
}

// ---- arithmetic -------------------------------------------------------------

// The op is a + factor * b.
PartialPassThroughs sum_carries(double factor) {
  return linear({0, 1}) + affine({0}) + affine({1}) + monotone_increasing(0) +
         (factor >= 0 ? monotone_increasing(1) : monotone_decreasing(1));
}

PartialPassThroughs add_carries(const OpCall& call) {
  const auto alpha = real_number(call.arguments[2]);
  return sum_carries(alpha.value_or(1));
}

PartialPassThroughs sub_carries(const OpCall& call) {
  const auto alpha = real_number(call.arguments[2]);
  return sum_carries(-alpha.value_or(1));
}

// rsub computes b - a, so the strides of b take precedence over those of a.
std::vector<OutputMeta> broadcast_reversed(const OpCall& call) {
  OpCall reversed = call;
  std::ranges::reverse(reversed.tensors);
  return broadcast(reversed);
}

PartialPassThroughs rsub_carries(const OpCall& call) {
  const auto alpha = real_number(call.arguments[2]);
  return linear({0, 1}) + affine({0}) + affine({1}) + monotone_increasing(1) +
         (alpha.value_or(1) > 0 ? monotone_decreasing(0)
                                : monotone_increasing(0));
}

// The op is self * factor. A factor of 0 also stands for an unknown sign. An
// infinite factor turns zeros into NaNs, and terms of both signs into
// infinities whose sum is NaN.
PartialPassThroughs scale_carries(double factor) {
  if (std::isinf(factor)) {
    return {};
  }
  const auto order =
      factor > 0 ? monotone_increasing(0) : monotone_decreasing(0);
  return linear({0}) + (factor != 0 ? order : PartialPassThroughs());
}

PartialPassThroughs mul_carries(const OpCall& call) {
  return scale_carries(real_number(call.arguments[1]).value_or(0)) +
         linear({1}) + multiplicative({0, 1});
}

// The rounding of each term is not the rounding of their sum. A divisor that is
// a tensor is assumed to have no zeros, because rules do not see values.
PartialPassThroughs div_carries(const OpCall& call) {
  if (call.op.schema().argumentIndexWithName("rounding_mode").has_value()) {
    return {};
  }
  const auto divisor = real_number(call.arguments[1]);
  return scale_carries(divisor ? 1 / *divisor : 0) + multiplicative({0, 1});
}

// The op is self * log(other), or log1p(other) for xlog1py. It is linear in
// self if the logarithm is finite. With an infinite logarithm the op returns 0
// if self is 0, but terms of self that add up to 0 give infinities of both
// signs.
PartialPassThroughs times_log_carries(const OpCall& call) {
  const auto other = real_number(call.arguments[1]);
  const bool one_more = call.name().starts_with("aten::special_xlog1py");
  return other && *other + (one_more ? 1 : 0) > 0 ? linear({0})
                                                  : PartialPassThroughs();
}

PartialPassThroughs power_carries(const OpCall& call) {
  const auto exponent = real_number(call.arguments[1]);
  if (!call.arguments[0].isTensor() || !exponent ||
      *exponent != std::trunc(*exponent)) {
    return {};
  }
  const bool odd = std::fmod(std::abs(*exponent), 2.0) == 1.0;
  const bool wraps = c10::isIntegralType(
      call.tensors[0].tensor.scalar_type(), /*includeBool=*/true);
  return multiplicative({0}) +
         (odd && *exponent > 0 && !wraps ? monotone_increasing(0)
                                         : PartialPassThroughs()) +
         (*exponent == 1 ? linear({0}) : PartialPassThroughs());
}

PartialPassThroughs lerp_carries(const OpCall& call) {
  const double weight = real_number(call.arguments[2]).value_or(-1);
  return linear({0, 1}) + affine({0}) + affine({1}) + affine({2}) +
         (weight >= 0 && weight <= 1
              ? monotone_increasing(0) + monotone_increasing(1)
              : PartialPassThroughs());
}

// ---- choices ----------------------------------------------------------------

PartialPassThroughs masked_fill_carries(const OpCall& call) {
  const auto value = real_number(call.arguments[2]);
  return mixes({0}) + mixes({2}) + moves({0, 2}) +
         (value && *value == 0 ? linear({0}) : PartialPassThroughs());
}

// The op selects one of its values by their order.
PartialPassThroughs ordered(size_t argument) {
  return selects({argument}, ReduceOp::kMax) +
         selects({argument}, ReduceOp::kMin);
}

PartialPassThroughs maximum_carries(const OpCall&) {
  return ordered(0) + ordered(1) + selects({0, 1}, ReduceOp::kMax);
}

PartialPassThroughs minimum_carries(const OpCall&) {
  return ordered(0) + ordered(1) + selects({0, 1}, ReduceOp::kMin);
}

PartialPassThroughs clamp_carries(const OpCall&) {
  return ordered(0) + ordered(1) + ordered(2) +
         selects({0, 1}, ReduceOp::kMax) + selects({0, 2}, ReduceOp::kMin);
}

// fill writes the same value on every rank. An average, min or max preserves
// it; a sum preserves only 0.
PartialPassThroughs fill_carries(const OpCall& call) {
  const auto value = real_number(call.arguments[1]);
  return mixes({0}) +
         (value && *value == 0 ? linear({0}) : PartialPassThroughs());
}

// ---- activations ------------------------------------------------------------

bool none_negative(const OpCall& call, size_t first, size_t last) {
  for (size_t i = first; i <= last; ++i) {
    if (real_number(call.arguments[i]).value_or(-1) < 0) {
      return false;
    }
  }
  return true;
}

PartialPassThroughs elu_carries(const OpCall& call) {
  return none_negative(call, 1, 3) ? monotone_increasing(0)
                                   : PartialPassThroughs();
}

PartialPassThroughs leaky_carries(const OpCall& call) {
  return none_negative(call, 1, 1) ? monotone_increasing(0)
                                   : PartialPassThroughs();
}

PartialPassThroughs threshold_carries(const OpCall& call) {
  const auto threshold = real_number(call.arguments[1]);
  const auto value = real_number(call.arguments[2]);
  return threshold && value && *value <= *threshold ? monotone_increasing(0)
                                                    : PartialPassThroughs();
}

// ---- tables -----------------------------------------------------------------

// These ops commute with no reduction.
void add_plain_rules(RuleTable& table) {
  table.add(
      "__ilshift__ __irshift__ __lshift__ __rshift__ _add_relu "
      "_dirichlet_grad "
      "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams "
      "_standard_gamma_grad acos acosh angle asin atan2 atanh bitwise_and "
      "bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift "
      "bitwise_xor complex copysign cos cosh digamma eq erfinv "
      "fake_quantize_per_tensor_affine_cachemask floor_divide fmod frac frexp "
      "gcd ge gelu gt hardswish heaviside hypot i0 igamma igammac isinf isnan "
      "isneginf isposinf lcm le lgamma log log10 log1p log2 logical_and "
      "logical_not logical_or logical_xor logit lt mish mvlgamma nan_to_num "
      "ne nextafter polar polygamma remainder rsqrt signbit silu sin sinc "
      "softplus sqrt tan",
      elementwise());
  table.add(
      "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 "
      "special_bessel_y1 special_chebyshev_polynomial_t "
      "special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
      "special_chebyshev_polynomial_w special_entr "
      "special_hermite_polynomial_h special_hermite_polynomial_he special_i0e "
      "special_i1e special_laguerre_polynomial_l "
      "special_legendre_polynomial_p special_modified_bessel_i0 "
      "special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri "
      "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
      "special_shifted_chebyshev_polynomial_t "
      "special_shifted_chebyshev_polynomial_u "
      "special_shifted_chebyshev_polynomial_v "
      "special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 "
      "special_zeta",
      elementwise());
}

// These ops are monotone on all real numbers. Ops that are monotone on a part
// of them (log, sqrt) are not here, because terms of a Partial max may be
// outside of it. nan_to_num is not here, because the reduction decides which
// rank's NaN it keeps.
void add_monotone_rules(RuleTable& table) {
  table.add(
      "asinh atan ceil erf exp exp2 expm1 floor hardshrink hardsigmoid "
      "hardtanh relu round sgn sigmoid sign sinh "
      "softshrink special_i1 special_log_ndtr special_modified_bessel_i1 tanh "
      "trunc",
      elementwise(monotone_increasing(0)));
  table.add("erfc special_erfcx", elementwise(monotone_decreasing(0)));
  table.add("elu", elementwise(elu_carries));
  table.add("celu leaky_relu", elementwise(leaky_carries));
  table.add("threshold", elementwise(threshold_carries));
  table.add(
      "logaddexp logaddexp2",
      elementwise(monotone_increasing(0) + monotone_increasing(1)));
  table.add("clamp", elementwise(clamp_carries));
  table.add("maximum fmax clamp_min", elementwise(maximum_carries));
  table.add("minimum fmin clamp_max", elementwise(minimum_carries));
}

void add_arithmetic_rules(RuleTable& table) {
  table.add("neg", elementwise(linear({0}) + monotone_decreasing(0)));
  table.add(
      "deg2rad rad2deg", elementwise(linear({0}) + monotone_increasing(0)));
  table.add(
      "conj_physical _conj_physical",
      elementwise(linear({0}) + multiplicative({0})));
  table.add("abs reciprocal", elementwise(multiplicative({0})));
  table.add("add", elementwise(add_carries));
  table.add("sub", elementwise(sub_carries));
  table.add(
      "rsub",
      {.strategies = elementwise(rsub_carries).strategies,
       .infer = broadcast_reversed});
  table.add("mul", elementwise(mul_carries));
  table.add("div", elementwise(div_carries));
  table.add("pow", elementwise(power_carries));
  table.add("ldexp", elementwise(linear({0}) + monotone_increasing(0)));
  table.add("xlogy special_xlog1py", elementwise(times_log_carries));
  table.add("lerp", elementwise(lerp_carries));
  table.add(
      "addcmul",
      elementwise(
          linear({0, 1}) + linear({0, 2}) + affine({0}) + affine({1}) +
          affine({2}) + monotone_increasing(0)));
  table.add(
      "addcdiv",
      elementwise(
          linear({0, 1}) + affine({0}) + affine({1}) + monotone_increasing(0)));
}

void add_choice_rules(RuleTable& table) {
  table.add("zero", {.strategies = zero_strategies, .infer = broadcast});
  table.add("fill", elementwise(fill_carries));
  table.add("masked_fill", elementwise(masked_fill_carries));
  table.add("where", elementwise(moves({1, 2}) + mixes({1}) + mixes({2})));
  table.add("clone lift_fresh_copy", copies([](const OpCall&) {
              return moves({0});
            }));
  table.add("_to_copy", copies(to_copy_carries));
  table.add("copy", copies(copy_carries));
  // Every rank updates the same three numbers, so all of them are replicated.
  table.add("_amp_update_scale", {.infer = broadcast});
}

} // namespace

void add_pointwise_rules(RuleTable& table) {
  add_plain_rules(table);
  add_monotone_rules(table);
  add_arithmetic_rules(table);
  add_choice_rules(table);
  add_pointwise_backward_rules(table);
  add_loss_rules(table);
}

} // namespace weft::dtensor
