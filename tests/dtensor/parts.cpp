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

// The rows of each dim that rank `index` of a mesh of `shape` holds.
std::vector<RowRanges> all_rows(
    c10::ArrayRef<Placement> placements,
    c10::IntArrayRef shape,
    c10::IntArrayRef sizes,
    size_t index) {
  std::vector<int64_t> coordinate(shape.size());
  auto rest = static_cast<int64_t>(index);
  for (size_t i = shape.size(); i-- > 0;) {
    coordinate[i] = rest % shape[i];
    rest /= shape[i];
  }
  std::vector<RowRanges> rows;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const auto cuts =
        dim_shards(placements.vec(), shape, static_cast<int64_t>(d));
    rows.push_back(rows_at(cuts, sizes[d], coordinate));
  }
  return rows;
}

// A copy whose dims lie in memory in the order that the full tensor's do.
at::Tensor rows_of(
    const at::Tensor& whole,
    const std::vector<RowRanges>& rows) {
  at::Tensor part = whole;
  bool is_copy = false;
  for (int64_t d = 0; d < whole.dim(); ++d) {
    std::vector<at::Tensor> pieces;
    for (const auto& range : rows[d]) {
      pieces.push_back(part.narrow(d, range.begin, range.length));
    }
    is_copy |= pieces.size() > 1;
    part = pieces.size() == 1 ? pieces[0] : at::cat(pieces, d);
  }
  if (!is_copy) {
    return part.clone();
  }
  auto result = at::empty_strided(
      part.sizes(),
      dense_strides(part.sizes(), whole.strides()),
      part.options());
  return result.copy_(part);
}

// A part where it lies in the whole, zeros elsewhere, and how often each
// element is held.
struct Placed {
  at::Tensor value;
  at::Tensor held;
};

// The positions that `rows` select of each element of a tensor of `sizes`.
at::Tensor positions(
    const std::vector<RowRanges>& rows,
    c10::IntArrayRef sizes) {
  int64_t numel = 1;
  for (const int64_t size : sizes) {
    numel *= size;
  }
  return rows_of(at::arange(numel).view(sizes), rows).flatten();
}

Placed place(
    const at::Tensor& part,
    const std::vector<RowRanges>& rows,
    c10::IntArrayRef sizes,
    size_t rank) {
  const auto index = positions(rows, sizes);
  Placed placed{at::zeros(sizes, part.options()), at::zeros(sizes, at::kInt)};
  EXPECT_EQ(part.sizes(), rows_of(placed.held, rows).sizes())
      << "rank " << rank;
  placed.value.view(-1).index_copy_(0, index, part.reshape(-1));
  placed.held.view(-1).index_fill_(0, index, 1);
  return placed;
}

Placed join_group(c10::ArrayRef<Placed> group, const Placement& placement) {
  auto [value, held] = group[0];
  for (size_t r = 1; r < group.size(); ++r) {
    if (placement.is_shard()) {
      value = at::where(group[r].held.gt(0), group[r].value, value);
      held = held + group[r].held;
    } else if (placement.is_partial()) {
      value = combine(value, group[r].value, placement.reduce_op());
    } else {
      EXPECT_TRUE(close(group[r].value, value, 1e-12))
          << "ranks 0 and " << r << " differ";
    }
  }
  if (placement.is_partial(ReduceOp::kAvg)) {
    value = value / static_cast<int64_t>(group.size());
  }
  return {value, held};
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
  return cut_all(whole, placement, n);
}

at::Tensor join(
    const std::vector<at::Tensor>& parts,
    const Placement& placement,
    c10::IntArrayRef sizes) {
  return join_all(parts, placement, static_cast<int64_t>(parts.size()), sizes);
}

std::vector<at::Tensor> cut_all(
    const at::Tensor& whole,
    c10::ArrayRef<Placement> placements,
    c10::IntArrayRef shape) {
  std::vector<at::Tensor> parts{whole};
  for (size_t i = 0; i < shape.size(); ++i) {
    std::vector<at::Tensor> inner;
    for (const auto& part : parts) {
      const auto values = placements[i].is_partial()
                              ? terms(part, placements[i].reduce_op(), shape[i])
                              : std::vector<at::Tensor>(shape[i], part);
      inner.insert(inner.end(), values.begin(), values.end());
    }
    parts = std::move(inner);
  }
  for (size_t r = 0; r < parts.size(); ++r) {
    parts[r] = rows_of(parts[r], all_rows(placements, shape, whole.sizes(), r));
  }
  return parts;
}

at::Tensor join_all(
    c10::ArrayRef<at::Tensor> parts,
    c10::ArrayRef<Placement> placements,
    c10::IntArrayRef shape,
    c10::IntArrayRef sizes) {
  std::vector<Placed> values;
  for (size_t r = 0; r < parts.size(); ++r) {
    values.push_back(
        place(parts[r], all_rows(placements, shape, sizes, r), sizes, r));
  }
  for (size_t i = shape.size(); i-- > 0;) {
    const auto n = static_cast<size_t>(shape[i]);
    std::vector<Placed> outer;
    for (size_t first = 0; first < values.size(); first += n) {
      outer.push_back(join_group({values.data() + first, n}, placements[i]));
    }
    values = std::move(outer);
  }
  EXPECT_TRUE(values[0].held.eq(1).all().item<bool>())
      << "rows that no rank holds, or several";
  return values[0].value;
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
