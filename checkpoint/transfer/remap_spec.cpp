#include "checkpoint/transfer/remap_spec.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/files/text.h"
#include "dtensor/spec/placement.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

using dtensor::Placement;
using dtensor::Placements;

// Parses a text like "[S(0, [3, 5]), R]". Commas inside of brackets do not
// separate placements.
std::optional<Placements> parse_placements(std::string_view text) {
  if (!text.starts_with('[') || !text.ends_with(']')) {
    return std::nullopt;
  }
  text = text.substr(1, text.size() - 2);
  Placements placements;
  int depth = 0;
  size_t begin = 0;
  const auto add = [&](size_t end) {
    auto part = text.substr(begin, end - begin);
    part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
    placements.push_back(Placement::parse(part));
    begin = end + 1;
  };
  try {
    for (size_t i = 0; i < text.size(); ++i) {
      depth += static_cast<int>(text[i] == '(' || text[i] == '[');
      depth -= static_cast<int>(text[i] == ')' || text[i] == ']');
      if (text[i] == ',' && depth == 0) {
        add(i);
      }
    }
    if (!text.empty()) {
      add(text.size());
    }
  } catch (const c10::Error&) {
    return std::nullopt;
  }
  return placements;
}

// The mesh and placements with which a tensor was saved, parsed from the
// manifest's human-readable text.
struct Stored {
  MeshSizes mesh;
  Placements placements;
};

std::optional<Stored> parse_stored(const TensorRecord& tensor) {
  auto placements = parse_placements(tensor.placements);
  if (!placements) {
    return std::nullopt;
  }
  try {
    Stored stored{parse_mesh_sizes(tensor.mesh), *std::move(placements)};
    const auto dims = static_cast<int64_t>(tensor.shape.size());
    const bool fits =
        std::ranges::all_of(stored.placements, [&](const Placement& each) {
          return !each.is_partial() &&
                 (!each.is_shard() ||
                  (each.tensor_dim() >= 0 && each.tensor_dim() < dims));
        });
    return fits && stored.placements.size() == stored.mesh.size()
               ? std::optional(std::move(stored))
               : std::nullopt;
  } catch (const mesh::UsageError&) {
    return std::nullopt;
  }
}

// Returns the indices in `mesh` of the mesh dims with which the tensor was
// saved.
std::vector<size_t> dims_in(
    const std::string& name,
    const Stored& stored,
    const mesh::DeviceMesh& mesh) {
  std::vector<size_t> dims;
  for (const auto& [dim, size] : stored.mesh) {
    const auto& names = mesh.mesh_dim_names();
    const auto found = std::ranges::find(names, dim);
    const auto index = static_cast<size_t>(found - names.begin());
    if (found == names.end() || (!dims.empty() && index < dims.back())) {
      std::string wanted;
      for (const auto& [each, old] : stored.mesh) {
        wanted += fmt::format("{}{}=N", wanted.empty() ? "" : ",", each);
      }
      mesh::throw_error<mesh::UsageError>(fmt::format(
          "[checkpoint] reshard: tensor {} was sharded on a mesh of {}, but "
          "mesh \"{}\" {} {}. Name all dims, in this order: {}",
          in_quotes(name),
          [&] {
            std::string text;
            for (const auto& [each, old] : stored.mesh) {
              text +=
                  fmt::format("{}{}={}", text.empty() ? "" : " ", each, old);
            }
            return text;
          }(),
          mesh.to_string(),
          found == names.end() ? "lacks the dim" : "has another place for",
          dim,
          wanted));
    }
    dims.push_back(index);
  }
  return dims;
}

