// Models from Hugging Face folders give what transformers does, on many meshes;
// exported again they are the same.

#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/compare.h"
#include "checkpoint/files/error.h"
#include "checkpoint/save/save.h"
#include "checkpoint/store/store.h"
#include "checkpoint/verify.h"
#include "config/recipe.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/tensor/dtensor.h"
#include "hf/config_json.h"
#include "hf/export_model.h"
#include "hf/import_model.h"
#include "hf/load_weights.h"
#include "hf/tensor_map.h"
#include "mesh/error/error.h"
#include "models/registry.h"
#include "tests/hf/hub_folder.h"
#include "tests/support/run_ranks.h"
#include "train/setup/initial_weights.h"
#include "train/setup/load_recipe.h"
#include "train/setup/loss.h"
#include "train/setup/train_job.h"
#include "train/setup/validate.h"
#include "train/store/train_state.h"

namespace weft::hf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kHubBatch = 4;
constexpr int64_t kHubLength = 40;
constexpr int64_t kHubVocabulary = 331;
// Of the logits that the oracle keeps.
constexpr int64_t kHubStride = 97;

at::Tensor hub_tokens(int64_t shift) {
  const auto i = at::arange(kHubBatch * kHubLength);
  return (i * i * 7 + i * 101 + shift)
      .remainder(kHubVocabulary)
      .view({kHubBatch, kHubLength});
}

config::Recipe hub_job_recipe(
    const std::filesystem::path& folder,
    int64_t dp,
    int64_t tp,
    const std::string& more = "") {
  auto recipe =
      train::parse_recipe(hub_recipe(folder, dp, tp, more), "hub.yaml");
  train::validate(recipe, dp * tp);
  return recipe;
}

struct HubResult {
  at::Tensor logits;
  double loss = 0;
};

// Of all samples, on every rank.
HubResult run_model(const config::Recipe& recipe, train::TrainJob& job) {
  const at::NoGradGuard no_grad;
  job.model->eval();
  const int64_t dp = recipe.mesh.dp;
  const int64_t own = job.mesh.coordinate("dp");
  const auto mine = [&](const at::Tensor& tokens) {
    return tokens.chunk(dp, 0).at(static_cast<size_t>(own)).contiguous();
  };
  const auto logits = job.model->forward(mine(hub_tokens(0)));
  const auto loss =
      train::token_loss(logits, mine(hub_tokens(3)), kHubBatch * kHubLength);
  auto dp_group = job.mesh.group("dp");
  auto sum = at::full({1}, loss.item<double>(), at::kDouble);
  dp_group.all_reduce(sum, mesh::ReduceOp::kSum, "loss").wait();
  return {dtensor::full_tensor(logits), sum.item<double>()};
}

void expect_as_transformers(
    const std::string& name,
    const config::Recipe& recipe,
    train::TrainJob& job) {
  const auto stored = stored_hub_results(name);
  const auto result = run_model(recipe, job);
  const auto loss = stored.at("loss").get<double>();
  EXPECT_NEAR(result.loss, loss, 2e-5 * loss);
  const auto all =
      at::tensor(stored.at("logits").get<std::vector<double>>(), at::kDouble);
  const int64_t per_replica = result.logits.numel();
  const int64_t first = job.mesh.coordinate("dp") * per_replica;
  const auto flat = result.logits.flatten();
  double most = 0;
  int64_t compared = 0;
  for (int64_t i = 0; i < all.numel(); ++i) {
    const auto at = i * kHubStride - first;
    if (at >= 0 && at < per_replica) {
      most = std::max(
          most, std::abs(flat[at].item<double>() - all[i].item<double>()));
      ++compared;
    }
  }
  EXPECT_GT(compared, 100);
  EXPECT_LT(most, 1e-4);
}

struct HubMesh {
  int64_t dp;
  int64_t tp;
};

class HubModels : public ::testing::TestWithParam<std::string> {};

TEST_P(HubModels, GiveWhatTransformersDoesOnAnyMesh) {
  for (const auto& [dp, tp] :
       {HubMesh{1, 1}, HubMesh{1, 2}, HubMesh{1, 3}, HubMesh{2, 2}}) {
    SCOPED_TRACE(fmt::format("dp {} tp {}", dp, tp));
    test::run_ranks(static_cast<int>(dp * tp), [&](test::RankContext& rank) {
      const auto recipe = hub_job_recipe(stored_hub_folder(GetParam()), dp, tp);
      auto job =
          train::make_train_job(recipe, rank.mesh({dp, tp}, {"dp", "tp"}));
      EXPECT_THAT(
          train::load_initial_weights(recipe, job),
          HasSubstr("begins with the weights of"));
      expect_as_transformers(GetParam(), recipe, job);
    });
  }
}

