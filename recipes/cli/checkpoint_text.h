#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/manifest.h"

namespace CLI {
class App;
} // namespace CLI

/// What the subcommands of `weft checkpoint` share.
namespace weft::recipes::cli {

struct CheckpointArguments {
  std::string path;
  std::string other; // diff's second folder, inspect's tensor
  bool json = false;
};

/// To stdout, with a line feed.
void print(const std::string& text);
void print(const nlohmann::ordered_json& json);

/// "1.5 MiB".
std::string size_text(int64_t bytes);
/// "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape);

/// Of all files without the manifest; of all chunks.
int64_t bytes_of(const checkpoint::Manifest& manifest);
int64_t bytes_of(const checkpoint::TensorRecord& tensor);

/// `path`/checkpoints if `path` is the folder of a run, else `path`.
std::filesystem::path checkpoints_of(const std::filesystem::path& path);

/// The steps that `path` stands for: of a run, of a folder checkpoints/, or the
/// one that it is itself. Newest first, at least one.
/// Throws: mesh::UsageError if there is no such folder.
std::vector<std::filesystem::path> steps_of(const std::filesystem::path& path);

/// The first of them; says on stderr which it takes.
std::filesystem::path newest_step_of(const std::filesystem::path& path);

/// Adds `import` and `export`.
void add_checkpoint_hub(CLI::App& checkpoint);

/// `weft checkpoint inspect`.
void inspect_checkpoint(const CheckpointArguments& arguments);

} // namespace weft::recipes::cli
