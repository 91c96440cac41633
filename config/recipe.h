#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/choices.h"

namespace weft::models {
struct ModelType; // models/registry.h
} // namespace weft::models

namespace weft::config {

using ModelTypes = std::vector<models::ModelType>;
/// The model types that a program registers in addition to Weft's own. See
/// known_models().
struct KnownModels {
  /// Null if there are none.
  std::shared_ptr<const ModelTypes> types;
  std::vector<std::string> names;
};

/// A map of a recipe whose keys are not in the schema: values as YAML by name.
using OptionMap = std::map<std::string, std::string, std::less<>>;

/// schema_*.cpp documents the keys; docs/recipe.md is generated from it.
struct MeshConfig {
  int64_t dp = -1;
  int64_t tp = 1;
  int64_t dp_shard = 1;
  bool operator==(const MeshConfig&) const = default;

  /// Returns the number of ranks with different samples of one batch. Only for
  /// a resolved mesh.
  int64_t batch_ranks() const { return dp * dp_shard; }
  int64_t world_size() const { return dp * dp_shard * tp; }
  /// Returns true if parameters are sharded over dp_shard.
  bool is_sharded() const { return dp_shard > 1; }
  /// Returns "dp=2 tp=2", with dp_shard if it is above 1.
  std::string to_string() const;
};

/// The scaling of rotary frequencies for sequences longer than those of the
/// original training.
struct RopeScalingConfig {
  RopeType rope_type = RopeType::kNone;
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
  bool operator==(const RopeScalingConfig&) const = default;
};

/// schema_model.cpp documents which of these keys a model has.
struct ModelConfig {
  std::string from;
  std::string type = "llama";
  int64_t dim = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t ffn_dim = 0;
  int64_t vocab_size = 256;
  int64_t max_position_embeddings = 0;
  double rope_theta = 10000.0;
  double norm_eps = 1e-5;
  bool tie_embeddings = false;
  double attention_dropout = 0;
  double dropout = 0;
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 2;
  double router_aux_loss_coef = 0.01;
  double router_z_loss_coef = 0;
  int64_t image_size = 8;
  int64_t patch_size = 2;
  int64_t channels = 1;
  int64_t num_classes = 10;
  RopeScalingConfig rope_scaling;
  /// The options of a model that a program registers.
  OptionMap options;
  bool operator==(const ModelConfig&) const = default;
};

struct TpConfig {
  bool sequence_parallel = true;
  bool loss_parallel = true;
  /// `tp.async`, which is not a valid name in C++.
  AsyncTp async_tp = AsyncTp::kAuto;
  bool operator==(const TpConfig&) const = default;
};

struct DdpConfig {
  double bucket_cap_mb = 25.0;
  BucketMode bucket_mode = BucketMode::kConcatenated;
  bool auto_bucketing = false;
  bool gradient_as_bucket_view = true;
  bool batched_grad_copy = false;
  bool static_graph = false;
  bool check_for_nan_in_grad = false;
  DdpCommHook comm_hook = DdpCommHook::kNone;
  int64_t power_sgd_rank = 1;
  int64_t power_sgd_start_iter = 1000;
  ParamDtype param_dtype = ParamDtype::kNone;
  ReduceDtype reduce_dtype = ReduceDtype::kNone;
  bool operator==(const DdpConfig&) const = default;
};

struct FsdpConfig {
  std::vector<std::string> units = {"auto"};
  ReshardAfterForward reshard_after_forward = ReshardAfterForward::kAuto;
  int64_t reshard_to = 0;
  int64_t forward_prefetch = 1;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  int64_t reduce_in_flight = 1;
  Accumulate accumulate = Accumulate::kSharded;
  FsdpCommHook comm_hook = FsdpCommHook::kNone;
  ParamDtype param_dtype = ParamDtype::kNone;
  ReduceDtype reduce_dtype = ReduceDtype::kNone;
  bool operator==(const FsdpConfig&) const = default;
};

/// Training in replica groups that come and go: docs/elastic.md.
struct ElasticConfig {
  ElasticBatch batch = ElasticBatch::kNone;
  /// With "exact": see elastic::ManagerOptions. 0 is resolved to the number of
  /// replica groups.
  int64_t lanes = 0;
  int64_t min_groups = 1;
  int64_t join_timeout_s = 60;
  bool is_on() const { return batch != ElasticBatch::kNone; }
  bool operator==(const ElasticConfig&) const = default;
};

struct CommConfig {
  int64_t timeout_s = 300;
  bool operator==(const CommConfig&) const = default;
};

struct DataConfig {
  DataType type = DataType::kText;
  std::vector<std::string> paths;
  std::string tokenizer = "byte";
  TokenFormat format = TokenFormat::kAuto;
  TokenDtype dtype = TokenDtype::kAuto;
  int64_t sequence_length = 128;
  bool operator==(const DataConfig&) const = default;
};

struct TrainConfig {
  int64_t steps = 1000;
  int64_t global_batch_size = 16;
  int64_t micro_batch_size = 0;
  double max_grad_norm = 1.0;
  TrainDtype dtype = TrainDtype::kFloat32;
  double z_loss = 0;
  double label_smoothing = 0;
  ActivationCheckpoint activation_checkpoint = ActivationCheckpoint::kNone;
  std::vector<std::string> activation_checkpoint_modules;
  OnNonFinite on_non_finite = OnNonFinite::kStop;
  int64_t max_consecutive_non_finite = 10;
  int64_t log_every = 10;
  bool operator==(const TrainConfig&) const = default;
};

/// LoRA adapters.
struct LoraConfig {
  int64_t rank = 0;
  double alpha = 16.0;
  double dropout = 0;
  std::vector<std::string> target_modules;
  bool operator==(const LoraConfig&) const = default;
};

struct OptimizerConfig {
  OptimizerType type = OptimizerType::kAdamW;
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool operator==(const OptimizerConfig&) const = default;
};

struct LrScheduleConfig {
  LrScheduleType type = LrScheduleType::kCosine;
  int64_t warmup_steps = 0;
  double min_ratio = 0.1;
  bool operator==(const LrScheduleConfig&) const = default;
};

struct EvalConfig {
  int64_t every = 0;
  int64_t batches = 8;
  bool operator==(const EvalConfig&) const = default;
};

/// An exponential moving average (EMA) of the weights.
struct EmaConfig {
  double decay = 0;
  bool eval = false;
  bool operator==(const EmaConfig&) const = default;
};

struct CheckpointConfig {
  int64_t every = 0;
  int64_t keep = 3;
  bool async = true;
  double max_mb_per_s = 0;
  bool fsync = true;
  Checksum checksum = Checksum::kXxh3;
  std::string hmac_key_file;
  Resume resume = Resume::kAuto;
  std::string init_from;
  std::vector<std::string> init_include;
  std::vector<std::string> init_exclude;
  std::vector<std::string> init_rename;
  InitStrict init_strict = InitStrict::kExact;
  std::string export_to;
  bool operator==(const CheckpointConfig&) const = default;
};

/// Checks values that must be identical on several ranks.
struct IntegrityCheckConfig {
  int64_t every = 10;
  bool hash_weights = true;
  bool operator==(const IntegrityCheckConfig&) const = default;
};

/// Compares the busy times of ranks.
struct StragglerDetectionConfig {
  int64_t every = 4;
  bool operator==(const StragglerDetectionConfig&) const = default;
};

struct LogConfig {
  bool tensorboard = false;
  bool operator==(const LogConfig&) const = default;
};

struct TraceConfig {
  int64_t first_step = 3;
  int64_t steps = 0;
  bool operator==(const TraceConfig&) const = default;
};

/// 0 means the cost model's value.
struct LinksConfig {
  double dp_latency_us = 0;
  double dp_bandwidth_gb_s = 0;
  double tp_latency_us = 0;
  double tp_bandwidth_gb_s = 0;
  bool operator==(const LinksConfig&) const = default;
};

struct CommunicationBudgetConfig {
  double mb_per_step = 0;
  int64_t collectives_per_step = 0;
  int64_t implicit_collectives = -1;
  bool operator==(const CommunicationBudgetConfig&) const = default;
};

/// The places where the values of a recipe were written, for error messages,
/// and the models that the reading program knows. It does not affect the
/// equality of recipes.
struct Origins {
  /// The file name in messages.
  std::string source;
  /// By dotted key: "recipes/x.yaml:12:7" or "override mesh.dp=3".
  std::map<std::string, std::string, std::less<>> places;
  KnownModels models;
  bool operator==(const Origins& /*other*/) const { return true; }
};

/// A training run: model, mesh, data and training options.
struct Recipe {
  std::string name;
  Device device = Device::kCpu;
  int64_t seed = 42;
  std::string output_dir;
  MeshConfig mesh;
  ModelConfig model;
  TpConfig tp;
  DdpConfig ddp;
  FsdpConfig fsdp;
  CommConfig comm;
  ElasticConfig elastic;
  DataConfig data;
  TrainConfig train;
  LoraConfig lora;
  OptimizerConfig optimizer;
  LrScheduleConfig lr_schedule;
  EmaConfig ema;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  IntegrityCheckConfig integrity_check;
  StragglerDetectionConfig straggler_detection;
  LogConfig log;
  TraceConfig trace;
  Products products = Products::kAuto;
  CostModel cost_model = CostModel::kDefault;
  LinksConfig links;
  CommunicationBudgetConfig communication_budget;
  Origins origins;

