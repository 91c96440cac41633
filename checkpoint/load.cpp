#include "checkpoint/load.h"

#include <functional>
#include <numeric>
#include <set>
#include <span>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "checkpoint/error.h"
#include "checkpoint/state_items.h"
#include "checkpoint/store.h"
#include "checkpoint/tensor_file.h"
#include "mesh/error.h"

namespace weft::checkpoint {
namespace {

constexpr const char* kOp = "checkpoint.load";
constexpr size_t kMostListed = 5;

std::string list(const std::vector<std::string>& keys) {
  std::string text;
  for (size_t i = 0; i < keys.size() && i < kMostListed; ++i) {
    text.append(i == 0 ? "\"" : ", \"").append(keys[i]).append("\"");
  }
  if (keys.size() > kMostListed) {
    text.append(" and ")
        .append(std::to_string(keys.size() - kMostListed))
        .append(" more");
  }
  return text;
}

// The same on every rank: it looks at nothing but the manifest and what all
// ranks ask for alike.
void check_keys(
    const std::filesystem::path& folder,
    const Manifest& manifest,
    const std::vector<StateItem>& items,
    const StateDicts& dicts,
    bool strict) {
  std::set<std::string> wanted;
  std::vector<std::string> missing;
  for (const auto& item : items) {
    wanted.insert(item.item.key);
    if (!manifest.tensors.contains(item.item.key)) {
      missing.push_back(item.item.key);
    }
  }
  std::vector<std::string> unexpected;
  for (const auto& [key, record] : manifest.tensors) {
    const auto part = key.substr(0, key.find('.'));
    if (strict && dicts.contains(part) && !wanted.contains(key)) {
      unexpected.push_back(key);
    }
  }
  TORCH_CHECK_VALUE(
      missing.empty(),
      "[",
      kOp,
      "] ",
      folder.string(),
      " lacks ",
      list(missing),
      unexpected.empty() ? "" : "; it has ",
      list(unexpected),
      ". It is of another model, or of another part of one.");
  TORCH_CHECK_VALUE(
      unexpected.empty(),
      "[",
      kOp,
      "] ",
      folder.string(),
      " has ",
      list(unexpected),
      ", which nothing asked for. Load a state with those tensors, or pass "
      "LoadOptions.strict = false to leave them.");
}

void check_shapes(
    const std::filesystem::path& folder,
    const Manifest& manifest,
    const std::vector<StateItem>& items) {
  for (const auto& item : items) {
    const auto& record = manifest.tensors.at(item.item.key);
    TORCH_CHECK_VALUE(
        record.shape == item.item.sizes && record.dtype == item.dtype,
        "[",
        kOp,
        "] \"",
        item.item.key,
        "\": ",
        c10::IntArrayRef(record.shape),
        " ",
        c10::toString(record.dtype),
        " in ",
        folder.string(),
        " vs ",
        c10::IntArrayRef(item.item.sizes),
        " ",
        c10::toString(item.dtype),
        " to load into. Build the model that was saved, or convert it.");
  }
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

/// Where the values can be read to at once: the tensor itself, or none.
bool is_readable_into(const at::Tensor& local) {
  return local.is_contiguous() && local.device().is_cpu() && !local.is_neg() &&
         !local.is_conj();
}

/// Reads one rank's part of every tensor, and afterwards puts in place what
/// could not be, or must not yet be.
class Reading {
 public:
  Reading(
      const Folder& folder,
      const Manifest& manifest,
      const std::vector<StateItem>& items,
      bool all_or_nothing)
      : reader_(folder, manifest),
        items_(items),
        all_or_nothing_(all_or_nothing) {}

  void read() {
    for (const auto& item : items_) {
      const auto& local = item.local;
      if (local.numel() == 0) {
        continue;
      }
      const bool in_place = !all_or_nothing_ && is_readable_into(local);
      const auto target =
          in_place ? local
                   : at::empty(local.sizes(), at::TensorOptions(local.dtype()));
      const auto box = dtensor::local_box(item.item.spec, item.item.sizes);
      reader_.read_box(item.item.key, box.offset, box.sizes, bytes_of(target));
      if (!in_place) {
        staged_.emplace_back(local, target);
      }
    }
  }

  void put_in_place() {
    const at::NoGradGuard no_grad;
    for (const auto& [local, values] : staged_) {
      local.copy_(values);
    }
    for (const auto& item : items_) {
      // Written behind autograd's back.
      const auto& changed = item.whole.defined() ? item.whole : item.local;
      changed.unsafeGetTensorImpl()->bump_version();
    }
  }

  int64_t bytes_read() const { return reader_.bytes_read(); }

 private:
  ChunkReader reader_;
  const std::vector<StateItem>& items_;
  bool all_or_nothing_;
  std::vector<std::pair<at::Tensor, at::Tensor>> staged_;
};

/// "" if `act` went well, else what is wrong.
std::string error_of(const std::function<void()>& act) {
  try {
    act();
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// `errors` by rank; an empty one means that all went well there.
void throw_first_error(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) {
      mesh::throw_error<CheckpointError>(
          errors.size() == 1
              ? errors[rank]
              : mesh::detail::concat(errors[rank], " (rank ", rank, ")"));
    }
  }
}

} // namespace

Manifest read_manifest(
    const std::filesystem::path& step_folder,
    const std::optional<mesh::World>& world) {
  Manifest manifest;
  throw_first_error(exchange_texts(
      world, error_of([&] { manifest = read_manifest(step_folder); })));
  return manifest;
}

LoadStats load(
    const std::filesystem::path& step_folder,
    const Manifest& manifest,
    const StateDicts& dicts,
    const LoadOptions& options) {
  const auto items = list_items(dicts, kOp);
  const auto world = find_world(items, options.world);
  check_items_agree(items, world);
  check_keys(step_folder, manifest, items, dicts, options.strict);
  check_shapes(step_folder, manifest, items);

  LoadStats stats;
  std::optional<StepPin> pin;
  std::optional<Reading> reading;
  const auto own = error_of([&] {
    pin.emplace(step_folder);
    reading.emplace(pin->folder(), manifest, items, options.all_or_nothing);
    reading->read();
    stats.bytes_read = reading->bytes_read();
  });
  throw_first_error(exchange_texts(world, own));
  reading->put_in_place();
  return stats;
}

LoadStats load(
    const std::filesystem::path& step_folder,
    const StateDicts& dicts,
    const LoadOptions& options) {
  const auto world = find_world(list_items(dicts, kOp), options.world);
  return load(step_folder, read_manifest(step_folder, world), dicts, options);
}

} // namespace weft::checkpoint
