#include "tests/dtensor/parts.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/world.h"

namespace weft::dtensor::test {
namespace {

// What a Partial's terms add up with.
at::Tensor combine(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
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

std::vector<at::Tensor> terms(const at::Tensor& whole, ReduceOp op, int64_t n) {
  std::vector<at::Tensor> parts;
  at::Tensor rest = op == ReduceOp::kAvg ? whole * n : whole.clone();
  for (int64_t r = 0; r + 1 < n; ++r) {
    const auto noise = random(whole.sizes(), 1000 + r).add(0.25);
    switch (op) {
      case ReduceOp::kMin:
        parts.push_back(whole + noise.abs());
        break;
      case ReduceOp::kMax:
        parts.push_back(whole - noise.abs());
        break;
      case ReduceOp::kProduct:
        // Whole numbers divide by 1 and -1 alone.
        parts.push_back(
            whole.is_floating_point() ? noise.abs().add(0.5) : noise.sign());
        rest = rest / parts.back();
        break;
      default:
        parts.push_back((noise * 4).to(whole.scalar_type()));
        rest = rest - parts.back();
    }
    parts.back() = parts.back().to(whole.scalar_type());
  }
  parts.push_back(rest.to(whole.scalar_type()));
  return parts;
}

bool close(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  return a.is_floating_point() || a.is_complex()
             ? at::allclose(a, b, tolerance, tolerance, /*equal_nan=*/true)
             : at::equal(a, b);
}

} // namespace

mesh::DeviceMesh fake_mesh(
    int64_t rank,
    std::vector<int64_t> shape,
    std::vector<std::string> names) {
  int64_t size = 1;
  for (const int64_t n : shape) {
    size *= n;
  }
  return mesh::DeviceMesh::create(
      mesh::World::fake(rank, size), std::move(shape), std::move(names));
}

mesh::DeviceMesh fake_line(int64_t rank, int64_t size) {
  return fake_mesh(rank, {size}, {"tp"});
}

std::vector<at::Tensor>
cut(const at::Tensor& whole, const Placement& placement, int64_t n) {
  if (placement.is_partial()) {
    return terms(whole, placement.reduce_op(), n);
  }
  std::vector<at::Tensor> parts;
  for (int64_t r = 0; r < n; ++r) {
    if (placement.is_replicate()) {
      parts.push_back(whole.clone());
      continue;
    }
    const int64_t dim = placement.tensor_dim();
    const auto range = shard_range(whole.size(dim), n, r);
    parts.push_back(whole.narrow(dim, range.begin, range.length).clone());
  }
  return parts;
}

at::Tensor join(
    const std::vector<at::Tensor>& parts,
    const Placement& placement,
    c10::IntArrayRef sizes) {
  const auto n = static_cast<int64_t>(parts.size());
  if (placement.is_shard()) {
    const int64_t dim = placement.tensor_dim();
    for (int64_t r = 0; r < n; ++r) {
      auto expected = sizes.vec();
      expected.at(dim) = shard_range(sizes[dim], n, r).length;
      EXPECT_EQ(parts[r].sizes(), c10::IntArrayRef(expected)) << "rank " << r;
    }
    return at::cat(parts, dim);
  }
  at::Tensor whole = parts[0];
  for (int64_t r = 1; r < n; ++r) {
    if (placement.is_partial()) {
      whole = combine(whole, parts[r], placement.reduce_op());
    } else {
      EXPECT_TRUE(close(parts[r], parts[0], 1e-12))
          << "ranks 0 and " << r << " differ";
    }
  }
  return placement.is_partial(ReduceOp::kAvg) ? whole / n : whole;
}

std::vector<at::Tensor> cut_all(
    const at::Tensor& whole,
    c10::ArrayRef<Placement> placements,
    c10::IntArrayRef shape) {
  if (shape.empty()) {
    return {whole};
  }
  std::vector<at::Tensor> parts;
  for (const auto& outer : cut(whole, placements[0], shape[0])) {
    for (auto& part : cut_all(outer, placements.slice(1), shape.slice(1))) {
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

at::Tensor join_all(
    c10::ArrayRef<at::Tensor> parts,
    c10::ArrayRef<Placement> placements,
    c10::IntArrayRef shape,
    c10::IntArrayRef sizes) {
  if (shape.empty()) {
    return parts[0];
  }
  const size_t inner = parts.size() / static_cast<size_t>(shape[0]);
  std::vector<at::Tensor> joined;
  for (int64_t i = 0; i < shape[0]; ++i) {
    auto own = sizes.vec();
    if (placements[0].is_shard()) {
      auto& size = own[placements[0].tensor_dim()];
      size = shard_range(size, shape[0], i).length;
    }
    joined.push_back(join_all(
        parts.slice(static_cast<size_t>(i) * inner, inner),
        placements.slice(1),
        shape.slice(1),
        own));
  }
  return join(joined, placements[0], sizes);
}

at::Tensor random(c10::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::kDouble).to(dtype);
}

at::Tensor distributed(
    const at::Tensor& whole,
    const mesh::DeviceMesh& mesh,
    const Placements& placements) {
  return distribute_tensor(whole, mesh, placements, std::nullopt);
}

void expect_close(
    const at::Tensor& actual,
    const at::Tensor& expected,
    double tolerance,
    std::string_view what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  if (close(actual, expected, tolerance)) {
    return;
  }
  const auto difference =
      (actual.to(at::kDouble) - expected.to(at::kDouble)).abs();
  ADD_FAILURE() << what << ": largest difference "
                << difference.max().item<double>() << "\nactual\n"
                << actual << "\nexpected\n"
                << expected;
}

} // namespace weft::dtensor::test
