#include "dtensor/nn/local_map.h"

#include <algorithm>
#include <numeric>

#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/spec/mesh_arguments.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

// Returns true if local sizes may differ between ranks: a Shard has given
// sizes, or a mesh dim does not divide the dim that it shards.
bool is_uneven(const at::Tensor& dtensor) {
  const auto& spec = spec_of(dtensor);
  auto sizes = dtensor.sizes().vec();
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    const auto& placement = spec.placement(i);
    if (placement.has_shard_sizes()) {
      return true;
    }
    if (placement.is_shard()) {
      auto& rows = sizes[placement.tensor_dim()];
      if (rows % spec.mesh().size(i) != 0) {
        return true;
      }
      rows /= spec.mesh().size(i);
    }
  }
  return false;
}

struct LocalMap {
  TensorFunction function;
  std::vector<Placements> out_placements;
  LocalMapOptions options;

  std::vector<at::Tensor> operator()(
      const std::vector<at::Tensor>& inputs) const;

 private:
  at::Tensor
  place(const at::Tensor& input, size_t i, const mesh::DeviceMesh& mesh) const;
  bool cuts_an_output(size_t mesh_dim) const;
  Placements gradient_placements(
      const std::vector<at::Tensor>& inputs,
      size_t i,
      const mesh::DeviceMesh& mesh) const;
  at::Tensor leave(
      const at::Tensor& output,
      size_t i,
      const mesh::DeviceMesh& mesh,
      bool uneven) const;
};

at::Tensor LocalMap::place(
    const at::Tensor& input,
    size_t i,
    const mesh::DeviceMesh& mesh) const {
  WEFT_CHECK(
      spec_of(input).mesh() == mesh,
      "local_map",
      context_of(mesh),
      "input ",
      i,
      " is on another mesh than ",
      mesh.to_string(),
      ": ",
      describe(input),
      ".");
  if (!options.in_placements.empty()) {
    const auto& wanted = options.in_placements[i];
    WEFT_CHECK(
        wanted,
        "local_map",
        context_of(mesh),
        "input ",
        i,
        " is a DTensor, but in_placements has no entry for it: ",
        describe(input),
        ".");
    const auto target = spec_of(input).with(normalized(*wanted, input.dim()));
    WEFT_CHECK(
        options.redistribute_inputs ||
            fitted(target, input.sizes()) == spec_of(input),
        "local_map",
        context_of(mesh),
        "input ",
        i,
        " must have the placements in in_placements: ",
        describe(input),
        " vs ",
        to_string(target.placements()),
        ". Redistribute it, or set redistribute_inputs.");
    return redistribute(input, target.placements());
  }
  return input;
}

bool LocalMap::cuts_an_output(size_t mesh_dim) const {
  return std::ranges::any_of(out_placements, [&](const Placements& output) {
    return mesh_dim < output.size() && output[mesh_dim] != Replicate();
  });
}

// `inputs` are the results of place().
Placements LocalMap::gradient_placements(
    const std::vector<at::Tensor>& inputs,
    size_t i,
    const mesh::DeviceMesh& mesh) const {
  if (!options.in_grad_placements.empty() && options.in_grad_placements[i]) {
    return *options.in_grad_placements[i];
  }
  const auto& spec = spec_of(inputs[i]);
  auto placements = spec.without_partial().placements();
  for (int64_t d = 0; d < mesh.ndim(); ++d) {
    if (spec.placement(d) != Replicate()) {
      continue;
    }
    if (cuts_an_output(d)) {
      placements[d] = Partial();
      continue;
    }
    const bool is_alone = std::ranges::all_of(inputs, [&](const auto& input) {
      return !is_dtensor(input) || spec_of(input).placement(d) == Replicate();
    });
    WEFT_CHECK(
        is_alone || !inputs[i].requires_grad() || !at::GradMode::is_enabled(),
        "local_map",
        context_of(mesh),
        "input ",
        i,
        " is replicated along \"",
        mesh.mesh_dim_names()[d],
        "\" and requires a gradient, but another input is sharded along it and "
        "all outputs are replicated, so it is unclear whether the gradient is "
        "Partial: ",
        describe(inputs[i]),
        ". Set in_grad_placements: Replicate if this rank's gradient is the "
        "full gradient, Partial if it is one term of it.");
  }
  return placements;
}