TEST_P(HubModels, HaveTheParametersThatTheMapSays) {
  auto recipe = hub_job_recipe(stored_hub_folder(GetParam()), 1, 1);
  const auto model = models::make_model(recipe);
  const auto map = tensor_map(recipe.model);
  std::map<std::string, std::vector<int64_t>> here;
  for (const auto& item : model->named_parameters()) {
    here.emplace(item.key(), item.value().sizes().vec());
  }
  ASSERT_EQ(here.size(), map.model.size());
  for (const auto& [name, tensor] : map.model) {
    EXPECT_EQ(here.at(name), tensor.shape) << name;
    int64_t elements = 0;
    for (const auto& piece : tensor.pieces) {
      int64_t count = 1;
      for (const auto size : piece.shape) {
        count *= size;
      }
      elements += count;
    }
    EXPECT_EQ(elements, model->named_parameters()[name].numel()) << name;
  }
}

// Byte for byte, tensor by tensor, in the dtype that they came in.
TEST_P(HubModels, ComeBackAsTheyCameThroughACheckpoint) {
  const fixtures::TempFolder temp;
  const auto from = stored_hub_folder(GetParam());
  const bool is_half =
      all_hub_tensors(from).begin()->second.starts_with("\"BF16\"");
  const auto imported = import_model(from, temp / "run");
  EXPECT_EQ(imported.path, temp / "run/step-0");
  for (const int64_t most : {int64_t{1} << 40, int64_t{12'000}}) {
    const auto to = temp / ("back" + std::to_string(most));
    const auto done = export_model(
        imported.path,
        to,
        {.dtype = is_half ? std::optional(at::kBFloat16) : std::nullopt,
         .max_shard_bytes = most});
    EXPECT_EQ(done.files == 1, most > 12'000);
    EXPECT_EQ(all_hub_tensors(to), all_hub_tensors(from));
    EXPECT_EQ(
        fixtures::read_text(to + "/generation_config.json"),
        fixtures::read_text(from / "generation_config.json"));
    // Its config is that of the same model.
    EXPECT_EQ(read_config(to).model, read_config(from).model);
    check_is_free(temp / "elsewhere");
    EXPECT_THAT(
        fixtures::message_of<mesh::UsageError>(
            [&] { export_model(imported.path, to); }),
        HasSubstr("already exists and is not overwritten"));
  }
}

// Tensors larger than a file are split into rows.
TEST_P(HubModels, ComeBackFromSmallFiles) {
  const fixtures::TempFolder temp;
  const auto from = stored_hub_folder(GetParam());
  const auto whole = import_model(from, temp / "whole");
  const auto cut = import_model(from, temp / "cut", 1000);
  EXPECT_GT(checkpoint::read_manifest(cut.path).files.size(), 20);
  EXPECT_TRUE(checkpoint::verify(cut.path).empty());
  const auto difference = checkpoint::compare(whole.path, cut.path);
  EXPECT_EQ(difference.tensors, whole.tensors);
  EXPECT_TRUE(difference.differences.empty());
}

// What a run leaves that begins with the recipe's folder, its optimizer apart.
void save_model_of_run(
    const config::Recipe& recipe,
    const mesh::DeviceMesh& mesh,
    const std::filesystem::path& folder,
    int64_t step) {
  auto job = train::make_train_job(recipe, mesh);
  train::load_initial_weights(recipe, job);
  train::RunLayout layout;
  layout.recipe = config::to_yaml(recipe);
  auto dicts = train::state_dicts(job);
  dicts.erase("optimizer");
  checkpoint::save(folder, dicts, {.step = step, .layout = to_json(layout)});
}

TEST_P(HubModels, ComeBackFromARunOnAnyMesh) {
  const fixtures::TempFolder temp;
  test::run_ranks(4, [&](test::RankContext& rank) {
    const auto recipe = hub_job_recipe(stored_hub_folder(GetParam()), 2, 2);
    save_model_of_run(
        recipe, rank.mesh({2, 2}, {"dp", "tp"}), temp / "run", /*step=*/7);
  });
  export_model(temp / "run/step-7", temp / "back", {.dtype = at::kFloat});
  // And transformers' numbers from the folder that was written.
  test::run_ranks(1, [&](test::RankContext& rank) {
    const auto recipe = hub_job_recipe(temp / "back", 1, 1);
    auto job = train::make_train_job(recipe, rank.mesh({1, 1}, {"dp", "tp"}));
    train::load_initial_weights(recipe, job);
    expect_as_transformers(GetParam(), recipe, job);
  });
}

TEST_P(HubModels, BeginFromACheckpointOfThem) {
  const fixtures::TempFolder temp;
  import_model(stored_hub_folder(GetParam()), temp / "run");
  test::run_ranks(3, [&](test::RankContext& rank) {
    auto recipe = hub_job_recipe(stored_hub_folder(GetParam()), 1, 3);
    recipe.model.from.clear();
    recipe.checkpoint.init_from = temp / "run";
    auto job = train::make_train_job(recipe, rank.mesh({1, 3}, {"dp", "tp"}));
    train::load_initial_weights(recipe, job);
    expect_as_transformers(GetParam(), recipe, job);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Stored,
    HubModels,
    ::testing::Values("llama", "llama_tied", "gpt2", "mixtral"),
    [](const auto& info) { return info.param; });

TEST(Hub, NamesMayComeWithoutThePrefixAndWithBuffersAndCopies) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("gpt2", temp);
  const auto path = folder / "model.safetensors";
  auto file = TensorFile::read(path);
  const auto names = file.header;
  for (const auto& [name, entry] : names.items()) {
    if (name.starts_with("transformer.")) {
      file.rename(name, name.substr(std::string("transformer.").size()));
    }
  }
  file.add("h.0.attn.bias", "U8", {1, 1, 2, 2}, std::string(4, '\1'));
  file.add("h.0.attn.masked_bias", "F32", {}, std::string(4, '\0'));
  file.add(
      "lm_head.weight",
      "F32",
      {kHubVocabulary, 12},
      file.bytes_of("wte.weight"));
  file.write(path);
  test::run_ranks(2, [&](test::RankContext& rank) {
    const auto recipe = hub_job_recipe(folder, 1, 2);
    auto job = train::make_train_job(recipe, rank.mesh({1, 2}, {"dp", "tp"}));
    train::load_initial_weights(recipe, job);
    expect_as_transformers("gpt2", recipe, job);
  });
  // A head of its own is no copy.
  auto other = file.bytes_of("wte.weight");
  other[100] ^= 1;
  file.rename("lm_head.weight", "");
  file.add("lm_head.weight", "F32", {kHubVocabulary, 12}, other);
  file.write(path);
  test::run_ranks(1, [&](test::RankContext& rank) {
    const auto recipe = hub_job_recipe(folder, 1, 1);
    auto job = train::make_train_job(recipe, rank.mesh({1, 1}, {"dp", "tp"}));
    EXPECT_THAT(
        fixtures::message_of<mesh::UsageError>(
            [&] { train::load_initial_weights(recipe, job); }),
        HasSubstr("lm_head.weight differs from transformer.wte.weight"));
  });
}

// As safetensors' save_model() writes a tied model: of the names that share
// memory, one; the others stand in the metadata.
TEST(Hub, TiedWeightsMayHaveTheNameOfTheHead) {
  for (const std::string name : {"llama_tied", "gpt2"}) {
    const fixtures::TempFolder temp;
    const auto folder = copy_hub_folder(name, temp);
    const std::string embedding =
        name == "gpt2" ? "transformer.wte.weight" : "model.embed_tokens.weight";
    std::string shard = "model.safetensors";
    const auto index_path = folder / "model.safetensors.index.json";
    if (std::filesystem::exists(index_path)) {
      auto index = nlohmann::json::parse(fixtures::read_text(index_path));
      auto& files = index.at("weight_map");
      shard = files.at(embedding).get<std::string>();
      files.erase(embedding);
      files["lm_head.weight"] = shard;
      std::ofstream(index_path) << index;
    }
    auto file = TensorFile::read(folder / shard);
    file.rename(embedding, "lm_head.weight");
    file.header["__metadata__"][embedding] = "lm_head.weight";
    file.write(folder / shard);
    test::run_ranks(2, [&](test::RankContext& rank) {
      const auto recipe = hub_job_recipe(folder, 1, 2);
      auto job = train::make_train_job(recipe, rank.mesh({1, 2}, {"dp", "tp"}));
      train::load_initial_weights(recipe, job);
      expect_as_transformers(name, recipe, job);
    });
  }
}

TEST(Hub, AnIndexBesideOneFileIsSaidToBePassedOver) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("gpt2", temp);
  EXPECT_EQ(import_model(folder, temp / "alone").notice, "");
  temp.write("model/model.safetensors.index.json", "{\"weight_map\": {}}");
  const std::string notice =
      "the weights are those of model.safetensors; "
      "model.safetensors.index.json is there too and is not read";
  EXPECT_THAT(import_model(folder, temp / "both").notice, HasSubstr(notice));
  test::run_ranks(1, [&](test::RankContext& rank) {
    const auto recipe = hub_job_recipe(folder, 1, 1);
    auto job = train::make_train_job(recipe, rank.mesh({1, 1}, {"dp", "tp"}));
    EXPECT_THAT(train::load_initial_weights(recipe, job), HasSubstr(notice));
    expect_as_transformers("gpt2", recipe, job);
  });
}

// A model that has diverged is a model still.
TEST(Hub, ACopyOfWhatIsNotANumberIsACopy) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("gpt2", temp);
  const auto path = folder / "model.safetensors";
  auto file = TensorFile::read(path);
  auto bytes = file.bytes_of("transformer.wte.weight");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + sizeof(nan), &nan, sizeof(nan));
  file.rename("transformer.wte.weight", "");
  for (const char* name : {"transformer.wte.weight", "lm_head.weight"}) {
    file.add(name, "F32", {kHubVocabulary, 12}, bytes);
  }
  file.write(path);
  import_model(folder, temp / "run");
  // Beside it all must be alike as before.
  bytes.back() ^= 1;
  file.rename("lm_head.weight", "");
  file.add("lm_head.weight", "F32", {kHubVocabulary, 12}, bytes);
  file.write(path);
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [&] { import_model(folder, temp / "other"); }),
      HasSubstr("lm_head.weight differs from transformer.wte.weight"));
}

