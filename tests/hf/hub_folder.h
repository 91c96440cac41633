#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/config/fixtures.h"

// Folders as transformers saves them (oracle/hub.py), and what tests change in
// them.
namespace weft::hf {

inline std::filesystem::path stored_hub_folder(const std::string& name) {
  return std::filesystem::path(WEFT_SOURCE_DIR) / "tests/hf/oracle/hub" / name;
}

inline nlohmann::json stored_hub_results(const std::string& name) {
  std::ifstream file(WEFT_SOURCE_DIR "/tests/hf/oracle/hub.json");
  return nlohmann::json::parse(file).at(name);
}

/// A copy of a stored folder, to be changed.
inline std::filesystem::path copy_hub_folder(
    const std::string& name,
    const fixtures::TempFolder& temp,
    const std::string& to = "model") {
  const std::filesystem::path path = temp / to;
  std::filesystem::copy(stored_hub_folder(name), path);
  return path;
}

/// A safetensors file as JSON of its header and its bytes behind it.
struct TensorFile {
  nlohmann::ordered_json header;
  std::string data;

  static TensorFile read(const std::filesystem::path& path) {
    const auto text = fixtures::read_text(path);
    uint64_t length = 0;
    std::memcpy(&length, text.data(), sizeof(length));
    return {
        nlohmann::ordered_json::parse(text.substr(8, length)),
        text.substr(8 + length)};
  }
  void write(const std::filesystem::path& path) const {
    const auto json = header.dump();
    const auto length = static_cast<uint64_t>(json.size());
    std::string bytes(sizeof(length), '\0');
    std::memcpy(bytes.data(), &length, sizeof(length));
    std::ofstream(path, std::ios::binary) << bytes << json << data;
  }
  void add(
      const std::string& name,
      const std::string& dtype,
      const std::vector<int64_t>& shape,
      const std::string& bytes) {
    header[name] = {
        {"dtype", dtype},
        {"shape", shape},
        {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }
  std::string bytes_of(const std::string& name) const {
    const auto& offsets = header.at(name).at("data_offsets");
    const auto begin = offsets[0].get<size_t>();
    return data.substr(begin, offsets[1].get<size_t>() - begin);
  }
  /// Under another name, or not at all.
  void rename(const std::string& from, const std::string& to) {
    TensorFile changed{{{"__metadata__", {{"format", "pt"}}}}, ""};
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__" || (name == from && to.empty())) {
        continue;
      }
      changed.add(
          name == from ? to : name,
          entry.at("dtype"),
          entry.at("shape"),
          bytes_of(name));
    }
    *this = std::move(changed);
  }
};

/// dtype, shape and bytes of every tensor of a folder's files.
inline std::map<std::string, std::string> all_hub_tensors(
    const std::filesystem::path& folder) {
  std::map<std::string, std::string> tensors;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") {
      continue;
    }
    const auto file = TensorFile::read(entry.path());
    for (const auto& [name, tensor] : file.header.items()) {
      if (name != "__metadata__") {
        tensors[name] = tensor.at("dtype").dump() + tensor.at("shape").dump() +
                        file.bytes_of(name);
      }
    }
  }
  return tensors;
}

/// The least that a recipe with model.from says.
inline std::string hub_recipe(
    const std::filesystem::path& folder,
    int64_t dp,
    int64_t tp,
    const std::string& more = "") {
  return "mesh: {dp: " + std::to_string(dp) + ", tp: " + std::to_string(tp) +
         "}\nmodel: {from: " + folder.string() +
         "}\ndata: {paths: [text.txt], sequence_length: 40}\n"
         "train: {global_batch_size: 4}\n" +
         more;
}

} // namespace weft::hf