  bool operator==(const Recipe&) const = default;
};

/// Reads a recipe strictly, and then the overrides (`key.path=YAML value`) in
/// order; `source` is the file name in messages. `models` are the values of
/// model.type in addition to Weft's own. complete() must follow.
/// Throws: mesh::UsageError: "FILE:LINE:COLUMN: KEY: error".
Recipe read_recipe(
    std::string_view text,
    const std::string& source,
    std::span<const std::string> overrides = {},
    KnownModels models = {});

/// Checks, after all values are set, that the recipe has all keys that its
/// model and data need, and no others. The default of the name is the file's
/// name.
/// Throws: mesh::UsageError like read_recipe().
void complete(Recipe& recipe);

/// Reads the output of to_yaml(), also with former names of keys
/// (renamed_keys()). Does not check folders, which may have changed.
/// Throws: mesh::UsageError like read_recipe().
Recipe parse_stored_recipe(
    std::string_view text,
    const std::string& source,
    KnownModels models = {});

/// Returns every key with its value. Reading it gives an equal recipe.
std::string to_yaml(const Recipe& recipe);

/// Returns the value of a schema key or option as YAML; "nothing" for an option
/// that is not set.
std::string value_of(const Recipe& recipe, std::string_view path);

/// Returns the keys whose values differ and have an effect in one of the
/// recipes. Options are compared separately.
std::vector<std::string> differing_keys(const Recipe& a, const Recipe& b);

/// Returns "recipes/x.yaml:12:7: mesh.dp" or "override mesh.dp=3: mesh.dp", or
/// the file if `key` was not written.
std::string place_of(const Recipe& recipe, std::string_view key);

/// Throws: mesh::UsageError "<place_of(key)>: <message>".
[[noreturn]] void
refuse(const Recipe& recipe, std::string_view key, const std::string& message);

} // namespace weft::config
