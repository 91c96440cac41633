#include "hf/weight_reader.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/files/text.h"
#include "checkpoint/format/dtype.h"
#include "mesh/error/error.h"

namespace weft::hf {
namespace {

// The maximum number of names in one message: a config.json may require a
// million tensors.
constexpr size_t kMaxNames = 200;

bool is_plain_float(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16 ||
         dtype == at::kDouble;
}

// Adds a text like "2 missing (a, b)".
void add_list(
    std::vector<std::string>& faults,
    const char* what,
    const std::vector<std::string>& names) {
  if (!names.empty()) {
    const auto some = std::span(names).first(std::min(names.size(), kMaxNames));
    faults.push_back(fmt::format(
        "{} {} ({}{})",
        names.size(),
        what,
        fmt::join(some, ", "),
        some.size() < names.size() ? ", ..." : ""));
  }
}

ModelFiles open_files(
    const std::filesystem::path& folder,
    const std::string& place) {
  try {
    return ModelFiles(folder);
  } catch (const mesh::UsageError& error) {
    mesh::throw_error<mesh::UsageError>(
        fmt::format("{}: {}", place, error.what_without_backtrace()));
  }
}

} // namespace

std::map<std::string, std::string> names_in(
    const ModelFiles& files,
    const TensorMap& map) {
  const auto& there = files.tensors();
  const bool has_prefix = std::ranges::any_of(there, [&](const auto& entry) {
    return entry.first.starts_with(map.prefix);
  });
  std::map<std::string, std::string> names;
  const auto add = [&](const std::string& name) {
    const bool strip = !has_prefix && name.starts_with(map.prefix);
    auto own = strip ? name.substr(map.prefix.size()) : name;
    if (there.contains(own)) {
      names.emplace(name, std::move(own));
    }
  };
  for (const auto& [name, shape] : map.hub) {
    add(name);
  }
  for (const auto& [name, original] : map.copies) {
    add(name);
    // save_model() of safetensors stores tensors that share memory under one
    // name, which may be the name of the copy.
    if (names.contains(name) && !names.contains(original)) {
      names.emplace(original, names.at(name));
      names.erase(name);
    }
  }
  return names;
}

WeightReader::WeightReader(
    const config::ModelConfig& model,
    const std::filesystem::path& folder,
    std::string place)
    : place_(std::move(place)),
      files_(open_files(folder, place_)),
      map_(tensor_map(model)),
      names_(names_in(files_, map_)) {
  check_tensors();
}

void WeightReader::refuse_folder(const std::string& what) const {
  mesh::throw_error<mesh::UsageError>(
      fmt::format("{}: {}: {}", place_, files_.folder().string(), what));
}

void WeightReader::check_tensors() const {
  std::vector<std::string> missing;
  std::vector<std::string> misshapen;
  std::set<std::string> known;
  const auto look = [&](const std::string& name, const Sizes& shape) {
    const auto& own = names_.at(name);
    const auto& tensor = files_.tensors().at(own);
    known.insert(own);
    if (tensor.shape != shape || !is_plain_float(tensor.dtype)) {
      misshapen.push_back(fmt::format(
          "{} is {} {} in {}, not {}",
          own,
          checkpoint::plain_name(tensor.dtype),
          checkpoint::to_text(tensor.shape),
          tensor.file,
          checkpoint::to_text(shape)));
    }
  };
  for (const auto& [name, shape] : map_.hub) {
    if (names_.contains(name)) {
      look(name, shape);
    } else {
      missing.push_back(name);
    }
  }
  for (const auto& [name, original] : map_.copies) {
    if (names_.contains(name)) {
      look(name, map_.hub.at(original));
    }
  }
  std::vector<std::string> extra;
  for (const auto& [name, tensor] : files_.tensors()) {
    if (!known.contains(name) && !is_obsolete_buffer(name)) {
      extra.push_back(fmt::format("{} in {}", name, tensor.file));
    }
  }
  std::vector<std::string> faults;
  add_list(faults, "missing", missing);
  add_list(faults, "not expected", extra);
  add_list(faults, "of another shape or type", misshapen);
  add_list(faults, "named by the index but not there", files_.absent());
  if (!faults.empty()) {
    refuse_folder(fmt::format(
        "its tensors do not match its config.json: {}",
        fmt::join(faults, "; ")));
  }
}

void WeightReader::read(
    const std::string& name,
    const Box& own,
    const at::Tensor& out) const {
  for (const auto& piece : map_.model.at(name).pieces) {
    const auto part = overlap(own, {piece.offset, piece.shape});
    if (!part) {
      continue;
    }
    const auto target = hub_view(out, own, *part, piece);
    const auto offset = hub_offset(piece, *part);
    files_.read_box(names_.at(piece.hub_name), offset, target);
    for (const auto& [copy, original] : map_.copies) {
      if (original == piece.hub_name && names_.contains(copy)) {
        check_copy(copy, original, offset, target);
      }
    }
  }
}

// Checks block by block that a tied head equals the embedding.
void WeightReader::check_copy(
    const std::string& copy,
    const std::string& original_name,
    const Sizes& offset,
    const at::Tensor& original) const {
  constexpr int64_t kMaxElements = 1 << 18;
  const auto max_rows = std::max<int64_t>(
      kMaxElements / std::max<int64_t>(original.size(1), 1), 1);
  for (int64_t r = 0; r < original.size(0); r += max_rows) {
    const auto rows =
        original.narrow(0, r, std::min(max_rows, original.size(0) - r));
    const auto other = at::empty(rows.sizes(), at::TensorOptions(rows.dtype()));
    files_.read_box(names_.at(copy), {offset[0] + r, offset[1]}, other);
    // The bits must be equal, except for NaNs and the sign of zeros.
    if (!at::allclose(
            other, rows.cpu(), /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true)) {
      refuse_folder(fmt::format(
          "{} differs from {}, but config.json ties their weights. Set "
          "tie_word_embeddings to false in config.json",
          copy,
          original_name));
    }
  }
}

} // namespace weft::hf
