#include "checkpoint/save/collective_save.h"

#include <chrono>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "checkpoint/files/rate_limiter.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/save/rank_report.h"
#include "checkpoint/store/store.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"

// Note [How ranks save together]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Every rank writes its files into a temporary folder with a name that all
// ranks know. Then it sends rank 0 a report of what it has written, or its
// error. Rank 0 checks that the ranks have saved the same state, writes the
// manifest, renames the folder and broadcasts the result. A rank that fails
// sends its error in the report, so there is always exactly one gather and one
// broadcast, no rank waits for a missing one, and all throw the same error.
// Until the rename, the store is unchanged.

namespace weft::checkpoint {
namespace {

using Json = nlohmann::json;
using Tree = std::optional<mesh::RankTree>;

std::vector<std::string> gather(Tree& tree, const std::string& text) {
  return tree ? tree->gather(text, "checkpoint") : std::vector{text};
}

std::string broadcast(Tree& tree, const std::string& text) {
  return tree ? tree->broadcast(text, "checkpoint") : text;
}

bool is_first(const CollectiveSave& save) {
  return rank_of(save.options.world) == 0;
}

// Returns the lines that must be identical on all ranks.
std::vector<std::string> lines_of(const CollectiveSave& save) {
  auto lines = describe_items(save.items);
  lines.push_back(fmt::format("step {}", save.content.step));
  lines.push_back(save.checkpoints.string());
  return lines;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) {
    text.append(line).append("\n");
  }
  return text;
}

template <class Act>
std::string error_of_save(const Act& act) {
  try {
    act();
    return "";
  } catch (const std::exception& error) {
    return mesh::message_of(error);
  }
}

int64_t total_bytes(const std::vector<StateItem>& items) {
  int64_t bytes = 0;
  for (const auto& item : items) {
    bytes += element_count(item.item.sizes) * item.item.item_bytes;
  }
  return bytes;
}

bool hashes_sha256(const CollectiveSave& save) {
  return save.options.sha256 || !save.options.hmac_key.empty();
}

int64_t piece_bytes_of(const CollectiveSave& save) {
  return save.options.piece_bytes > 0
             ? save.options.piece_bytes
             : choose_piece_bytes(total_bytes(save.items), hashes_sha256(save));
}

std::vector<WrittenFile> write_files(
    const CollectiveSave& save,
    const std::filesystem::path& temporary) {
  std::vector<WrittenFile> written;
  RateLimiter rate_limiter(save.options.bytes_per_second, save.is_unthrottled);
  for (size_t i = 0; i < save.files.size(); ++i) {
    written.push_back(write_tensor_file(
        Folder::open(temporary),
        tensor_file_name(rank_of(save.options.world), static_cast<int64_t>(i)),
        save.files[i],
        {.step = save.content.step,
         .piece_bytes = piece_bytes_of(save),
         .fsync = save.options.fsync,
         .sha256 = hashes_sha256(save),
         .rate_limiter = &rate_limiter}));
  }
  return written;
}

std::string lines_difference(Tree& tree, const CollectiveSave& save) {
  const auto texts = gather(tree, joined(lines_of(save)));
  return texts.empty() ? ""
                       : mesh::describe_difference(
                             texts,
                             {.op = "checkpoint",
                              .what = "the state",
                              .hint = "Save the same tensors on every rank.",
                              .where = fmt::format("{} ranks", texts.size())});
}

// Throws if files are missing, because ranks on several hosts may have written
// to different disks.
void check_files_are_here(const Folder& folder, const Manifest& manifest) {
  std::map<std::string, int64_t> here;
  for (const auto& entry : folder.list()) {
    here[entry.name] = entry.bytes;
  }
  for (const auto& [name, file] : manifest.files) {
    const auto found = here.find(name);
    if (found == here.end() || found->second != file.bytes) {
      mesh::throw_error<SaveError>(fmt::format(
          "file {} in {} has {} bytes, but the rank that saved it wrote {}. "
          "Ranks see different folders under this path. Save to a folder that "
          "all hosts share",
          name,
          folder.path().string(),
          found == here.end() ? 0 : found->second,
          file.bytes));
    }
  }
}

/// The result of the save, which rank 0 derives from the reports.
struct Verdict {
  std::string error = {};
  bool is_disagreement = false;
  std::string note = {};
};

std::string verdict_text(const Verdict& verdict) {
  return base::json_text(
      Json{verdict.error, verdict.is_disagreement, verdict.note});
}

Verdict to_verdict(const std::string& text) {
  const auto json = base::parse_json<Json>(text);
  return {json.at(0), json.at(1), json.at(2)};
}

std::string not_saved(int64_t step, size_t rank, const std::string& why) {
  return fmt::format(
      "[checkpoint] step {} was not saved: rank {} could not {}",
      step,
      rank,
      why);
}

class Commit {
 public:
  Commit(const CollectiveSave& save, std::filesystem::path temporary)
      : save_(save), temporary_(std::move(temporary)) {}

