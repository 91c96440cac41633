#include "cli/bench/benches.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/format/tensor_header.h"
#include "checkpoint/save/rank_report.h"
#include "checkpoint/save/save_plan.h"
#include "checkpoint/store/store.h"
#include "cli/bench/measure.h"
#include "mesh/error/error.h"

namespace weft::cli::bench {
namespace {

namespace fs = std::filesystem;
using checkpoint::SavePlan;
using checkpoint::StateItem;
using dtensor::Placement;
using dtensor::Replicate;
using dtensor::Shard;

constexpr int64_t kItemBytes = 4;

double time_of(const std::function<void()>& act) {
  const auto start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

/// The way in which tensor parallelism shards a parameter.
enum class Cut { kRows, kColumns, kNone };

// The items of a Llama's state, sorted by key as list_items() returns them.
class FakeState {
 public:
  explicit FakeState(const SavePlanOptions& options)
      : options_(options),
        mesh_(mesh::DeviceMesh::create(
            mesh::World::fake(0, options.ranks),
            {options.dp / options.zero, options.zero, options.tp},
            {"replicas", "zero", "tp"})) {
    const int64_t dim = options.dim;
    const int64_t kv_dim = dim / options.heads * options.kv_heads;
    add("model.embed_tokens.weight", {options.vocab, dim}, Cut::kRows);
    for (int64_t i = 0; i < options.layers; ++i) {
      const auto at = fmt::format("model.layers.{}.", i);
      add(at + "input_layernorm.weight", {dim}, Cut::kNone);
      add(at + "self_attn.q_proj.weight", {dim, dim}, Cut::kRows);
      add(at + "self_attn.k_proj.weight", {kv_dim, dim}, Cut::kRows);
      add(at + "self_attn.v_proj.weight", {kv_dim, dim}, Cut::kRows);
      add(at + "self_attn.o_proj.weight", {dim, dim}, Cut::kColumns);
      add(at + "post_attention_layernorm.weight", {dim}, Cut::kNone);
      add(at + "mlp.gate_proj.weight", {options.ffn_dim, dim}, Cut::kRows);
      add(at + "mlp.up_proj.weight", {options.ffn_dim, dim}, Cut::kRows);
      add(at + "mlp.down_proj.weight", {dim, options.ffn_dim}, Cut::kColumns);
    }
    add("model.norm.weight", {dim}, Cut::kNone);
    add("lm_head.weight", {options.vocab, dim}, Cut::kRows);
    std::ranges::sort(
        items, {}, [](const StateItem& item) { return item.item.key; });
  }

  std::vector<StateItem> items;

  std::vector<checkpoint::SaveItem> save_items() const {
    std::vector<checkpoint::SaveItem> result;
    for (const auto& item : items) {
      result.push_back(item.item);
    }
    return result;
  }

 private:
  void add(const std::string& name, std::vector<int64_t> sizes, Cut cut) {
    const auto tp =
        cut == Cut::kNone ? Replicate() : Shard(cut == Cut::kRows ? 0 : 1);
    add_item("model." + name, sizes, Replicate(), tp);
    const auto state = "optimizer.state." + name;
    add_item(state + ".step", {}, Replicate(), Replicate());
    // Both mesh dims shard the rows. The tp dim shards first, as for the
    // parameter.
    const auto zero = options_.zero == 1 ? Replicate()
                      : cut == Cut::kRows
                          ? dtensor::StridedShard(0, options_.tp)
                          : Shard(0);
    add_item(state + ".exp_avg", sizes, zero, tp);
    add_item(state + ".exp_avg_sq", sizes, zero, tp);
  }

  void add_item(
      const std::string& key,
      const std::vector<int64_t>& sizes,
      const Placement& zero,
      const Placement& tp) {
    items.push_back(
        {.item =
             {.key = key,
              .spec = dtensor::DTensorSpec(mesh_, {Replicate(), zero, tp}),
              .sizes = sizes,
              .item_bytes = kItemBytes},
         .dtype = at::kFloat,
         .local = {},
         .whole = {}});
  }

  SavePlanOptions options_;
  mesh::DeviceMesh mesh_;
};

uint64_t agreement_of(const std::vector<StateItem>& items) {
  std::string text;
  for (const auto& line : checkpoint::describe_items(items)) {
    text.append(line).append("\n");
  }
  return checkpoint::hash(text);
}

// Returns the report that `rank` would send after writing. The hashes are
// invented, but their number and size are those of a save.
checkpoint::RankReport report_of(
    int64_t rank,
    const SavePlan& plan,
    uint64_t agreement,
    int64_t piece_bytes) {
  checkpoint::RankReport report{
      .error = {}, .agreement = agreement, .files = {}};
  const auto chunks = plan.chunks_of(rank);
  if (chunks.empty()) {
    return report;
  }
  checkpoint::TensorHeader header;
  for (const auto& [item, part, held] : chunks) {
    const auto& whole = plan.items()[item];
    header.tensors[whole.key] = {
        .dtype = at::kFloat,
        .shape = held.box.sizes,
        .offset = held.box.offset,
        .global_shape = whole.sizes};
  }
  make_header(header);
  checkpoint::WrittenFile file;
  file.name = checkpoint::tensor_file_name(rank, 0);
  file.record = {
      .bytes = header.bytes,
      .header_bytes = header.bytes,
      .header_hash = 0x9e3779b97f4a7c15};
  for (const auto& [key, entry] : header.tensors) {
    checkpoint::Chunk chunk{
        .file = file.name,
        .offset = *entry.offset,
        .shape = entry.shape,
        .begin = entry.begin,
        .end = entry.end,
        .piece_hashes = {}};
    const auto pieces =
        (entry.end - entry.begin + piece_bytes - 1) / piece_bytes;
    chunk.piece_hashes.assign(static_cast<size_t>(pieces), 0xd6e8feb86659fd93);
    file.record.bytes = std::max(file.record.bytes, entry.end);
    file.chunks.emplace_back(key, std::move(chunk));
  }
  report.files.push_back(std::move(file));
  return report;
}

int64_t bytes_of(const std::vector<StateItem>& items) {
  int64_t bytes = 0;
  for (const auto& item : items) {
    bytes += c10::multiply_integers(item.item.sizes) * kItemBytes;
  }
  return bytes;
}

// The serialized reports of all ranks, with the maximum and the sum of their
// bytes and of the data that the ranks write.
struct Reports {
  std::vector<std::string> texts;
  int64_t max_text = 0;
  int64_t text_sum = 0;
  int64_t max_data = 0;
  int64_t data_sum = 0;
};

Reports report_all(
    const SavePlan& plan,
    const std::vector<StateItem>& items,
    uint64_t agreement,
    int64_t piece_bytes) {
  Reports reports;
  for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
    const auto report = report_of(rank, plan, agreement, piece_bytes);
    int64_t data = 0;
    for (const auto& file : report.files) {
      data += file.record.bytes - file.record.header_bytes;
    }
    reports.texts.push_back(to_bytes(report, items));
    const auto size = static_cast<int64_t>(reports.texts.back().size());
    reports.max_text = std::max(reports.max_text, size);
    reports.text_sum += size;
    reports.max_data = std::max(reports.max_data, data);
    reports.data_sum += data;
  }
  return reports;
}

void check(const SavePlanOptions& options) {
  if (options.dp * options.tp != options.ranks ||
      options.dp % options.zero != 0 || options.heads % options.kv_heads != 0 ||
      options.dim % options.heads != 0) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "weft bench save_plan: --ranks {} must equal --dp {} times --tp {}; "
        "--zero {} must divide --dp; --kv_heads {} must divide --heads {}; and "
        "--heads must divide --dim {}",
        options.ranks,
        options.dp,
        options.tp,
        options.zero,
        options.kv_heads,
        options.heads,
        options.dim));
  }
}

