#include "mesh/backends/staged_backend.h"

#include <utility>

#include <ATen/ops/empty.h>

namespace weft::mesh {
namespace {

class StagedBackend final : public Backend {
 public:
  StagedBackend(std::shared_ptr<Backend> host, c10::DeviceType device)
      : Backend(host->members()), host_(std::move(host)), device_(device) {}

  void announce(uint64_t identity) override { host_->announce(identity); }
  std::string_view kind() const override { return "staged"; }
  bool supports(c10::DeviceType device) const override {
    return device == device_;
  }

  std::unique_ptr<BackendWork> all_reduce(const at::Tensor& tensor, ReduceOp op)
      override {
    return in_place(tensor, [&](const at::Tensor& copy) {
      return host_->all_reduce(copy, op);
    });
  }
  std::unique_ptr<BackendWork> broadcast(const at::Tensor& tensor, int64_t root)
      override {
    return in_place(tensor, [&](const at::Tensor& copy) {
      return host_->broadcast(copy, root);
    });
  }
  std::unique_ptr<BackendWork> all_gather(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts) override {
    return from_to(output, input, [&](const auto& to, const auto& from) {
      return host_->all_gather(to, from, counts);
    });
  }
  std::unique_ptr<BackendWork> reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts,
      ReduceOp op) override {
    return from_to(output, input, [&](const auto& to, const auto& from) {
      return host_->reduce_scatter(to, from, counts, op);
    });
  }
  std::unique_ptr<BackendWork> all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& output_counts,
      const Counts& input_counts) override {
    return from_to(output, input, [&](const auto& to, const auto& from) {
      return host_->all_to_all(to, from, output_counts, input_counts);
    });
  }
  std::unique_ptr<BackendWork> barrier() override { return host_->barrier(); }
  void abort() noexcept override { host_->abort(); }
  GroupFailure failure() const override { return host_->failure(); }

 private:
  static void finish(std::unique_ptr<BackendWork> pending) {
    if (pending) {
      pending->wait();
    }
  }

  template <class Start>
  std::unique_ptr<BackendWork> in_place(
      const at::Tensor& tensor,
      const Start& start) {
    // Copies the tensor even if it is on the CPU already.
    const auto copy = tensor.to(at::kCPU, tensor.scalar_type(), false, true);
    finish(start(copy));
    tensor.copy_(copy);
    return nullptr;
  }

  template <class Start>
  std::unique_ptr<BackendWork> from_to(
      const at::Tensor& output,
      const at::Tensor& input,
      const Start& start) {
    const auto to =
        at::empty(output.sizes(), output.options().device(at::kCPU));
    finish(start(to, input.cpu()));
    output.copy_(to);
    return nullptr;
  }

  std::shared_ptr<Backend> host_;
  c10::DeviceType device_;
};

} // namespace

std::shared_ptr<Backend> make_staged_backend(
    std::shared_ptr<Backend> host,
    c10::DeviceType device) {
  return std::make_shared<StagedBackend>(std::move(host), device);
}

} // namespace weft::mesh
