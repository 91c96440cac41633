#include "dtensor/kernels/chunked_matmul.h"

#include <algorithm>

#include <c10/util/accumulate.h>
#include <torch/torch.h>

#include "dtensor/kernels/async_tp.h"
#include "dtensor/spec/dim_shards.h"
#include "mesh/link_cost.h"

namespace weft::dtensor::kernels {
namespace {

// Returns the mesh dim on which the placements differ. Empty if several do.
std::optional<int64_t> only_difference(
    const DTensorSpec& a,
    const DTensorSpec& b) {
  std::optional<int64_t> found;
  for (int64_t i = 0; i < a.mesh_ndim(); ++i) {
    if (!(a.placement(i) == b.placement(i))) {
      if (found) {
        return std::nullopt;
      }
      found = i;
    }
  }
  return found;
}

// Returns the rows of each rank along the mesh dim `i`. Empty if another mesh
// dim shards the tensor dim, too, or if the shard is strided.
std::optional<RowRanges>
rows_of_ranks(const DTensorSpec& cut, int64_t i, c10::IntArrayRef sizes) {
  const int64_t dim = cut.placement(i).tensor_dim();
  const auto cuts = dim_shards(cut.placements(), cut.mesh().shape(), dim);
  if (cuts.size() != 1 || cuts[0].split_factor > 1) {
    return std::nullopt;
  }
  RowRanges rows;
  for (int64_t rank = 0; rank < cut.mesh().size(i); ++rank) {
    rows.push_back(shard_rows(cuts[0], sizes[dim], rank)[0]);
  }
  return rows;
}

std::vector<int64_t> sizes_here(
    const DTensorSpec& spec,
    c10::IntArrayRef sizes) {
  std::vector<int64_t> coordinate;
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    coordinate.push_back(spec.mesh().coordinate(i));
  }
  std::vector<int64_t> here;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const auto cuts = dim_shards(
        spec.placements(), spec.mesh().shape(), static_cast<int64_t>(d));
    here.push_back(row_count(rows_at(cuts, sizes[d], coordinate)));
  }
  return here;
}

at::Tensor as_matrix(const at::Tensor& tensor) {
  const auto rows = tensor.sizes().slice(0, tensor.dim() - 1);
  return tensor.reshape({c10::multiply_integers(rows), tensor.size(-1)});
}

at::Tensor take_rows(const at::Tensor& tensor, int64_t dim, RowRange rows) {
  return tensor.narrow(dim, rows.begin, rows.length);
}

std::vector<int64_t>
sizes_with(const std::vector<int64_t>& sizes, int64_t dim, int64_t length) {
  auto result = sizes;
  result[dim] = length;
  return result;
}

void multiply(
    const at::Tensor& out,
    const at::Tensor& x,
    const at::Tensor& matrix,
    const at::Tensor& bias) {
  if (out.numel() == 0) {
    return;
  }
  const auto rows = as_matrix(x);
  const bool direct = out.is_contiguous();
  auto product = direct
                     ? out.view({rows.size(0), matrix.size(1)})
                     : at::empty({rows.size(0), matrix.size(1)}, out.options());
  if (bias.defined()) {
    at::addmm_out(product, bias, rows, matrix);
  } else {
    at::mm_out(product, rows, matrix);
  }
  if (!direct) {
    out.copy_(product.view(out.sizes()));
  }
}

struct IncomingChunk {
  mesh::Work work;
  /// The received rows, by rank.
  std::vector<at::Tensor> pieces;
};

IncomingChunk send_part(
    const RowChunks& rows,
    const at::Tensor& local,
    int64_t part,
    std::string_view name) {
  auto group = rows.group;
  const auto own = rows.piece(group.rank(), part);
  const auto input =
      take_rows(
          local,
          rows.dim,
          {own.begin - rows.rows[group.rank()].begin, own.length})
          .contiguous();
  IncomingChunk arriving;
  if (rows.is_even()) {
    auto sizes = input.sizes().vec();
    sizes.insert(sizes.begin(), group.size());
    const auto buffer = at::empty(sizes, local.options());
    arriving.pieces = buffer.unbind(0);
    arriving.work = group.all_gather(buffer, input, name);
    return arriving;
  }
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    arriving.pieces.push_back(at::empty(
        sizes_with(rows.whole, rows.dim, rows.piece(rank, part).length),
        local.options()));
  }
  arriving.work = group.all_gather_uneven(arriving.pieces, input, name);
  return arriving;
}

struct OutgoingChunk {
  mesh::Work work;
  at::Tensor received;
  at::Tensor target;
};

