#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "checkpoint/store/store.h"
#include "checkpoint/tensors/tensor_file.h"
#include "config/recipe.h"
#include "hf/box.h"

namespace weft::hf {

/// The model of a checkpoint, with LoRA adapters merged into its weights.
class CheckpointWeights {
 public:
  /// With `averaged` it reads the EMA weights (part "ema") where they exist,
  /// otherwise the weights.
  /// Throws: mesh::UsageError if the checkpoint is not a complete language
  /// model of Weft's without other tensors, or has no EMA;
  /// checkpoint::CheckpointError if it is damaged.
  explicit CheckpointWeights(
      const std::filesystem::path& step_folder,
      bool averaged = false);

  const config::ModelConfig& model() const { return recipe_.model; }
  /// The sequence length of the training. 0 if the model was not trained by
  /// Weft.
  int64_t sequence_length() const { return recipe_.data.sequence_length; }
  /// The folder from which the model was loaded. Empty if there is none.
  const std::string& from() const { return recipe_.model.from; }
  /// The content of its config.json, if the checkpoint has it.
  const std::string& config() const { return config_; }
  const TensorMap& map() const { return map_; }
  int64_t num_adapters() const { return num_adapters_; }

  at::ScalarType dtype(const std::string& name) const;
  /// Returns a box of a parameter, in float32 if an adapter is merged into it.
  at::Tensor read(const std::string& name, const Box& box);

 private:
  void read_layout();
  void check_tensors();
  void check_average() const;
  std::string stored_key(const std::string& name) const;
  at::Tensor read_stored(const std::string& name, const Box& box);

  checkpoint::StepPin pin_;
  checkpoint::Manifest manifest_;
  checkpoint::ChunkReader reader_;
  std::string source_;
  bool averaged_;
  config::Recipe recipe_;
  std::string config_;
  TensorMap map_;
  int64_t num_adapters_ = 0;
};

} // namespace weft::hf