std::vector<int64_t>
exchange_rows(int64_t rows, const mesh::DeviceMesh& mesh, int64_t mesh_dim) {
  const auto mine = at::full({1}, rows, at::kLong);
  auto all = at::empty({mesh.size(mesh_dim)}, at::kLong);
  mesh.group(mesh_dim).all_gather(all, mine, "local_map").wait();
  return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
}

// Returns the global sizes of an output, computed from the local sizes of all
// ranks. Replaces each chunked Shard by one with these sizes.
std::vector<int64_t> agree_on_sizes(
    const at::Tensor& output,
    Placements& placements,
    const mesh::DeviceMesh& mesh) {
  auto sizes = output.sizes().vec();
  std::vector<bool> cut(sizes.size());
  for (int64_t d = 0; d < mesh.ndim(); ++d) {
    auto& placement = placements[d];
    if (!placement.is_shard()) {
      continue;
    }
    const int64_t dim = placement.tensor_dim();
    WEFT_CHECK(
        !cut[dim],
        "local_map",
        context_of(mesh),
        "two mesh dims shard dim ",
        dim,
        " of an output whose shards may differ in size: ",
        to_string(placements),
        ". Give out_sizes.");
    cut[dim] = true;
    auto rows = exchange_rows(sizes[dim], mesh, d);
    sizes[dim] = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    if (placement.is_chunked()) {
      placement = Shard(dim, std::move(rows));
    }
  }
  return sizes;
}

at::Tensor LocalMap::leave(
    const at::Tensor& output,
    size_t i,
    const mesh::DeviceMesh& mesh,
    bool uneven) const {
  WEFT_CHECK(
      !is_dtensor(output),
      "local_map",
      context_of(mesh),
      "output ",
      i,
      " is a DTensor, but the function must return local tensors: ",
      describe(output),
      ".");
  auto placements = normalized(out_placements[i], output.dim());
  FromLocalOptions how;
  if (!options.out_sizes.empty()) {
    how.sizes = options.out_sizes[i];
  } else if (uneven) {
    how.sizes = agree_on_sizes(output, placements, mesh);
  }
  return from_local(output, mesh, placements, how);
}

std::vector<at::Tensor> LocalMap::operator()(
    const std::vector<at::Tensor>& inputs) const {
  auto mesh = options.mesh;
  bool any = false;
  for (const auto& input : inputs) {
    if (is_dtensor(input)) {
      any = true;
      mesh = mesh ? mesh : spec_of(input).mesh();
    }
  }
  if (!any) {
    return function(inputs);
  }
  const auto check_count = [&](const char* what, size_t given, size_t needed) {
    WEFT_CHECK(
        given == needed,
        "local_map",
        context_of(*mesh),
        what,
        ": ",
        given,
        " vs ",
        needed,
        ". Give one for each.");
  };
  if (!options.in_placements.empty()) {
    check_count("in_placements", options.in_placements.size(), inputs.size());
  }
  if (!options.in_grad_placements.empty()) {
    check_count(
        "in_grad_placements", options.in_grad_placements.size(), inputs.size());
  }
  std::vector<at::Tensor> placed;
  bool uneven = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    placed.push_back(
        is_dtensor(inputs[i]) ? place(inputs[i], i, *mesh) : inputs[i]);
    uneven |= is_dtensor(inputs[i]) && is_uneven(placed[i]);
  }
  std::vector<at::Tensor> locals;
  for (size_t i = 0; i < inputs.size(); ++i) {
    locals.push_back(
        is_dtensor(placed[i])
            ? to_local(placed[i], gradient_placements(placed, i, *mesh))
            : placed[i]);
  }
  auto outputs = function(locals);
  check_count("out_placements", out_placements.size(), outputs.size());
  if (!options.out_sizes.empty()) {
    check_count("out_sizes", options.out_sizes.size(), outputs.size());
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i] = leave(outputs[i], i, *mesh, uneven);
  }
  return outputs;
}

} // namespace

TensorFunction local_map(
    TensorFunction function,
    std::vector<Placements> out_placements,
    LocalMapOptions options) {
  return LocalMap{
      std::move(function), std::move(out_placements), std::move(options)};
}

} // namespace weft::dtensor
