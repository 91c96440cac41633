#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "mesh/communicator/backend.h"

namespace weft::mesh {

/// A group whose other members contribute nothing: reductions keep this rank's
/// value, and the parts of other ranks are zero. It sends nothing and works on
/// any device, including meta. It is exact for a group of one rank.
/// Source: torch/csrc/distributed/c10d/FakeProcessGroup.hpp.
class FakeBackend final : public Backend {
 public:
  FakeBackend(GroupMembers members, std::string kind);

  std::string_view kind() const override { return kind_; }
  bool supports(c10::DeviceType) const override { return true; }

  std::unique_ptr<BackendWork> all_reduce(const at::Tensor& tensor, ReduceOp op)
      override;
  std::unique_ptr<BackendWork> all_gather(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts) override;
  std::unique_ptr<BackendWork> reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts,
      ReduceOp op) override;
  std::unique_ptr<BackendWork> all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& output_counts,
      const Counts& input_counts) override;
  std::unique_ptr<BackendWork> broadcast(const at::Tensor& tensor, int64_t root)
      override;
  std::unique_ptr<BackendWork> barrier() override;
  void abort() noexcept override {}

 private:
  /// Returns this rank's part of a buffer with counts[r] elements of each rank
  /// r.
  at::Tensor own_part(const at::Tensor& buffer, const Counts& counts) const;

  std::string kind_;
};

} // namespace weft::mesh
