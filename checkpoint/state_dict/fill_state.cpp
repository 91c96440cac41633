#include "checkpoint/state_dict/fill_state.h"

#include <map>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/string_streams.h"
#include "checkpoint/files/text.h"
#include "checkpoint/load/key_pattern.h"
#include "checkpoint/save/held_shards.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"

// Note [Values from rank 0]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// Rank 0 broadcasts the names, sizes and dtypes of its tensors, or its error.
// So all ranks find the same differences before any values are sent. Then the
// full tensors are broadcast in batches, and each rank keeps its part: no rank
// has more than one batch of full tensors at a time.

namespace weft::checkpoint {
namespace {

using dtensor::StateDict;

constexpr int64_t kBatchOfWholes = 32 << 20;

struct TensorInfo {
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
};
using Listing = std::map<std::string, TensorInfo>;

const at::Tensor& part_of(const at::Tensor& tensor) {
  const auto* impl = dtensor::dtensor_impl(tensor);
  return impl ? impl->local() : tensor;
}

Listing list_given(const StateDict& given) {
  Listing listing;
  for (const auto& [name, tensor] : given) {
    listing[name] = {tensor.sizes().vec(), tensor.scalar_type()};
  }
  return listing;
}

void check_defined(const StateDict& given, const FillOptions& options) {
  for (const auto& [name, tensor] : given) {
    TORCH_CHECK_VALUE(
        tensor.defined() && !tensor.is_meta(),
        "[",
        options.op,
        "] ",
        in_quotes(name),
        " has no values.");
    TORCH_CHECK_VALUE(
        !options.from_rank0 || !dtensor::is_dtensor(tensor),
        "[",
        options.op,
        "] ",
        in_quotes(name),
        " is a DTensor; broadcast_from_rank0 takes plain tensors with all "
        "values, as get_model_state_dict() returns with full_state_dict.");
  }
}

// ---- what rank 0 has --------------------------------------------------------

std::string listing_text(const StateDict& given, const FillOptions& options) {
  nlohmann::json text = nlohmann::json::object();
  try {
    check_defined(given, options);
    for (const auto& [name, tensor] : list_given(given)) {
      text[name] = {tensor.sizes, static_cast<int>(tensor.dtype)};
    }
    return base::strict_json_text(text);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) { // a name is not UTF-8
    return fmt::format("[{}] {}", options.op, error.what());
  }
}

std::string broadcast_text(mesh::Communicator& group, const std::string& own) {
  const auto size = at::full({1}, static_cast<int64_t>(own.size()), at::kLong);
  group.broadcast(size, 0, "state_dict").wait();
  const auto bytes = at::empty({size.item<int64_t>()}, at::kByte);
  auto* data = static_cast<char*>(bytes.mutable_data_ptr());
  if (group.rank() == 0) {
    std::copy(own.begin(), own.end(), data);
  }
  group.broadcast(bytes, 0, "state_dict").wait();
  return {data, static_cast<size_t>(bytes.numel())};
}

Listing listing_of_rank0(
    mesh::Communicator& group,
    const StateDict& given,
    const FillOptions& options) {
  const auto own = group.rank() == 0 ? listing_text(given, options) : "";
  const auto text = broadcast_text(group, own);
  TORCH_CHECK_VALUE(text.starts_with('{'), text, " (rank 0)");
  Listing listing;
  const auto parsed = base::parse_json(text);
  for (const auto& [name, value] : parsed.items()) {
    listing[name] = {
        value.at(0).get<std::vector<int64_t>>(),
        static_cast<at::ScalarType>(value.at(1).get<int>())};
  }
  return listing;
}

// ---- checks -----------------------------------------------------------------

// Throws on all ranks if they pass different states. Redistribution needs all
// ranks, so a rank without a tensor would block the others.
void check_ranks_give_alike(
    const mesh::World& world,
    const StateDict& given,
    const FillOptions& options) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : given) {
    base::StringWriter line;
    line << name;
    if (tensor.defined()) {
      line << ' ' << tensor.sizes() << ' '
           << (dtensor::is_dtensor(tensor)
                   ? dtensor::spec_of(tensor).to_string()
               : tensor.device().type() == at::kMeta ? "meta"
                                                     : "plain");
    }
    lines.push_back(line.str());
  }
  auto group = world.group();
  mesh::check_lines_match(
      group,
      lines,
      {.op = options.op,
       .what = "the state to set",
       .hint = "Where only rank 0 has it, pass broadcast_from_rank0.",
       .where = fmt::format("rank {}/{}", world.rank(), world.world_size())});
}

KeyDifferences compare_keys(const StateDict& targets, const Listing& given) {
  KeyDifferences differences;
  for (const auto& [name, target] : targets) {
    const auto found = given.find(name);
    if (found == given.end()) {
      differences.missing.push_back(name);
    } else if (target.sizes() != found->second.sizes) {
      differences.mismatched.push_back(fmt::format(
          "{} {} given vs {} to fill",
          in_quotes(name),
          to_text(found->second.sizes),
          to_text(target.sizes().vec())));
    }
  }
  for (const auto& [name, tensor] : given) {
    if (!targets.contains(name)) {
      differences.unexpected.push_back(name);
    }
  }
  return differences;
}

