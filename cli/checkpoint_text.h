#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/format/manifest.h"
#include "checkpoint/load/key_pattern.h"

namespace CLI {
class App;
} // namespace CLI

/// Helpers of the subcommands of `weft checkpoint`.
namespace weft::cli {

/// The output options of a subcommand.
struct OutputOptions {
  bool json = false;
  bool quiet = false;

  bool wants_progress() const { return !json && !quiet; }
};

struct CheckpointArguments : OutputOptions {
  std::string path;
  std::string other; // diff's second folder, inspect's tensor
  std::string hmac_key_file;
  bool verify = false; // of ls
};

/// Adds --json, or --quiet for commands that show progress.
void add_json(CLI::App& command, OutputOptions& options);
void add_quiet(CLI::App& command, OutputOptions& options);
/// Adds --hmac-key-file.
void add_key(CLI::App& command, std::string& file);

/// Adds --rename.
void add_rename(CLI::App& command, std::vector<std::string>& texts);

/// Parses rules "REGEX=REPLACEMENT".
/// Throws: mesh::UsageError if one has no "=" or nothing before it.
std::vector<checkpoint::RenameRule> rules_of(
    const std::vector<std::string>& texts);

/// Runs `body` and reports its invalid values as command line errors: a
/// malformed pattern, or a rule that leaves an empty name.
/// Throws: mesh::UsageError for a c10::ValueError.
void as_usage(const std::function<void()>& body);

/// Returns the content of a key file without a final newline, or "" if `file`
/// is empty. The file may be a pipe.
/// Throws: mesh::UsageError if it cannot be read or does not have 16 to 4096
/// bytes.
std::string read_key(const std::string& file);

/// Prints to stdout, followed by a newline.
void print(const std::string& text);
void print(const nlohmann::ordered_json& json);

/// Prints lines of cells in columns. `alignment` has '<' or '>' for each.
void print_table(
    const std::vector<std::vector<std::string>>& lines,
    std::string_view alignment);

/// Returns "1.5 MiB".
std::string size_text(int64_t bytes);
/// Returns "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape);

/// Returns the bytes of all files without the manifest, or of all chunks of a
/// tensor.
int64_t bytes_of(const checkpoint::Manifest& manifest);
int64_t bytes_of(const checkpoint::TensorRecord& tensor);
/// Returns the mesh of most tensors. Empty if no tensor was on a mesh.
std::string mesh_of(const checkpoint::Manifest& manifest);

/// Returns `path`/checkpoints if `path` is the folder of a run, otherwise
/// `path`.
std::filesystem::path checkpoints_of(const std::filesystem::path& path);

/// The steps that `path` stands for: of a run, of a folder checkpoints/, or the
/// one that it is itself. Newest first, at least one.
/// Throws: mesh::UsageError if there is no such folder, or if it is a run
/// without checkpoints.
std::vector<std::filesystem::path> steps_of(const std::filesystem::path& path);

/// The first of them; says on stderr which it takes.
std::filesystem::path newest_step_of(const std::filesystem::path& path);

/// A step folder; or a run, or its folder of checkpoints, for its newest.
extern const char* const kAnyFolder;

/// Each adds a subcommand; the second `ls` and `prune`.
void add_checkpoint_import(CLI::App& checkpoint);
void add_checkpoint_store(CLI::App& checkpoint);
void add_checkpoint_reshard(CLI::App& checkpoint);
void add_checkpoint_export(CLI::App& checkpoint);

/// `weft checkpoint inspect`.
void inspect_checkpoint(const CheckpointArguments& arguments);

} // namespace weft::cli