// Returns the placement on a mesh with `new_sizes`. The split factor of a
// StridedShard is a product: of the sizes of later mesh dims that shard the
// same tensor dim, which have changed, and of a rest for chunks that no mesh
// dim makes. See Note [Order of shards] in dtensor/spec/dim_shards.cpp.
Placement restrided(
    const Stored& stored,
    size_t at,
    const std::vector<int64_t>& new_sizes) {
  const auto& own = stored.placements[at];
  int64_t left = own.split_factor();
  int64_t factor = 1;
  for (size_t later = stored.mesh.size(); later-- > at + 1;) {
    const auto old_size = stored.mesh[later].second;
    if (stored.placements[later].is_shard(own.tensor_dim()) && old_size > 1 &&
        left % old_size == 0) {
      left /= old_size;
      factor *= new_sizes[later];
    }
  }
  factor *= left;
  return factor == 1 ? dtensor::Shard(own.tensor_dim())
                     : dtensor::StridedShard(own.tensor_dim(), factor);
}

Placements without_given_sizes(Placements placements) {
  for (auto& each : placements) {
    if (each.has_shard_sizes()) {
      each = dtensor::Shard(each.tensor_dim());
    }
  }
  return placements;
}

bool fits(
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const std::vector<int64_t>& shape) {
  try {
    dtensor::fitted({mesh, placements}, shape);
    return true;
  } catch (const c10::ValueError&) {
    return false;
  }
}

} // namespace

MeshSizes parse_mesh_sizes(std::string_view text) {
  MeshSizes sizes;
  const auto refuse = [&](const std::string& what) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "[checkpoint] mesh {}: {}. The format is dp=2,tp=4",
        in_quotes(text),
        what));
  };
  size_t begin = 0;
  while (begin < text.size()) {
    const auto end = std::min(text.find_first_of(", ", begin), text.size());
    const auto part = text.substr(begin, end - begin);
    begin = end + 1;
    if (part.empty() && text[end] == ' ') {
      continue;
    }
    const auto equals = part.find('=');
    int64_t size = 0;
    const auto digits =
        equals == std::string_view::npos ? "" : part.substr(equals + 1);
    const auto [stop, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), size);
    if (equals == 0 || digits.empty() || error != std::errc() ||
        stop != digits.data() + digits.size() || size < 1) {
      refuse(fmt::format(
          "got {}, expected NAME=SIZE with a size of at least 1",
          in_quotes(part)));
    }
    std::string name(part.substr(0, equals));
    if (std::ranges::find(sizes, name, &MeshSizes::value_type::first) !=
        sizes.end()) {
      refuse(fmt::format("{} is repeated in it", in_quotes(name)));
    }
    sizes.emplace_back(std::move(name), size);
  }
  if (sizes.empty()) {
    refuse("it has no dims");
  }
  return sizes;
}

RemappedSpec remap_spec(
    const std::string& name,
    const TensorRecord& tensor,
    const mesh::DeviceMesh& mesh) {
  if (tensor.mesh.empty()) {
    return {};
  }
  const auto stored = parse_stored(tensor);
  if (!stored) {
    return {
        {},
        fmt::format(
            "tensor {} has unknown placements {} on {}, so it is treated as "
            "replicated",
            name,
            tensor.placements,
            tensor.mesh)};
  }
  const auto dims = dims_in(name, *stored, mesh);
  std::vector<int64_t> new_sizes;
  for (const size_t dim : dims) {
    new_sizes.push_back(mesh.shape()[dim]);
  }
  Placements placements(mesh.shape().size(), dtensor::Replicate());
  bool keeps_sizes = true;
  for (size_t i = 0; i < dims.size(); ++i) {
    auto each = stored->placements[i];
    if (each.is_strided()) {
      each = restrided(*stored, i, new_sizes);
    }
    keeps_sizes =
        keeps_sizes && (!each.has_shard_sizes() ||
                        std::ssize(each.shard_sizes()) == new_sizes[i]);
    placements[dims[i]] = std::move(each);
  }
  const auto even = without_given_sizes(placements);
  if (keeps_sizes && fits(mesh, placements, tensor.shape)) {
    return {{mesh, placements}};
  }
  return {
      {mesh, even},
      fmt::format(
          "{}: the sizes of {} do not fit {}: in equal parts, {}",
          name,
          tensor.placements,
          mesh.to_string(),
          dtensor::to_string(even))};
}

} // namespace weft::checkpoint
