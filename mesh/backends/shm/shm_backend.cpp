#include "mesh/backends/shm/shm_backend.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <utility>

#include "mesh/backends/shm/shm_progress.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

class ShmWork final : public BackendWork {
 public:
  ShmWork(
      std::shared_ptr<ShmProgress> progress,
      std::shared_ptr<ShmGroup> group,
      std::shared_ptr<ShmOperation> operation)
      : progress_(std::move(progress)),
        group_(std::move(group)),
        operation_(std::move(operation)) {}

  void wait() override { progress_->wait(*operation_); }
  bool is_completed() const override { return progress_->is_done(*operation_); }
  bool when_completed(std::function<void()> callback) override {
    return progress_->when_done(*operation_, std::move(callback));
  }

 private:
  std::shared_ptr<ShmProgress> progress_;
  std::shared_ptr<ShmGroup> group_;
  std::shared_ptr<ShmOperation> operation_;
};

class ShmBackend final : public Backend {
 public:
  ShmBackend(
      GroupMembers members,
      std::shared_ptr<ShmProgress> progress,
      std::shared_ptr<ShmGroup> group)
      : Backend(std::move(members)),
        progress_(std::move(progress)),
        group_(std::move(group)) {}

  std::string_view kind() const override { return "shm"; }
  bool supports(c10::DeviceType device) const override {
    return device == c10::DeviceType::CPU;
  }

  std::unique_ptr<BackendWork> all_reduce(const at::Tensor& tensor, ReduceOp op)
      override {
    return start(shm_all_reduce(shape(), kShmSlotBytes, tensor, op));
  }
  std::unique_ptr<BackendWork> all_gather(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts) override {
    return start(shm_all_gather(shape(), kShmSlotBytes, output, input, counts));
  }
  std::unique_ptr<BackendWork> reduce_scatter(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts,
      ReduceOp op) override {
    return start(
        shm_reduce_scatter(shape(), kShmSlotBytes, output, input, counts, op));
  }
  std::unique_ptr<BackendWork> all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& output_counts,
      const Counts& input_counts) override {
    return start(shm_all_to_all(
        shape(), kShmSlotBytes, output, input, output_counts, input_counts));
  }
  std::unique_ptr<BackendWork> broadcast(const at::Tensor& tensor, int64_t root)
      override {
    return start(shm_broadcast(shape(), kShmSlotBytes, tensor, root));
  }
  std::unique_ptr<BackendWork> barrier() override {
    return start(shm_barrier(shape()));
  }

  void abort() noexcept override {
    progress_->abort(*group_, "The group was aborted");
  }

 private:
  ShmShape shape() const { return group_->shape(); }

  std::unique_ptr<BackendWork> start(std::unique_ptr<ShmCall> call) {
    call->set_identity(identity());
    auto operation = progress_->start(*group_, std::move(call));
    if (operation->done && operation->failure.empty()) {
      return nullptr;
    }
    return std::make_unique<ShmWork>(progress_, group_, std::move(operation));
  }

  std::shared_ptr<ShmProgress> progress_;
  std::shared_ptr<ShmGroup> group_;
};

std::string first_line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string target_of(const char* link) {
  std::array<char, 256> text{};
  const ssize_t size = ::readlink(link, text.data(), text.size());
  return size < 0 ? std::string() : std::string(text.data(), size);
}

} // namespace

std::shared_ptr<ShmProgress> make_shm_progress(
    int64_t local_ranks,
    int64_t cores) {
  return std::make_shared<ShmProgress>(local_ranks, cores);
}

std::string shm_domain() {
  if (!ShmSegment::is_supported()) {
    return {};
  }
  return detail::concat(
      first_line_of("/proc/sys/kernel/random/boot_id"),
      " ",
      first_line_of("/proc/sys/kernel/hostname"),
      " ",
      target_of("/proc/self/ns/net"),
      " ",
      target_of("/proc/self/ns/pid"),
      " ",
      ::geteuid());
}

std::shared_ptr<Backend> make_shm_backend(
    GroupMembers members,
    const GroupRendezvous& rendezvous,
    const std::shared_ptr<ShmProgress>& progress) {
  std::shared_ptr<ShmGroup> group(
      new ShmGroup(members, rendezvous, progress->doorbell()),
      [progress](ShmGroup* last) {
        progress->forget(*last);
        delete last;
      });
  return std::make_shared<ShmBackend>(
      std::move(members), progress, std::move(group));
}

} // namespace weft::mesh
