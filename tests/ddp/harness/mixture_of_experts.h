#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/ddp/harness/model.h"

namespace weft::test {

/// Two experts; the first half of the replicas has one, the rest the other, and
/// each half reduces its expert's gradients alone. All replicas' losses have
/// the same weight. The twin has both.
/// Source: torch/testing/_internal/common_fsdp.py.
struct MixtureOfExperts : HarnessModel {
  /// The twin of `replicas` replicas.
  explicit MixtureOfExperts(int64_t replicas);
  /// Collective: all ranks of `dp`.
  explicit MixtureOfExperts(const mesh::DeviceMesh& dp);

  at::Tensor forward(const Inputs& inputs) override;
  std::vector<ddp::ParameterGroup> parameter_groups() const override;
  std::string name_in_twin(const std::string& name) const override;
  dtensor::Placement placement_of(const std::string& name) const override;
  double phase_of(const std::string& name, int64_t place) const override;

  /// Rows, and which expert takes each.
  Inputs make_input(int64_t rank, int64_t step, int64_t rows) const override;
  at::Tensor make_loss(const Inputs& inputs, const at::Tensor& output) override;

  torch::nn::Linear first{nullptr}, shared{nullptr}, last{nullptr};
  /// In the twin one for each half.
  std::vector<torch::nn::Linear> experts;

 private:
  int64_t expert_of(int64_t rank) const { return rank * 2 / replicas_; }
  void register_shared();

  int64_t replicas_;
  /// This replica's.
  std::optional<int64_t> own_expert_;
  std::optional<mesh::DeviceMesh> expert_mesh_;
};

} // namespace weft::test
