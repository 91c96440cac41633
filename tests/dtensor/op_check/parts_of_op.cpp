#include "tests/dtensor/op_check/parts_of_op.h"

#include <algorithm>
#include <limits>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "tests/dtensor/parts.h"

namespace weft::dtensor::check {
namespace {

at::Tensor reduce(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return at::minimum(a, b);
    case ReduceOp::kMax:
      return at::maximum(a, b);
    case ReduceOp::kProduct:
      return a * b;
    default:
      return a + b;
  }
}

at::Tensor join_reduction(const std::vector<at::Tensor>& parts, ReduceOp op) {
  const bool flags = parts[0].scalar_type() == at::kBool;
  at::Tensor whole = flags ? parts[0].to(at::kLong) : parts[0];
  for (size_t r = 1; r < parts.size(); ++r) {
    TORCH_CHECK(
        parts[r].sizes() == whole.sizes(),
        "terms of a sum have sizes ",
        parts[r].sizes(),
        " and ",
        whole.sizes());
    whole = reduce(whole, parts[r], op);
  }
  if (op == ReduceOp::kAvg) {
    whole = at::div(whole, static_cast<int64_t>(parts.size()));
  }
  return whole.to(parts[0].scalar_type());
}

// Terms of flags: some rank has what all make together.
std::vector<at::Tensor>
flag_terms(const at::Tensor& whole, ReduceOp op, int64_t n) {
  const bool any = op == ReduceOp::kMax || op == ReduceOp::kSum;
  const auto mask = test::random(whole.sizes(), 1000).gt(0);
  std::vector<at::Tensor> terms(
      n, any ? at::zeros_like(whole) : at::ones_like(whole));
  terms.front() = any ? whole & mask : whole | mask;
  terms.back() = n == 1 ? whole : any ? whole & ~mask : whole | ~mask;
  return terms;
}

// Note [Exact terms]
// ~~~~~~~~~~~~~~~~~~
// Terms of a pending reduction have to reduce to the whole to the last bit, in
// the full tensor's own dtype: what is checked is then the rule, and no
// tolerance has to make room for how the terms were made. A rounding error
// would be a wrong answer of floor() or of a view as another dtype besides.
// - Sums: an element of p digits is an integer m, |m| < 2^p, of units in
//   its last place. Its terms are such numbers of the same units, drawn so that
//   all sums on the way have p digits too. A term is then at most twice the
//   element, and what ranks round in a linear op is a few units of the result's
//   last place, which tolerance_of() covers at every dtype.
//   Terms of doubles are multiples of 2^20 units but for one: numbers of few
//   digits, such as flags and counts, are then exact in any order of adding.
// - Averages: terms that add up to n times the element; only the sums have more
//   digits, which the division by n takes off again.
// - Products in narrow dtypes: signed powers of two.
// - Extrema: the last rank holds the whole.

int64_t digits_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::numeric_limits<double>::digits;
    case at::kFloat:
      return std::numeric_limits<float>::digits;
    case at::kHalf:
      return std::numeric_limits<at::Half>::digits;
    default:
      return std::numeric_limits<at::BFloat16>::digits;
  }
}

// Uniform integers from `lower` to `upper`.
at::Tensor
between(const at::Tensor& lower, const at::Tensor& upper, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto share = at::rand(lower.sizes(), generator, at::kDouble);
  const auto offset = (share * (upper - lower + 1)).floor().to(at::kLong);
  return at::minimum(lower + offset, upper);
}

// Whole numbers of at most `limit` that add up to `count`, or to n times it.
std::vector<at::Tensor>
split_counts(const at::Tensor& count, int64_t limit, ReduceOp op, int64_t n) {
  std::vector<at::Tensor> terms;
  const bool averages = op == ReduceOp::kAvg;
  auto rest = averages ? count * n : count;
  auto sum = at::zeros_like(count);
  const int64_t grain = limit >> 32 > 0 ? 1 << 20 : 1;
  // Where rounding to the grain may lead to.
  const int64_t most = limit - (grain > 1 ? grain : 0);
  for (int64_t r = 0; r + 1 < n; ++r) {
    const int64_t others = most * (n - r - 1);
    auto lower = (rest - others).clamp_min(-most);
    auto upper = (rest + others).clamp_max(most);
    if (!averages) {
      lower = at::maximum(lower, -most - sum);
      upper = at::minimum(upper, most - sum);
    }
    const auto term = between(lower, upper, 1000 + r);
    terms.push_back(at::div(term, grain, "trunc") * grain);
    sum = sum + terms.back();
    rest = rest - terms.back();
  }
  terms.push_back(rest);
  return terms;
}

