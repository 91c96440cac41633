#include "checkpoint/save/state_items.h"

#include "base/string_streams.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

StateItem
make_item(const std::string& key, const at::Tensor& tensor, const char* op) {
  TORCH_CHECK_VALUE(
      tensor.defined(), "[", op, "] \"", key, "\" is an undefined tensor.");
  dtensor::check_materialized(tensor, op);
  StateItem result{
      .item =
          {.key = key,
           .spec = {},
           .sizes = tensor.sizes().vec(),
           .item_bytes = static_cast<int64_t>(tensor.itemsize())},
      .dtype = tensor.scalar_type(),
      .local = tensor.detach(),
      .whole = {}};
  if (const auto* impl = dtensor::dtensor_impl(tensor)) {
    result.item.spec = impl->spec();
    result.local = impl->local().detach();
    result.whole = tensor;
    TORCH_CHECK_VALUE(
        !impl->spec().has_partial(),
        "[",
        op,
        "] \"",
        key,
        "\" is ",
        dtensor::describe(tensor),
        ": a Partial tensor has no value yet. Redistribute it first.");
  }
  return result;
}

void check_mesh(
    const StateItem& item,
    const mesh::World& world,
    const char* op) {
  const auto& spec = item.item.spec;
  if (spec.mesh_ndim() == 0) {
    return;
  }
  WEFT_CHECK(
      spec.mesh().size() == world.world_size(),
      op,
      mesh::ErrorContext{spec.mesh().describe_rank()},
      "\"",
      item.item.key,
      "\": got a mesh of ",
      spec.mesh().size(),
      " of the ",
      world.world_size(),
      " ranks, expected all, because the values of the other ranks are "
      "unknown. Take it from DistributedDataParallel::state_dict(), or "
      "pass dtensor::on_mesh(tensor, mesh) with a mesh of all ranks.");
}

} // namespace

std::vector<StateItem> list_items(const StateDicts& dicts, const char* op) {
  std::vector<StateItem> items;
  for (const auto& [part, dict] : dicts) {
    for (const auto& [name, tensor] : dict) {
      std::string key = part;
      key.append(".").append(name);
      items.push_back(make_item(key, tensor, op));
    }
  }
  if (const auto world = find_world(items, std::nullopt)) {
    for (const auto& item : items) {
      check_mesh(item, *world, op);
    }
  }
  return items;
}

std::vector<std::string> describe_items(const std::vector<StateItem>& items) {
  std::vector<std::string> lines;
  for (const auto& [item, dtype, local, whole] : items) {
    base::StringWriter out;
    out << item.key << ' ' << c10::toString(dtype) << ' '
        << c10::IntArrayRef(item.sizes) << ' ' << item.spec.to_string();
    lines.push_back(out.str());
  }
  return lines;
}

std::optional<mesh::World> find_world(
    const std::vector<StateItem>& items,
    const std::optional<mesh::World>& given) {
  if (given) {
    return given;
  }
  for (const auto& item : items) {
    if (item.item.spec.mesh_ndim() > 0) {
      return item.item.spec.mesh().world();
    }
  }
  return std::nullopt;
}

std::vector<std::string> exchange_texts(
    const std::optional<mesh::World>& world,
    const std::string& text) {
  if (!world || world->world_size() == 1) {
    return {text};
  }
  auto group = world->group();
  return mesh::all_gather_text(group, text, "checkpoint");
}

int64_t rank_of(const std::optional<mesh::World>& world) {
  return world ? world->rank() : 0;
}

} // namespace weft::checkpoint
