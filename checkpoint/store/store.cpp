#include "checkpoint/store/store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <span>
#include <system_error>

#include <fmt/format.h>

#include "checkpoint/files/limits.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/hash.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr const char* kLatestName = "latest";

std::string step_name(int64_t step) {
  return fmt::format("{}{}", kStepPrefix, step);
}

// Returns the N of "step-N". Returns nothing for other spellings than that of
// step_name(), such as "step-007".
std::optional<int64_t> step_of(std::string_view name) {
  constexpr size_t kMaxDigits = 18;
  if (!name.starts_with(kStepPrefix)) {
    return std::nullopt;
  }
  const auto digits = name.substr(kStepPrefix.size());
  int64_t step = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool is_number =
      error == std::errc() && end == digits.data() + digits.size();
  if (!is_number || digits.size() > kMaxDigits || step < 0 ||
      std::to_string(step) != digits) {
    return std::nullopt;
  }
  return step;
}

bool is_there(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

// Deletes a file or folder with a temporary name. If that fails,
// remove_temporaries() deletes it later.
void delete_temporary(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

std::string write_temporary(
    const Folder& folder,
    const std::string& name,
    std::string_view text,
    bool sync) {
  auto temporary = fmt::format("{}{}-{}", kTemporaryPrefix, name, random_hex());
  auto file = folder.create_file(temporary);
  const std::array parts = {std::as_bytes(std::span(text))};
  try {
    file.write_at(0, parts);
    if (sync) {
      file.sync();
    }
    file.close();
  } catch (const std::system_error&) {
    delete_temporary(folder.path() / temporary);
    throw;
  }
  return temporary;
}

bool try_lock(const Folder& folder, int kind) {
  while (::flock(folder.fd(), kind | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return false;
    }
    if (errno != EINTR) {
      throw std::system_error(
          errno,
          std::generic_category(),
          fmt::format("[checkpoint] lock {}", folder.path().string()));
    }
  }
  return true;
}

bool is_same_folder(const Folder& open, const fs::path& path) {
  struct stat ours {};
  struct stat theirs {};
  return ::fstat(open.fd(), &ours) == 0 && ::stat(path.c_str(), &theirs) == 0 &&
         ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

} // namespace

std::string random_hex() {
  uint64_t value = 0;
  if (::getrandom(&value, sizeof(value), 0) != sizeof(value)) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return to_hex(value);
}

std::vector<StepFolder> list_steps(const fs::path& checkpoints) {
  std::vector<StepFolder> steps;
  if (!is_there(checkpoints)) {
    return steps;
  }
  for (const auto& entry : Folder::open(checkpoints).list()) {
    const auto step = step_of(entry.name);
    if (step && entry.is_folder) {
      steps.push_back({*step, checkpoints / entry.name});
    }
  }
  std::ranges::sort(steps, std::greater<>(), &StepFolder::step);
  return steps;
}

fs::path step_path(const fs::path& checkpoints, int64_t step) {
  return checkpoints / step_name(step);
}

std::optional<int64_t> read_latest(const fs::path& checkpoints) {
  constexpr size_t kMax = 64;
  try {
    const auto folder = Folder::open(checkpoints);
    if (!folder.has(kLatestName)) {
      return std::nullopt;
    }
    std::string text(kMax, '\0');
    const auto file = folder.open_file(kLatestName);
    const auto size = file.read_at(0, std::as_writable_bytes(std::span(text)));
    text.resize(static_cast<size_t>(size));
    if (text.ends_with('\n')) {
      text.pop_back();
    }
    const auto step = step_of(text);
    return step && folder.has(text) ? step : std::nullopt;
  } catch (const CheckpointError&) {
    return std::nullopt; // `latest` is not a regular file
  }
}

fs::path begin_step(const fs::path& checkpoints, int64_t step) {
  return join_step(checkpoints, step, random_hex());
}

fs::path temporary_path(
    const fs::path& checkpoints,
    int64_t step,
    const std::string& nonce) {
  return checkpoints /
         fmt::format("{}{}-{}", kTemporaryPrefix, step_name(step), nonce);
}

fs::path
join_step(const fs::path& checkpoints, int64_t step, const std::string& nonce) {
  make_folders(checkpoints);
  auto path = temporary_path(checkpoints, step, nonce);
  try {
    Folder::create(path);
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::file_exists) {
      throw;
    }
  }
  return path;
}

void write_manifest(
    const Folder& folder,
    const Manifest& manifest,
    bool sync,
    std::string_view hmac_key) {
  const auto text = to_json(manifest, hmac_key);
  auto file = folder.create_file(kManifestName);
  const std::array parts = {std::as_bytes(std::span(text))};
  file.write_at(0, parts);
  if (sync) {
    file.sync();
  }
  file.close();
}

namespace {

// Makes the rename durable. If that fails, the folder gets its temporary name
// back.
void sync_renamed(
    const Folder& parent,
    const std::string& name,
    const std::string& temporary) {
  try {
    parent.sync();
  } catch (const std::system_error&) {
    parent.rename(name, temporary);
    throw;
  }
}

// Returns "", or the reason why `latest` was not moved.
std::string
move_latest(const Folder& parent, const std::string& temporary, bool sync) {
  try {
    parent.rename_over(temporary, kLatestName);
    if (sync) {
      parent.sync();
    }
    return "";
  } catch (const std::system_error& error) {
    delete_temporary(parent.path() / temporary);
    return fmt::format("`latest` was not moved: {}", error.what());
  }
}

} // namespace

std::string commit_step(
    const fs::path& checkpoints,
    const fs::path& temporary,
    int64_t step,
    bool sync,
    MoveLatest move) {
  const auto parent = Folder::open(checkpoints);
  const auto name = step_name(step);
  const bool moves =
      move == MoveLatest::kAlways || read_latest(checkpoints) < step;
  // All writes that need disk space precede the rename, so that a full disk
  // cannot fail a save that is already committed.
  const auto latest =
      moves ? write_temporary(parent, kLatestName, name + "\n", sync) : "";
  try {
    if (sync) {
      Folder::open(temporary).sync();
    }
    parent.rename(temporary.filename().string(), name);
    if (sync) {
      sync_renamed(parent, name, temporary.filename().string());
    }
  } catch (const std::system_error& error) {
    if (moves) {
      delete_temporary(checkpoints / latest);
    }
    if (error.code() == std::errc::file_exists ||
        error.code() == std::errc::directory_not_empty) {
      mesh::throw_error<mesh::UsageError>(fmt::format(
          "[checkpoint] {} already exists, and Weft does not overwrite "
          "checkpoints. Move it away, or save another step.",
          (checkpoints / name).string()));
    }
    throw;
  }
  return moves ? move_latest(parent, latest, sync) : "";
}

void discard_step(const fs::path& temporary) noexcept {
  if (temporary.filename().string().starts_with(kTemporaryPrefix)) {
    delete_temporary(temporary);
  }
}

int64_t remove_temporaries(const fs::path& checkpoints) {
  int64_t count = 0;
  if (!is_there(checkpoints)) {
    return count;
  }
  for (const auto& entry : Folder::open(checkpoints).list()) {
    if (entry.name.starts_with(kTemporaryPrefix)) {
      delete_temporary(checkpoints / entry.name);
      ++count;
    }
  }
  return count;
}

bool remove_step(const fs::path& checkpoints, int64_t step) {
  const auto path = step_path(checkpoints, step);
  const auto folder = Folder::open(path);
  // A reader that opens the step later finds the lock taken and reports it. A
  // reader that opened it earlier has the lock, so the step stays.
  if (!try_lock(folder, LOCK_EX)) {
    return false;
  }
  const auto parent = Folder::open(checkpoints);
  const auto temporary = fmt::format(
      "{}deleted-{}-{}", kTemporaryPrefix, step_name(step), random_hex());
  parent.rename(step_name(step), temporary);
  // Without this sync, a power failure can bring back the name without the
  // files.
  parent.sync();
  delete_temporary(checkpoints / temporary);
  return true;
}

std::vector<int64_t> prune_steps(const fs::path& checkpoints, int64_t keep) {
  if (keep < 1) {
    mesh::throw_error<mesh::UsageError>(
        fmt::format("[checkpoint] got keep = {}, expected at least 1", keep));
  }
  const auto steps = list_steps(checkpoints);
  const auto latest = read_latest(checkpoints);
  std::vector<int64_t> gone;
  for (size_t i = static_cast<size_t>(keep); i < steps.size(); ++i) {
    if (steps[i].step != latest && remove_step(checkpoints, steps[i].step)) {
      gone.push_back(steps[i].step);
    }
  }
  return gone;
}

fs::path quarantine_step(const fs::path& checkpoints, int64_t step) {
  const auto name = fmt::format("damaged-{}-{}", step_name(step), random_hex());
  const auto parent = Folder::open(checkpoints);
  parent.rename(step_name(step), name);
  parent.sync();
  return checkpoints / name;
}

namespace {

// Rejects a folder whose name does not match its manifest, because a run would
// resume from it at the wrong step.
void check_name(const fs::path& step_folder, const Manifest& manifest) {
  const auto path = fs::absolute(step_folder).lexically_normal();
  const auto name =
      path.has_filename() ? path.filename() : path.parent_path().filename();
  const auto step = step_of(name.string());
  if (step && *step != manifest.step) {
    throw_corrupt(
        (step_folder / kManifestName).string(),
        fmt::format(
            "the manifest is for step {}, but its folder is named for step {}",
            manifest.step,
            *step));
  }
}

} // namespace

std::string read_manifest_text(const Folder& step_folder) {
  const auto source = (step_folder.path() / kManifestName).string();
  const auto file = step_folder.open_file(kManifestName);
  try {
    const auto size = file.size();
    if (size > limits::kManifestBytes) {
      throw_corrupt(
          source,
          fmt::format(
              "the manifest has {} bytes, but at most {} are allowed",
              size,
              limits::kManifestBytes));
    }
    std::string text(static_cast<size_t>(size), '\0');
    const auto got = file.read_at(0, std::as_writable_bytes(std::span(text)));
    text.resize(static_cast<size_t>(got));
    return text;
  } catch (const std::system_error& error) {
    throw_corrupt(source, "it cannot be read: " + error.code().message());
  }
}

Manifest parse_step_manifest(
    const std::string& text,
    const fs::path& step_folder,
    std::string_view hmac_key) {
  auto manifest =
      parse_manifest(text, (step_folder / kManifestName).string(), hmac_key);
  check_name(step_folder, manifest);
  return manifest;
}

Manifest read_manifest(const Folder& step_folder, std::string_view hmac_key) {
  return parse_step_manifest(
      read_manifest_text(step_folder), step_folder.path(), hmac_key);
}

Manifest read_manifest(const fs::path& step_folder, std::string_view hmac_key) {
  return read_manifest(Folder::open(step_folder), hmac_key);
}

StepPin::StepPin(const fs::path& step_folder)
    : folder_(Folder::open(step_folder)) {
  if (!try_lock(folder_, LOCK_SH) || !is_same_folder(folder_, step_folder)) {
    throw_corrupt(step_folder.string(), "it is being deleted");
  }
}

} // namespace weft::checkpoint