at::Tensor laid_out_as(const at::Tensor& whole, const at::Tensor& values) {
  return at::empty_like(whole).copy_(values);
}

std::vector<at::Tensor>
exact_terms(const at::Tensor& whole, ReduceOp op, int64_t n) {
  const int64_t digits = digits_of(whole.scalar_type());
  const auto [mantissa, exponent] = at::frexp(whole.to(at::kDouble));
  const auto two = at::full({}, 2, at::kDouble);
  const auto unit = at::pow(two, exponent - digits);
  const auto count = at::ldexp(mantissa, at::full({}, digits)).to(at::kLong);
  std::vector<at::Tensor> terms;
  for (const auto& term :
       split_counts(count, (int64_t{1} << digits) - 1, op, n)) {
    terms.push_back(laid_out_as(whole, term * unit));
  }
  return terms;
}

std::vector<at::Tensor> exact_factors(const at::Tensor& whole, int64_t n) {
  std::vector<at::Tensor> factors;
  auto rest = whole;
  for (int64_t r = 0; r + 1 < n; ++r) {
    const auto noise = test::random(whole.sizes(), 1000 + r).add(0.25);
    factors.push_back(laid_out_as(whole, noise.round().exp2() * noise.sign()));
    rest = rest / factors.back();
  }
  factors.push_back(rest);
  return factors;
}

std::vector<at::Tensor>
terms_of(const at::Tensor& whole, const Placement& placement, int64_t n) {
  const auto op = placement.reduce_op();
  if (whole.scalar_type() == at::kBool) {
    return flag_terms(whole, op, n);
  }
  const bool adds = op == ReduceOp::kSum || op == ReduceOp::kAvg;
  if (whole.is_complex() && adds) {
    auto terms = exact_terms(at::view_as_real(whole), op, n);
    for (auto& term : terms) {
      term = at::view_as_complex(term);
    }
    return terms;
  }
  if (whole.is_floating_point() && adds) {
    return exact_terms(whole, op, n);
  }
  const bool narrow =
      whole.is_floating_point() && whole.scalar_type() != at::kDouble;
  return narrow && op == ReduceOp::kProduct ? exact_factors(whole, n)
                                            : test::cut(whole, placement, n);
}

// at::cat and index_copy_ know no unsigned words.
at::Tensor as_signed(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kUInt16:
      return tensor.view(at::kShort);
    case at::kUInt32:
      return tensor.view(at::kInt);
    case at::kUInt64:
      return tensor.view(at::kLong);
    default:
      return tensor;
  }
}

// The rows that each rank holds are found by cutting the row numbers.
at::Tensor join_shards(
    const std::vector<at::Tensor>& parts,
    const Placement& placement,
    c10::IntArrayRef sizes) {
  const int64_t dim = placement.tensor_dim();
  const auto n = static_cast<int64_t>(parts.size());
  const auto rows =
      test::cut(at::arange(sizes.at(dim)), placement.with_tensor_dim(0), n);
  auto whole = at::zeros(sizes, as_signed(parts[0]).options());
  for (int64_t r = 0; r < n; ++r) {
    auto expected = sizes.vec();
    expected[dim] = rows[r].numel();
    TORCH_CHECK(
        parts[r].sizes() == c10::IntArrayRef(expected),
        "rank ",
        r,
        " made sizes ",
        parts[r].sizes(),
        " where ",
        placement.to_string(),
        " of ",
        sizes,
        " is ",
        expected);
    whole.index_copy_(dim, rows[r], as_signed(parts[r]));
  }
  return whole.view(parts[0].scalar_type());
}

at::Tensor join_one(
    const std::vector<at::Tensor>& parts,
    const Placement& placement,
    c10::IntArrayRef sizes) {
  if (placement.is_shard()) {
    return join_shards(parts, placement, sizes);
  }
  if (placement.is_partial()) {
    return join_reduction(parts, placement.reduce_op());
  }
  for (size_t r = 1; r < parts.size(); ++r) {
    require_close(
        parts[r], parts[0], "a replicated result differs between ranks");
  }
  return parts[0];
}

} // namespace

