#include "dtensor/tensor/cross_rank_checks.h"

#include <numeric>
#include <optional>
#include <string>

#include <torch/torch.h>

#include "base/fnv.h"
#include "base/string_streams.h"
#include "dtensor/spec/mesh_arguments.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/communicator/communicator.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

constexpr const char* kFromLocal = "from_local";

// The arguments of one rank. They are exchanged before any check that could
// throw on this rank only.
struct Claim {
  // The properties that must be identical on every rank.
  std::string common;
  std::vector<int64_t> local_sizes;
};

std::string describe_optional(
    const std::string& what,
    const std::optional<std::vector<int64_t>>& numbers) {
  return numbers ? c10::str(", ", what, " ", c10::IntArrayRef(*numbers)) : "";
}

// Returns the kind of a tensor that cannot be split into parts. Empty if it
// can.
std::string non_dense_reason(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "an undefined tensor";
  }
  if (tensor.is_nested()) {
    return "a nested tensor";
  }
  if (tensor.is_quantized()) {
    return "a quantized tensor";
  }
  return tensor.layout() == at::kStrided
             ? ""
             : c10::str("a tensor of layout ", tensor.layout());
}

std::string to_text(
    const at::Tensor& local,
    const Placements& placements,
    const FromLocalOptions& options) {
  if (const auto what = non_dense_reason(local); !what.empty()) {
    return what + "\t";
  }
  base::StringWriter text;
  text << (dtensor_impl(local) ? "a DTensor"
                               : c10::toString(local.scalar_type()))
       << " on " << local.device().type() << " of " << local.dim()
       << " dims under " << to_string(placements)
       << describe_optional("global sizes", options.sizes)
       << describe_optional("global strides", options.strides);
  if (options.grad_placements) {
    text << ", gradient " << to_string(*options.grad_placements);
  }
  text << '\t';
  for (const int64_t size : local.sizes()) {
    text << size << ' ';
  }
  return text.str();
}

Claim parse_claim(const std::string& text) {
  const auto tab = text.find('\t');
  Claim claim{text.substr(0, tab), {}};
  base::StringReader numbers(text.substr(tab + 1));
  for (int64_t size = 0; numbers >> size;) {
    claim.local_sizes.push_back(size);
  }
  return claim;
}

// Returns the texts of all ranks, in the order of the mesh's ranks().
std::vector<std::string> gather_over_mesh(
    const mesh::DeviceMesh& mesh,
    const std::string& own) {
  std::vector<std::string> texts{own};
  for (int64_t i = mesh.ndim(); i-- > 0;) {
    std::string lines;
    for (const auto& text : texts) {
      lines += text + '\n';
    }
    texts.clear();
    for (const auto& gathered :
         mesh::all_gather_text(mesh.group(i), lines, kFromLocal)) {
      base::StringReader in(gathered);
      for (std::string line; std::getline(in, line);) {
        texts.push_back(line);
      }
    }
  }
  return texts;
}

std::vector<int64_t> coordinate_at(const mesh::DeviceMesh& mesh, size_t index) {
  std::vector<int64_t> coordinate(mesh.ndim());
  auto rest = static_cast<int64_t>(index);
  for (int64_t i = mesh.ndim(); i-- > 0;) {
    coordinate[i] = rest % mesh.size(i);
    rest /= mesh.size(i);
  }
  return coordinate;
}

void check_same_kind(
    const std::vector<Claim>& claims,
    const mesh::DeviceMesh& mesh) {
  for (size_t r = 0; r < claims.size(); ++r) {
    WEFT_CHECK(
        claims[r].common == claims[0].common,
        kFromLocal,
        context_of(mesh),
        "ranks passed local tensors with different sizes, dtypes or "
        "placements: rank ",
        mesh.ranks()[0],
        " has ",
        claims[0].common,
        " vs rank ",
        mesh.ranks()[r],
        " has ",
        claims[r].common,
        ". Pass parts of one tensor, and the same arguments, on every rank.");
  }
}

void check_sizes(
    const std::vector<Claim>& claims,
    const DTensorSpec& spec,
    c10::IntArrayRef sizes,
    bool are_given) {
  for (size_t r = 0; r < claims.size(); ++r) {
    const auto expected =
        local_sizes_at(spec, sizes, coordinate_at(spec.mesh(), r));
    WEFT_CHECK(
        claims[r].local_sizes == expected,
        kFromLocal,
        context_of(spec.mesh()),
        "a rank passed a local tensor whose sizes do not match its placements: "
        "rank ",
        spec.mesh().ranks()[r],
        " has ",
        c10::IntArrayRef(claims[r].local_sizes),
        " vs ",
        c10::IntArrayRef(expected),
        " as its part of global ",
        sizes,
        " under ",
        to_string(spec.placements()),
        are_given ? "."
                  : ", if every rank has a part like rank 0's. Give "
                    "options.sizes.");
  }
}

bool equal_values(const at::Tensor& a, const at::Tensor& b) {
  const auto same = a.eq(b);
  const auto both_nan = a.ne(a).logical_and_(b.ne(b));
  return same.logical_or(both_nan).all().item<bool>();
}