OutgoingChunk matmul_and_send(
    const RowChunks& rows,
    const at::Tensor& x,
    const at::Tensor& matrix,
    const at::Tensor& result,
    int64_t part,
    std::string_view name) {
  auto group = rows.group;
  std::vector<at::Tensor> taken;
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    taken.push_back(as_matrix(take_rows(x, rows.dim, rows.piece(rank, part))));
  }
  const auto packed = at::cat(taken);
  const auto buffer =
      at::empty({packed.size(0), matrix.size(1)}, result.options());
  multiply(buffer, packed, matrix, {});
  const auto own = rows.piece(group.rank(), part);
  OutgoingChunk leaving;
  leaving.target = take_rows(
      result,
      rows.dim,
      {own.begin - rows.rows[group.rank()].begin, own.length});
  leaving.received = leaving.target.is_contiguous()
                         ? leaving.target
                         : at::empty(leaving.target.sizes(), result.options());
  if (rows.is_even()) {
    leaving.work = group.reduce_scatter(
        leaving.received, buffer, mesh::ReduceOp::kSum, name);
    return leaving;
  }
  std::vector<at::Tensor> inputs;
  int64_t begin = 0;
  for (const auto& piece : taken) {
    inputs.push_back(buffer.narrow(0, begin, piece.size(0)));
    begin += piece.size(0);
  }
  const auto flat = as_matrix(leaving.received);
  leaving.work =
      group.reduce_scatter_uneven(flat, inputs, mesh::ReduceOp::kSum, name);
  return leaving;
}

} // namespace

RowRange RowChunks::piece(int64_t rank, int64_t part) const {
  const auto& own = rows[rank];
  const int64_t begin = own.length * part / parts;
  const int64_t end = own.length * (part + 1) / parts;
  return {own.begin + begin, end - begin};
}

bool RowChunks::is_even() const {
  return std::ranges::all_of(
      rows, [&](const auto& row) { return row.length == rows[0].length; });
}

std::optional<RowChunks> plan_row_chunks(const RowComm& move) {
  const auto& mesh = move.cut.mesh();
  if (!may_chunk_matmuls(mesh)) {
    return std::nullopt;
  }
  const auto i = only_difference(move.cut, move.together);
  const auto ndim = static_cast<int64_t>(move.sizes.size());
  if (!i || mesh.size(*i) == 1 || ndim < 2) {
    return std::nullopt;
  }
  const auto& from = move.cut.placement(*i);
  const auto& to = move.together.placement(*i);
  const bool gathers = to.is_replicate();
  if (!from.is_shard() || from.tensor_dim() == ndim - 1 ||
      !(gathers || to.is_partial(ReduceOp::kSum))) {
    return std::nullopt;
  }
  auto rows = rows_of_ranks(move.cut, *i, move.sizes);
  if (!rows) {
    return std::nullopt;
  }
  const auto fewest = std::ranges::min(
      *rows, {}, [](const auto& range) { return range.length; });
  RowChunks result{
      .group = mesh.group(*i),
      .dim = from.tensor_dim(),
      .whole = sizes_here(move.together, move.sizes),
      .rows = std::move(*rows)};
  double elements = 1;
  for (const int64_t size : result.whole) {
    elements *= static_cast<double>(size);
  }
  result.parts = choose_num_chunks(
      mesh,
      {.kind = gathers ? StepKind::kAllGather : StepKind::kReduceScatter,
       .ranks = mesh.size(*i),
       .bytes = elements * static_cast<double>(c10::elementSize(move.dtype)),
       .flops = 2 * elements * static_cast<double>(move.other) /
                static_cast<double>(mesh.size(*i)),
       .link = mesh::link_cost(mesh, *i)},
      std::max<int64_t>(fewest.length, 1));
  return result.parts > 0 ? std::optional(std::move(result)) : std::nullopt;
}

AllGatherMatmulResult all_gather_matmul(
    const RowChunks& rows,
    const at::Tensor& local,
    const at::Tensor& matrix,
    const at::Tensor& bias,
    std::string_view name) {
  std::vector<IncomingChunk> arriving;
  for (int64_t part = 0; part < rows.parts; ++part) {
    arriving.push_back(send_part(rows, local, part, name));
  }
  auto sizes = rows.whole;
  AllGatherMatmulResult result{
      .whole = at::empty(sizes, local.options()), .product = {}};
  sizes.back() = matrix.size(1);
  result.product = at::empty(sizes, local.options());
  const int64_t own = rows.group.rank();
  take_rows(result.whole, rows.dim, rows.rows[own]).copy_(local);
  multiply(
      take_rows(result.product, rows.dim, rows.rows[own]), local, matrix, bias);
  for (int64_t part = 0; part < rows.parts; ++part) {
    arriving[part].work.wait();
    for (int64_t rank = 0; rank < rows.group.size(); ++rank) {
      if (rank == own) {
        continue;
      }
      const auto& piece = arriving[part].pieces[rank];
      const auto where = rows.piece(rank, part);
      take_rows(result.whole, rows.dim, where).copy_(piece);
      multiply(take_rows(result.product, rows.dim, where), piece, matrix, bias);
    }
  }
  return result;
}

void matmul_reduce_scatter(
    const RowChunks& rows,
    const at::Tensor& x,
    const at::Tensor& matrix,
    const at::Tensor& result,
    std::string_view name) {
  std::vector<OutgoingChunk> leaving;
  for (int64_t part = 0; part < rows.parts; ++part) {
    leaving.push_back(matmul_and_send(rows, x, matrix, result, part, name));
  }
  for (auto& part : leaving) {
    part.work.wait();
    if (!part.received.is_same(part.target)) {
      part.target.copy_(part.received);
    }
  }
}

} // namespace weft::dtensor::kernels
