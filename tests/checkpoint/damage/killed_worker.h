#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/files/folder.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/save/save.h"
#include "tests/checkpoint/sample.h"

namespace weft::test {

/// How often damage was done, and who found it.
struct DamageCount {
  int64_t done = 0;
  int64_t by_verify = 0;
  int64_t by_load = 0;
};

/// A step folder that is damaged in place and made whole again, thousands of
/// times.
class Victim {
 public:
  /// Damages `step_folder` itself, which holds `tensors`.
  Victim(std::filesystem::path step_folder, const Tensors& tensors);

  const std::filesystem::path& folder() const { return folder_; }
  const checkpoint::Manifest& manifest() const { return manifest_; }
  /// The tensor files in order of their names, and the manifest last.
  const std::vector<std::string>& files() const { return names_; }
  /// As it was saved.
  const std::string& content(const std::string& file) const {
    return contents_.at(file);
  }
  /// The tensor that byte `at` of `file` belongs to; "" in a header.
  std::string tensor_at(const std::string& file, int64_t at) const;
  /// The first in order of names that has a chunk in `file`; "" if none has.
  std::string first_tensor_in(const std::string& file) const;

  /// Overwrites a file from `at` on.
  void put(const std::string& file, int64_t at, std::string_view bytes);
  void resize(const std::string& file, int64_t bytes);
  /// The whole file, under the same inode.
  void replace(const std::string& file, const std::string& content);
  void restore(const std::string& file);
  /// After an entry was deleted or replaced by something else.
  void restore_entry(const std::string& file);

  /// Lets verify() and load() look, and expects that each finds the damage,
  /// names `file` and, if there is one, `tensor`, and that load() leaves all it
  /// was to fill as it was.
  void expect_found(
      const std::string& file,
      const std::string& tensor,
      DamageCount& count,
      const std::string& hmac_key = {});
  void expect_sound(const std::string& hmac_key = {});

 private:
  bool verify_names(
      const std::string& file,
      const std::string& tensor,
      const std::string& hmac_key) const;
  bool load_names(
      const std::string& file,
      const std::string& tensor,
      const std::string& hmac_key);
  bool targets_are_zero() const;

  std::filesystem::path folder_;
  checkpoint::Manifest manifest_;
  std::vector<std::string> names_;
  std::map<std::string, std::string> contents_;
  std::map<std::string, checkpoint::File> open_;
  checkpoint::StateDicts targets_;
};

} // namespace weft::test
