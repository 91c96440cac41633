#pragma once

#include <filesystem>
#include <random>
#include <string>

namespace weft::test {

/// What apply_random_damage() did.
struct InjectedDamage {
  /// For messages: "flip bit 3 of byte 17 of manifest.json".
  std::string what;
  /// Whether reading every tensor has to find it, too. Only what lies beside
  /// the checkpoint's own files is for verify() alone.
  bool is_read = true;
};

/// The text of a manifest with its own hash made right again, as someone who
/// edits it would.
std::string with_right_hash(std::string manifest);

/// Damages a step folder at random: a bit flipped, a file cut, extended, zeroed
/// in parts, deleted, swapped with another or taken from `other_step` (a step
/// folder with files of the same names), an entry added, or the manifest
/// edited, with and without its hash made right. Something has changed
/// afterwards.
InjectedDamage apply_random_damage(
    const std::filesystem::path& step_folder,
    const std::filesystem::path& other_step,
    std::mt19937_64& rng);

/// Makes `to` a copy of the step folder `from`, whatever `to` was.
void restore_step(
    const std::filesystem::path& from,
    const std::filesystem::path& to);

} // namespace weft::test