double tolerance_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
    case at::kComplexDouble:
      return 1e-9;
    case at::kFloat:
    case at::kComplexFloat:
      return 1e-4;
    case at::kHalf:
      return 1e-2;
    default:
      return 5e-2;
  }
}

bool is_close(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    return false;
  }
  if (!a.is_floating_point() && !a.is_complex()) {
    return at::equal(a, b);
  }
  const double tolerance = tolerance_of(a.scalar_type());
  double scale = 1;
  if (tolerance > 1e-9 && b.numel() > 0) {
    const auto largest = at::nan_to_num(b.abs().to(at::kDouble), 0, 0, 0).max();
    scale = std::max(scale, largest.item<double>());
  }
  return at::allclose(a, b, tolerance, tolerance * scale, /*equal_nan=*/true);
}

std::vector<at::Tensor> cut_parts(
    const at::Tensor& whole,
    const Placements& placements,
    c10::IntArrayRef mesh_shape) {
  std::vector<at::Tensor> values{whole};
  Placements cuts = placements;
  for (size_t i = 0; i < mesh_shape.size(); ++i) {
    std::vector<at::Tensor> inner;
    for (const auto& value : values) {
      const auto terms = placements[i].is_partial()
                             ? terms_of(value, placements[i], mesh_shape[i])
                             : std::vector<at::Tensor>(mesh_shape[i], value);
      inner.insert(inner.end(), terms.begin(), terms.end());
    }
    values = std::move(inner);
    cuts[i] = placements[i].is_partial() ? Replicate() : placements[i];
  }
  for (size_t r = 0; r < values.size(); ++r) {
    values[r] = test::cut_all(values[r], cuts, mesh_shape)[r];
  }
  return values;
}

at::Tensor join_parts(
    const std::vector<at::Tensor>& parts,
    const Placements& placements,
    c10::IntArrayRef mesh_shape,
    c10::IntArrayRef sizes) {
  if (mesh_shape.empty()) {
    return parts.at(0);
  }
  const size_t inner = parts.size() / static_cast<size_t>(mesh_shape[0]);
  std::vector<at::Tensor> joined;
  for (int64_t i = 0; i < mesh_shape[0]; ++i) {
    auto own = sizes.vec();
    if (placements[0].is_shard()) {
      const int64_t dim = placements[0].tensor_dim();
      const auto rows = test::cut(
          at::arange(own.at(dim)),
          placements[0].with_tensor_dim(0),
          mesh_shape[0]);
      own[dim] = rows[i].numel();
    }
    const auto first = parts.begin() + static_cast<int64_t>(inner) * i;
    joined.push_back(join_parts(
        {first, first + static_cast<int64_t>(inner)},
        {placements.begin() + 1, placements.end()},
        mesh_shape.slice(1),
        own));
  }
  return join_one(joined, placements[0], sizes);
}

void require_close(
    const at::Tensor& actual,
    const at::Tensor& expected,
    const char* what) {
  TORCH_CHECK(
      actual.sizes() == expected.sizes(),
      what,
      ": sizes ",
      actual.sizes(),
      " where one rank makes ",
      expected.sizes());
  TORCH_CHECK(
      actual.scalar_type() == expected.scalar_type(),
      what,
      ": dtype ",
      actual.scalar_type(),
      " where one rank makes ",
      expected.scalar_type());
  if (is_close(actual, expected)) {
    return;
  }
  const auto wide = actual.is_complex() ? at::kComplexDouble : at::kDouble;
  const auto difference = (actual.to(wide) - expected.to(wide)).abs();
  TORCH_CHECK(
      false,
      what,
      ": largest difference ",
      difference.nan_to_num(1e300).max().item<double>(),
      "\nactual\n",
      actual,
      "\nexpected\n",
      expected);
}

std::string describe(const Placements& inputs, const Placements& outputs) {
  std::string text;
  for (const auto& placement : inputs) {
    text += placement.to_string() + " ";
  }
  text += "->";
  for (const auto& placement : outputs) {
    text += " " + placement.to_string();
  }
  return text;
}

} // namespace weft::dtensor::check
