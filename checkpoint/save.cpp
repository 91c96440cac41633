#include "checkpoint/save.h"

#include <nlohmann/json.hpp>

#include "checkpoint/manifest.h"
#include "checkpoint/save_plan.h"
#include "checkpoint/state_items.h"
#include "checkpoint/store.h"
#include "checkpoint/tensor_file.h"
#include "mesh/error.h"

// Note [How ranks save together]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Three exchanges, each of which tells every rank what every other one did: the
// first rank has made a temporary folder; every rank has written its file into
// it; the first rank has written the manifest and renamed the folder. Whoever
// fails says so in the exchange and goes on to the end of it, so nobody waits
// for a rank that is gone, and all throw the same error. Until the rename the
// store is what it was.

namespace weft::checkpoint {
namespace {

using Json = nlohmann::json;

Json to_answer(const WrittenFile& file) {
  Json chunks = Json::array();
  for (const auto& [key, chunk] : file.chunks) {
    chunks.push_back(
        {key,
         chunk.offset,
         chunk.shape,
         chunk.begin,
         chunk.end,
         chunk.piece_hashes});
  }
  return {
      {"file", file.name},
      {"bytes", file.record.bytes},
      {"header_bytes", file.record.header_bytes},
      {"header_hash", file.record.header_hash},
      {"chunks", std::move(chunks)}};
}

void add_answer(const Json& answer, Manifest& manifest) {
  if (!answer.contains("file")) {
    return; // This rank had nothing to write.
  }
  const auto name = answer.at("file").get<std::string>();
  manifest.files[name] = {
      .bytes = answer.at("bytes"),
      .header_bytes = answer.at("header_bytes"),
      .header_hash = answer.at("header_hash")};
  for (const auto& chunk : answer.at("chunks")) {
    manifest.tensors.at(chunk.at(0).get<std::string>())
        .chunks.push_back(
            {.file = name,
             .offset = chunk.at(1),
             .shape = chunk.at(2),
             .begin = chunk.at(3),
             .end = chunk.at(4),
             .piece_hashes = chunk.at(5)});
  }
}

/// What `act` answers, or why it failed.
template <class Act>
Json answer_or_error(const Act& act) {
  try {
    return act();
  } catch (const c10::Error& error) {
    return {{"error", error.what_without_backtrace()}};
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

/// One save, on one rank.
class Save {
 public:
  Save(
      const std::filesystem::path& checkpoints,
      const std::vector<StateItem>& items,
      const SaveOptions& options)
      : checkpoints_(checkpoints),
        items_(items),
        options_(options),
        world_(find_world(items, options.world)) {}

  std::filesystem::path run() {
    check_items_agree(items_, world_);
    const auto begun = together("begin", [this] { return begin(); });
    temporary_ = begun.front().at("folder").get<std::string>();
    const auto written = together("write", [this] { return write(); });
    together("commit", [&] { return commit(written); });
    return step_path(checkpoints_, options_.step);
  }

 private:
  /// Runs `act` on every rank and shares the answers; if any failed, cleans up
  /// and throws on all.
  template <class Act>
  std::vector<Json> together(const char* phase, const Act& act) {
    std::vector<Json> answers;
    const auto own = answer_or_error(act).dump();
    for (const auto& text : exchange_texts(world_, own)) {
      answers.push_back(Json::parse(text));
    }
    for (size_t rank = 0; rank < answers.size(); ++rank) {
      if (answers[rank].contains("error")) {
        if (is_first() && !temporary_.empty()) {
          abandon_step(temporary_);
        }
        mesh::throw_error<SaveError>(mesh::detail::concat(
            "[checkpoint] step ",
            options_.step,
            " was not saved: rank ",
            rank,
            " could not ",
            phase,
            ": ",
            answers[rank].at("error").template get<std::string>()));
      }
    }
    return answers;
  }

  bool is_first() const { return rank_of(world_) == 0; }

  Json begin() {
    Json answer = Json::object();
    if (is_first()) {
      temporary_ = begin_step(checkpoints_, options_.step);
      answer["folder"] = temporary_.string();
    }
    return answer;
  }

  Json write() const {
    const int64_t world_size = world_ ? world_->world_size() : 1;
    std::vector<SaveItem> items;
    for (const auto& item : items_) {
      items.push_back(item.item);
    }
    std::vector<FileTensor> tensors;
    for (const auto& chunk : plan_save(items, world_size)) {
      if (chunk.writer == rank_of(world_)) {
        tensors.push_back(
            {.key = items[chunk.item].key,
             .offset = chunk.box.offset,
             .global_shape = items[chunk.item].sizes,
             .data = items_[chunk.item].local.cpu().contiguous()});
      }
    }
    if (tensors.empty()) {
      return Json::object();
    }
    const auto folder = Folder::open(temporary_);
    return to_answer(write_tensor_file(
        folder,
        tensor_file_name(rank_of(world_), 0),
        tensors,
        {.step = options_.step, .sync = options_.sync}));
  }

  Json commit(const std::vector<Json>& written) const {
    if (!is_first()) {
      return Json::object();
    }
    Manifest manifest;
    manifest.step = options_.step;
    manifest.state = options_.state;
    manifest.layout = options_.layout;
    for (const auto& [item, dtype, local, whole] : items_) {
      auto& record = manifest.tensors[item.key];
      record.dtype = dtype;
      record.shape = item.sizes;
      if (item.spec.mesh_ndim() > 0) {
        record.placements = dtensor::to_string(item.spec.placements());
        record.mesh = item.spec.mesh().to_string();
      }
    }
    for (const auto& answer : written) {
      add_answer(answer, manifest);
    }
    stamp(manifest);
    write_manifest(Folder::open(temporary_), manifest, options_.sync);
    commit_step(checkpoints_, temporary_, options_.step, options_.sync);
    return Json::object();
  }

  std::filesystem::path checkpoints_;
  const std::vector<StateItem>& items_;
  const SaveOptions& options_;
  std::optional<mesh::World> world_;
  std::filesystem::path temporary_;
};

} // namespace

std::filesystem::path save(
    const std::filesystem::path& checkpoints,
    const StateDicts& dicts,
    const SaveOptions& options) {
  const auto items = list_items(dicts, "checkpoint.save");
  return Save(checkpoints, items, options).run();
}

} // namespace weft::checkpoint