void check_replicas(const at::Tensor& local, const DTensorSpec& spec) {
  const auto& mesh = spec.mesh();
  std::string differs;
  for (int64_t i = 0; i < mesh.ndim(); ++i) {
    if (!spec.placement(i).is_replicate() || mesh.size(i) == 1) {
      continue;
    }
    const auto first = local.detach().clone(at::MemoryFormat::Contiguous);
    mesh.group(i).broadcast(first, 0, kFromLocal).wait();
    if (differs.empty() && !equal_values(local.detach(), first)) {
      differs = mesh.mesh_dim_names()[i];
    }
  }
  const auto answers = gather_over_mesh(mesh, differs);
  for (size_t r = 0; r < answers.size(); ++r) {
    WEFT_CHECK(
        answers[r].empty(),
        kFromLocal,
        context_of(mesh),
        "rank ",
        mesh.ranks()[r],
        " has values that differ from those of the first rank of mesh dim \"",
        answers[r],
        "\", although the tensor is replicated over it under ",
        to_string(spec.placements()),
        ". Broadcast the values first, or pass Shard or Partial for this mesh "
        "dim.");
  }
}

int64_t hash_of(const std::string& text) {
  // The shift makes the hash non-negative, so that int64_t has its negative.
  return static_cast<int64_t>(base::fnv1a(text) >> 1);
}

// Returns true if all ranks of `mesh` pass the same text. Only a hash is
// communicated.
bool is_same_text(const mesh::DeviceMesh& mesh, const std::string& text) {
  const int64_t hash = hash_of(text);
  auto largest = at::tensor({hash, -hash}, at::kLong);
  for (int64_t i = 0; i < mesh.ndim(); ++i) {
    mesh.group(i)
        .all_reduce(largest, ReduceOp::kMax, "distribute_tensor")
        .wait();
  }
  return largest[0].item<int64_t>() == -largest[1].item<int64_t>();
}

} // namespace

void check_full_tensors_match(
    const at::Tensor& whole,
    const mesh::DeviceMesh& mesh,
    const Placements& placements) {
  if (mesh.size() == 1) {
    return;
  }
  const auto not_dense = non_dense_reason(whole);
  const auto own = !not_dense.empty()
                       ? not_dense
                       : c10::str(
                             whole.is_leaf() ? "" : "a result of ",
                             dtensor_impl(whole) ? "a DTensor " : "",
                             whole.scalar_type(),
                             " ",
                             whole.sizes(),
                             " under ",
                             to_string(placements));
  if (is_same_text(mesh, own)) {
    return;
  }
  const auto texts = gather_over_mesh(mesh, own);
  for (size_t r = 0; r < texts.size(); ++r) {
    WEFT_CHECK(
        texts[r] == texts[0],
        "distribute_tensor",
        context_of(mesh),
        "all ranks must pass the same shape, dtype and placements, but rank ",
        mesh.ranks()[0],
        " has ",
        texts[0],
        " and rank ",
        mesh.ranks()[r],
        " has ",
        texts[r],
        ". Pass the same on every rank; only values may differ.");
  }
}

void check_is_dense(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const char* op) {
  const auto what = non_dense_reason(tensor);
  WEFT_CHECK(
      what.empty(),
      op,
      context_of(mesh),
      "the tensor is ",
      what,
      ". A DTensor requires dense values. Pass ",
      tensor.defined()
          ? "tensor.to_dense(), or its values as a separate tensor."
          : "a tensor that has some.");
}

std::vector<int64_t> infer_global_sizes(
    c10::IntArrayRef local_sizes,
    const DTensorSpec& spec) {
  auto sizes = local_sizes.vec();
  for (int64_t i = spec.mesh_ndim(); i-- > 0;) {
    const auto& placement = spec.placement(i);
    if (!placement.is_shard()) {
      continue;
    }
    auto& size = sizes[placement.tensor_dim()];
    const auto& rows = placement.shard_sizes();
    size = rows.empty() ? size * spec.mesh().size(i)
                        : std::accumulate(rows.begin(), rows.end(), int64_t{0});
  }
  return sizes;
}

void check_no_mixed_partials(
    const Placements& placements,
    const mesh::DeviceMesh& mesh,
    const char* op) {
  const auto is_linear = [](const Placement& placement) {
    return placement.is_partial(ReduceOp::kSum) ||
           placement.is_partial(ReduceOp::kAvg);
  };
  const Placement* first = nullptr;
  for (const auto& placement : placements) {
    if (!placement.is_partial()) {
      continue;
    }
    WEFT_CHECK(
        !first || placement == *first ||
            (is_linear(placement) && is_linear(*first)),
        op,
        context_of(mesh),
        "one kind of Partial: ",
        first->to_string(),
        " vs ",
        placement.to_string(),
        " in ",
        to_string(placements),
        ". The result would depend on the order of the reductions. "
        "Redistribute one of them.");
    first = &placement;
  }
}

void check_local_tensors_match(
    const at::Tensor& local,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const FromLocalOptions& options) {
  if (mesh.size() == 1 || mesh.group(0).backend() == "fake") {
    return;
  }
  std::vector<Claim> claims;
  for (const auto& text :
       gather_over_mesh(mesh, to_text(local, placements, options))) {
    claims.push_back(parse_claim(text));
  }
  check_same_kind(claims, mesh);
  check_is_dense(local, mesh, kFromLocal);
  WEFT_CHECK(
      !dtensor_impl(local),
      kFromLocal,
      context_of(mesh),
      "not a plain tensor but ",
      claims[0].common,
      ". Use redistribute() for a DTensor.");
  // The properties were compared, so the checks from here on have the same
  // result on every rank.
  Placements normal;
  for (const auto& placement : placements) {
    normal.push_back(placement.normalized(
        options.sizes ? static_cast<int64_t>(options.sizes->size())
                      : local.dim()));
  }
  const DTensorSpec spec(mesh, normal);
  check_sizes(
      claims,
      spec,
      options.sizes ? *options.sizes
                    : infer_global_sizes(claims[0].local_sizes, spec),
      options.sizes.has_value());
  check_replicas(local, spec);
}

} // namespace weft::dtensor
