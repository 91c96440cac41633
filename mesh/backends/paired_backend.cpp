#include "mesh/backends/paired_backend.h"

#include <utility>

#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

class PairedBackend final : public Backend {
 public:
  PairedBackend(std::shared_ptr<Backend> device, std::shared_ptr<Backend> host)
      : Backend(device->members()),
        device_(std::move(device)),
        host_(std::move(host)) {}

  void announce(uint64_t identity) override {
    device_->announce(identity);
    host_->announce(identity);
  }
  std::string_view kind() const override { return device_->kind(); }
  bool supports(c10::DeviceType type) const override {
    return device_->supports(type) || host_->supports(type);
  }

  std::unique_ptr<BackendWork> all_reduce(const at::Tensor& tensor, ReduceOp op)
      override {
    return of(tensor).all_reduce(tensor, op);
  }
  std::unique_ptr<BackendWork> all_gather(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts) override {
    return of(output, input).all_gather(output, input, counts);
  }
  std::unique_ptr<BackendWork> reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts,
      ReduceOp op) override {
    return of(output, input).reduce_scatter(output, input, counts, op);
  }
  std::unique_ptr<BackendWork> all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& output_counts,
      const Counts& input_counts) override {
    return of(output, input)
        .all_to_all(output, input, output_counts, input_counts);
  }
  std::unique_ptr<BackendWork> broadcast(const at::Tensor& tensor, int64_t root)
      override {
    return of(tensor).broadcast(tensor, root);
  }
  std::unique_ptr<BackendWork> barrier() override { return host_->barrier(); }

  // The host's barrier compares what the ranks have announced, so it succeeds
  // only if all ranks announced the same collective.
  std::unique_ptr<BackendWork> agree() override { return host_->barrier(); }

  void abort() noexcept override {
    host_->abort();
    device_->abort();
  }
  GroupFailure failure() const override {
    auto failure = device_->failure();
    return failure.reason.empty() ? host_->failure() : failure;
  }

 private:
  Backend& of(const at::Tensor& tensor) const {
    return device_->supports(tensor.device().type()) ? *device_ : *host_;
  }
  Backend& of(const at::Tensor& output, const at::Tensor& input) const {
    WEFT_CHECK(
        output.device() == input.device(),
        "collective",
        ErrorContext{members().name},
        "The output is on ",
        output.device(),
        ", the input on ",
        input.device(),
        ". Move both to the same device.");
    return of(output);
  }

  std::shared_ptr<Backend> device_;
  std::shared_ptr<Backend> host_;
};

} // namespace

std::shared_ptr<Backend> make_paired_backend(
    std::shared_ptr<Backend> device,
    std::shared_ptr<Backend> host) {
  return std::make_shared<PairedBackend>(std::move(device), std::move(host));
}

} // namespace weft::mesh