IncompatibleKeys check_keys(
    const StateDict& targets,
    const Listing& given,
    const FillOptions& options) {
  auto differences = compare_keys(targets, given);
  IncompatibleKeys keys{differences.missing, differences.unexpected};
  if (!options.strict) {
    differences.missing.clear();
    differences.unexpected.clear();
  }
  TORCH_CHECK_VALUE(
      differences.empty(),
      "[",
      options.op,
      "] the state does not match: ",
      to_string(differences),
      ".",
      differences.missing.empty() && differences.unexpected.empty()
          ? ""
          : " Set StateDictOptions.strict = false to load only the common "
            "keys.");
  return keys;
}

// ---- values -----------------------------------------------------------------

void take_part(const at::Tensor& target, const at::Tensor& whole) {
  const auto* impl = dtensor::dtensor_impl(target);
  if (!impl) {
    target.copy_(whole);
    return;
  }
  const auto& spec = impl->spec();
  std::vector<int64_t> coordinate;
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    coordinate.push_back(spec.mesh().coordinate(i));
  }
  for (const auto& held : held_shards(spec, target.sizes(), coordinate)) {
    auto to = impl->local();
    auto from = whole;
    for (size_t d = 0; d < held.at.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      to = to.narrow(dim, held.at[d], held.box.sizes[d]);
      from = from.narrow(dim, held.box.offset[d], held.box.sizes[d]);
    }
    to.copy_(from);
  }
}

void take_value(const at::Tensor& target, const at::Tensor& given) {
  if (!dtensor::is_dtensor(given)) {
    take_part(target, given);
    return;
  }
  auto value = given.detach();
  if (const auto* impl = dtensor::dtensor_impl(target)) {
    const auto& spec = impl->spec();
    if (spec.mesh_ndim() > 0) {
      value = dtensor::redistribute(
          dtensor::on_mesh(value, spec.mesh()), spec.placements());
    }
  } else {
    value = dtensor::full_tensor(value);
  }
  if (!part_of(value).is_alias_of(part_of(target))) {
    part_of(target).copy_(part_of(value));
  }
}

void broadcast_and_take(
    mesh::Communicator& group,
    const StateDict& targets,
    const Listing& listing,
    const StateDict& given) {
  std::vector<at::Tensor> wholes;
  std::vector<at::Tensor> into;
  int64_t bytes = 0;
  const auto flush = [&] {
    std::vector<at::Tensor> raw; // sent as bytes, as backends lack some dtypes
    for (const auto& whole : wholes) {
      raw.push_back(whole.view({-1}).view(at::kByte));
    }
    if (!raw.empty()) {
      group.broadcast_coalesced(raw, 0, "state_dict").wait();
    }
    for (size_t i = 0; i < wholes.size(); ++i) {
      take_part(into[i], wholes[i]);
    }
    wholes.clear();
    into.clear();
    bytes = 0;
  };
  for (const auto& [name, tensor] : listing) {
    const auto target = targets.find(name);
    if (target == targets.end()) {
      continue;
    }
    const auto whole = group.rank() == 0
                           ? given.at(name).detach().cpu().contiguous()
                           : at::empty(tensor.sizes, tensor.dtype);
    if (bytes + static_cast<int64_t>(whole.nbytes()) > kBatchOfWholes) {
      flush();
    }
    wholes.push_back(whole);
    into.push_back(target->second);
    bytes += static_cast<int64_t>(whole.nbytes());
  }
  flush();
}

} // namespace

IncompatibleKeys fill_state(
    const StateDict& targets,
    const StateDict& given,
    const FillOptions& options) {
  const at::NoGradGuard no_grad;
  const bool is_alone = !options.mesh || options.mesh->size() == 1;
  TORCH_CHECK_VALUE(
      is_alone || options.mesh->size() == options.mesh->world().world_size(),
      "[",
      options.op,
      "] mesh ",
      options.mesh->to_string(),
      " has ",
      options.mesh->size(),
      " of ",
      options.mesh->world().world_size(),
      " ranks. Pass a mesh of all ranks as StateDictOptions.mesh.");
  if (options.from_rank0 && !is_alone) {
    auto group = options.mesh->world().group();
    const auto listing = listing_of_rank0(group, given, options);
    auto keys = check_keys(targets, listing, options);
    broadcast_and_take(group, targets, listing, given);
    return keys;
  }
  if (!is_alone) {
    check_ranks_give_alike(options.mesh->world(), given, options);
  }
  check_defined(given, options);
  auto keys = check_keys(targets, list_given(given), options);
  for (const auto& [name, target] : targets) {
    if (const auto found = given.find(name); found != given.end()) {
      take_value(target, found->second);
    }
  }
  return keys;
}

} // namespace weft::checkpoint