// The one that exports it may be elsewhere.
TEST(Hub, ACheckpointKnowsItsFolderByItsWholePath) {
  const fixtures::TempFolder temp;
  const auto folder = stored_hub_folder("llama");
  const auto relative = std::filesystem::relative(folder);
  ASSERT_TRUE(relative.is_relative());
  const auto imported = import_model(relative, temp / "run");
  const auto layout =
      nlohmann::json::parse(checkpoint::read_manifest(imported.path).layout);
  EXPECT_EQ(layout.at("from"), std::filesystem::canonical(folder).string());
}

TEST(Hub, AnExportWithoutItsFolderSaysWhatIsOther) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("llama", temp);
  test::run_ranks(1, [&](test::RankContext& rank) {
    const auto recipe = hub_job_recipe(folder, 1, 1);
    save_model_of_run(
        recipe, rank.mesh({1, 1}, {"dp", "tp"}), temp / "run", /*step=*/1);
  });
  const auto all = export_model(temp / "run/step-1", temp / "all");
  EXPECT_TRUE(all.notes.empty());
  std::filesystem::remove_all(folder);
  const auto done = export_model(temp / "run/step-1", temp / "out");
  EXPECT_THAT(
      done.notes,
      ::testing::ElementsAre(
          AllOf(
              HasSubstr("model/config.json is gone"),
              HasSubstr("bos_token_id, eos_token_id and pad_token_id are null"),
              HasSubstr("max_position_embeddings is data.sequence_length, 40")),
          HasSubstr("no tokenizer was copied")));
  const auto config =
      nlohmann::json::parse(fixtures::read_text(temp / "out/config.json"));
  EXPECT_EQ(config.at("max_position_embeddings"), 40);
  EXPECT_TRUE(config.at("eos_token_id").is_null());
}