void write_and_remove(
    const std::string& folder,
    const checkpoint::Manifest& manifest,
    nlohmann::ordered_json& result) {
  const auto above =
      folder.empty() ? fs::temp_directory_path() : fs::path(folder);
  const auto temporary = checkpoint::begin_step(above, manifest.step);
  try {
    result["manifest_s"] = time_of([&] {
      write_manifest(
          checkpoint::Folder::open(temporary), manifest, /*sync=*/true);
    });
    result["manifest_mb"] = static_cast<double>(fs::file_size(
                                temporary / checkpoint::kManifestName)) /
                            (1 << 20);
  } catch (...) {
    checkpoint::discard_step(temporary);
    throw;
  }
  checkpoint::discard_step(temporary);
}

} // namespace

std::optional<std::string> run_save_plan(const SavePlanOptions& options) {
  check(options);
  const FakeState state(options);
  const auto& items = state.items;
  nlohmann::ordered_json result;
  result["ranks"] = options.ranks;
  result["tensors"] = items.size();
  result["state_gb"] = static_cast<double>(bytes_of(items)) / 1e9;

  std::optional<SavePlan> plan;
  uint64_t agreement = 0;
  result["plan_first_s"] = time_of([&] {
    plan.emplace(state.save_items(), options.ranks);
    plan->chunks_of(0);
    agreement = agreement_of(items);
  });
  result["plan_cached_s"] = time_of([&] {
    for (size_t i = 0; i < items.size(); ++i) {
      TORCH_INTERNAL_ASSERT(
          items[i].item.spec == plan->items()[i].spec &&
          items[i].item.key == plan->items()[i].key &&
          items[i].item.sizes == plan->items()[i].sizes);
    }
    TORCH_INTERNAL_ASSERT(agreement_of(items) == agreement);
  });

  checkpoint::Manifest manifest;
  manifest.step = 1;
  manifest.piece_bytes = checkpoint::choose_piece_bytes(bytes_of(items));
  const auto reports =
      report_all(*plan, items, agreement, manifest.piece_bytes);
  result["rank_bytes_max"] = reports.max_data;
  result["rank_bytes_mean"] = reports.data_sum / options.ranks;
  result["report_bytes_max"] = reports.max_text;
  result["report_bytes_sum"] = reports.text_sum;
  result["merge_s"] = time_of([&] {
    add_tensors(items, manifest);
    for (const auto& text : reports.texts) {
      add_files(report_from_bytes(text, items, agreement), manifest);
    }
  });
  int64_t chunks = 0;
  for (const auto& [key, tensor] : manifest.tensors) {
    chunks += std::ssize(tensor.chunks);
  }
  result["chunks"] = chunks;
  stamp(manifest);
  write_and_remove(options.folder, manifest, result);
  result["peak_mb"] = static_cast<double>(status_bytes("VmHWM")) / (1 << 20);
  return base::json_text(result);
}

} // namespace weft::cli::bench
