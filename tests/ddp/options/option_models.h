#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mesh/device_mesh.h"

namespace weft::test {

/// What tests of DDP's options train. tests/ddp/oracle/option_models.py has the
/// same models in Python, with the same names and values. Legend: B batch, T
/// sequence, D dim.
struct OptionModel : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& x_BTD) = 0;

  /// Which of several graphs forward() builds; only "branches" has some.
  int64_t kind = 2;
};

constexpr int64_t kVocabulary = 10;

/// In double, with values that depend on `phase` alone.
std::shared_ptr<OptionModel> make_option_model(
    const std::string& name,
    double phase = 0.3);

/// Like make_option_model() above, on the ranks of `tp`: pairs of linears are
/// sharded by columns and rows, the rest is replicated, and activations are
/// sharded along the sequence if possible.
/// Collective: all ranks of the mesh.
std::shared_ptr<OptionModel> make_option_model(
    const std::string& name,
    const mesh::DeviceMesh& tp,
    double phase = 0.3);

/// All replicas' rows of one step. [rows, 2, 4]; for embeddings [rows, 2].
at::Tensor option_inputs(const std::string& model, int64_t rows, int64_t step);

/// `rows` as the model takes them on `tp`.
/// Collective: all ranks of the mesh.
at::Tensor place_option_inputs(
    const std::string& model,
    const at::Tensor& rows,
    const mesh::DeviceMesh& tp);

/// Whether what a row becomes depends on that row alone, so that one rank on
/// the whole batch does what the replicas do together.
bool treats_rows_alone(const std::string& model);

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A tied parameter once, under its first name.
NamedTensors unique_parameters(const torch::nn::Module& module);
std::vector<at::Tensor> tensors_of(const NamedTensors& named);

/// Mean of squares, in double and on no mesh.
/// Collective: all ranks of the output's mesh.
at::Tensor option_loss(const at::Tensor& output);

} // namespace weft::test