// fp16 beside what the stored folders have.
TEST(Hub, HalvesAreReadAsTheirValues) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("llama", temp);
  auto file = TensorFile::read(folder / "model.safetensors");
  auto bytes = file.bytes_of("model.norm.weight");
  const auto values =
      at::from_blob(bytes.data(), {12}, at::kFloat).to(at::kHalf);
  file.rename("model.norm.weight", "");
  file.add(
      "model.norm.weight",
      "F16",
      {12},
      {static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
  file.write(folder / "model.safetensors");
  test::run_ranks(1, [&](test::RankContext& rank) {
    const auto recipe = hub_job_recipe(folder, 1, 1);
    auto job = train::make_train_job(recipe, rank.mesh({1, 1}, {"dp", "tp"}));
    train::load_initial_weights(recipe, job);
    const auto norm = dtensor::to_local(
        job.model->named_parameters()["model.norm.weight"].detach());
    EXPECT_EQ(norm.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(norm, values.to(at::kFloat)));
  });
}

/// Calls `fail` once, and then is the allocator that it replaces.
class OneFailure : public at::Allocator {
 public:
  explicit OneFailure(std::function<void()> fail)
      : real_(c10::GetCPUAllocator()), fail_(std::move(fail)) {
    c10::SetCPUAllocator(this);
  }
  ~OneFailure() override { c10::SetCPUAllocator(real_); }

  at::DataPtr allocate(size_t bytes) override {
    if (auto fail = std::exchange(fail_, nullptr)) {
      fail();
    }
    return real_->allocate(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool has_failed() const { return !fail_; }

 private:
  at::Allocator* real_;
  std::function<void()> fail_;
};

// Exit code 4 would say that the folder is damaged, and to try again is
// useless.
TEST(Hub, ARankShortOfMemoryDoesNotCallTheFolderDamaged) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("gpt2", temp);
  // A copy is compared with what was read, in memory of its own.
  auto file = TensorFile::read(folder / "model.safetensors");
  file.add(
      "lm_head.weight",
      "F32",
      {kHubVocabulary, 12},
      file.bytes_of("transformer.wte.weight"));
  file.write(folder / "model.safetensors");
  test::run_ranks(1, [&](test::RankContext& rank) {
    const auto recipe = hub_job_recipe(folder, 1, 1);
    const auto mesh = rank.mesh({1, 1}, {"dp", "tp"});
    const auto job = train::make_train_job(recipe, mesh);
    const auto state = dtensor::module_state_dict(
        *job.model, mesh, job.model->computed_buffers());
    {
      OneFailure allocator([] { throw std::bad_alloc(); });
      EXPECT_THROW(load_weights(recipe, state, mesh.world()), std::bad_alloc);
      EXPECT_TRUE(allocator.has_failed());
    }
    // Of other failures the ranks are told the sentence, not the stack.
    OneFailure allocator([] { TORCH_CHECK(false, "no such thing"); });
    const auto text = fixtures::message_of<checkpoint::CheckpointError>(
        [&] { load_weights(recipe, state, mesh.world()); });
    EXPECT_TRUE(allocator.has_failed());
    EXPECT_EQ(text, "no such thing");
  });
}

// What is exported is what the model with its adapters computes.
TEST(Hub, AdaptersAreMergedOnExport) {
  const fixtures::TempFolder temp;
  HubResult adapted;
  test::run_ranks(2, [&](test::RankContext& rank) {
    const auto recipe = hub_job_recipe(
        stored_hub_folder("gpt2"),
        1,
        2,
        "lora: {rank: 2, alpha: 6, target_modules: [\"**.q_proj\", "
        "\"**.c_fc\", "
        "\"**.mlp.c_proj\"]}\n");
    auto job = train::make_train_job(recipe, rank.mesh({1, 2}, {"dp", "tp"}));
    train::load_initial_weights(recipe, job);
    const auto plain = run_model(recipe, job);
    {
      const at::NoGradGuard no_grad;
      for (const auto& item : job.model->named_parameters()) {
        if (item.key().find("lora_B") != std::string::npos) {
          item.value().fill_(0.05);
        }
      }
    }
    const auto result = run_model(recipe, job);
    EXPECT_GT((result.logits - plain.logits).abs().max().item<double>(), 0.1);
    train::RunLayout layout;
    layout.recipe = config::to_yaml(recipe);
    auto dicts = train::state_dicts(job);
    dicts.erase("optimizer");
    checkpoint::save(
        temp / "run", dicts, {.step = 1, .layout = to_json(layout)});
    if (rank.rank == 0) {
      adapted = result;
    }
  });
  const auto done = export_model(temp / "run/step-1", temp / "merged");
  EXPECT_EQ(done.merged, 3);
  test::run_ranks(1, [&](test::RankContext& rank) {
    const auto recipe = hub_job_recipe(temp / "merged", 1, 1);
    auto job = train::make_train_job(recipe, rank.mesh({1, 1}, {"dp", "tp"}));
    train::load_initial_weights(recipe, job);
    const auto merged = run_model(recipe, job);
    EXPECT_LT(
        (merged.logits - adapted.logits).abs().max().item<double>(), 1e-4);
  });
}

} // namespace
} // namespace weft::hf