  Verdict judge(const std::vector<std::string>& texts, uint64_t agreement) {
    std::vector<RankReport> reports;
    for (const auto& text : texts) {
      reports.push_back(report_from_bytes(text, save_.items, agreement));
      const auto& report = reports.back();
      if (report.agreement != agreement) {
        return {.is_disagreement = true};
      }
    }
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      if (!reports[rank].error.empty()) {
        return {
            .error = not_saved(
                save_.content.step, rank, "write: " + reports[rank].error)};
      }
    }
    auto note = describe_slow_writer(reports);
    const auto error = error_of_save([&] {
      const auto more = commit(std::move(reports));
      note += (note.empty() || more.empty() ? "" : "; ") + more;
    });
    if (!error.empty()) {
      return {.error = not_saved(save_.content.step, 0, "commit: " + error)};
    }
    return {.note = note};
  }

 private:
  std::string commit(std::vector<RankReport> reports) const {
    Manifest manifest;
    manifest.step = save_.content.step;
    manifest.piece_bytes = piece_bytes_of(save_);
    manifest.state = save_.content.state;
    manifest.layout = save_.content.layout;
    add_tensors(save_.items, manifest);
    for (auto& report : reports) {
      add_files(std::move(report), manifest);
    }
    stamp(manifest);
    const auto folder = Folder::open(temporary_);
    check_files_are_here(folder, manifest);
    const bool sync = save_.options.fsync;
    write_manifest(folder, manifest, sync, save_.options.hmac_key);
    return commit_step(save_.checkpoints, temporary_, manifest.step, sync);
  }

  const CollectiveSave& save_;
  std::filesystem::path temporary_;
};

// Deletes old checkpoints. An error does not fail the save, which is already
// committed. No other rank waits for this. Returns `note`, extended by the
// error if there is one.
std::string prune(const CollectiveSave& save, const std::string& note) {
  if (!is_first(save) || save.options.keep == 0) {
    return note;
  }
  const auto error =
      error_of_save([&] { prune_steps(save.checkpoints, save.options.keep); });
  return error.empty() ? note
                       : fmt::format(
                             "{}{}old checkpoints were not deleted: {}",
                             note,
                             note.empty() ? "" : "; ",
                             error);
}

} // namespace

std::string save_collectively(const CollectiveSave& save, Tree& tree) {
  // Needed even if this rank fails to create the folder, because other ranks
  // may have created it.
  const auto temporary =
      temporary_path(save.checkpoints, save.content.step, save.nonce);
  RankReport report{
      .error = {}, .agreement = hash(joined(lines_of(save))), .files = {}};
  report.error = save.error;
  const auto start = std::chrono::steady_clock::now();
  if (report.error.empty()) {
    report.error = error_of_save([&] {
      join_step(save.checkpoints, save.content.step, save.nonce);
      report.files = write_files(save, temporary);
    });
  }
  report.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  const auto reports = gather(tree, to_bytes(report, save.items));
  std::string text;
  if (is_first(save)) {
    Verdict own;
    const auto error = error_of_save([&] {
      own = Commit(save, temporary).judge(reports, report.agreement);
    });
    if (!error.empty()) {
      own = {.error = not_saved(save.content.step, 0, "commit: " + error)};
    }
    if (!own.error.empty() || own.is_disagreement) {
      discard_step(temporary); // All ranks have finished writing.
    }
    text = verdict_text(own);
  }
  auto verdict = to_verdict(broadcast(tree, text));
  if (verdict.is_disagreement) {
    verdict.error = broadcast(tree, lines_difference(tree, save));
  }
  if (verdict.error.empty()) {
    return prune(save, verdict.note);
  }
  // If this rank saved another step or is on a host with another disk, its
  // temporary folder is not the one that rank 0 has deleted.
  discard_step(temporary);
  if (verdict.is_disagreement) {
    mesh::throw_error<mesh::DisagreementError>(verdict.error);
  }
  mesh::throw_error<SaveError>(verdict.error);
}

std::string agree_on_nonce(Tree& tree) {
  return broadcast(tree, random_hex());
}

} // namespace weft::checkpoint
