#include "elastic/state_transfer.h"

#include <algorithm>
#include <chrono>
#include <string>

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "data_parallel/parameters/module_state.h"
#include "data_parallel/replicas/tensor_hash.h"
#include "mesh/backends/shm/shm_progress.h"
#include "mesh/error/error.h"

namespace weft::elastic {
namespace {

/// The size of a slice in bytes. It is small, so that collectives of the step
/// can run between two slices.
constexpr int64_t kSliceBytes = int64_t{4} << 20;

/// Gives this thread the lowest priority. It still gets all of the processor
/// time while the computing threads wait for the end of the transfer.
void yield_to_training() {
  constexpr int kLowest = 19;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kLowest);
}

bool has_storage_of_its_own(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() &&
         tensor.storage_offset() == 0 &&
         tensor.storage().nbytes() == tensor.nbytes();
}

std::vector<at::Tensor> slices_of(const at::Tensor& message) {
  const auto flat = message.view({-1});
  return flat.numel() == 0 ? std::vector<at::Tensor>()
                           : flat.split(kSliceBytes / flat.element_size());
}

uint64_t with_slice(uint64_t sum, const at::Tensor& slice) {
  return sum * 31 + static_cast<uint64_t>(data_parallel::hash_of(
                        slice.const_data_ptr(), slice.nbytes()));
}

uint64_t hash_of_bits(const at::Tensor& message) {
  uint64_t sum = 0;
  for (const auto& slice : slices_of(message)) {
    sum = with_slice(sum, slice);
  }
  return sum;
}

/// Moves the content of `from` to `to`; the caller must not use `from`
/// afterwards. Swaps their memory instead of copying if possible. Tensors that
/// share the storage of `to` then see the new content.
void take_content(const at::Tensor& to, const at::Tensor& from) {
  if (has_storage_of_its_own(to) && has_storage_of_its_own(from) &&
      to.nbytes() == from.nbytes()) {
    auto* storage = from.storage().unsafeGetStorageImpl();
    storage->set_data_ptr(to.storage().unsafeGetStorageImpl()->set_data_ptr(
        storage->set_data_ptr({})));
    return;
  }
  to.copy_(from);
}

} // namespace

StateTransfer::Buffers StateTransfer::make_buffers(const SharedState& state) {
  Buffers result;
  for (const auto& part : state.tensors()) {
    for (const auto& [name, tensor] : part) {
      const auto local = data_parallel::local_part(tensor);
      result.push_back(
          at::zeros(local.sizes(), local.options().device(at::kCPU)));
    }
  }
  return result;
}

StateTransfer::StateTransfer(
    const SharedState& state,
    mesh::Communicator group,
    Buffers buffers)
    : state_(state),
      group_(std::move(group)),
      tensors_(state.tensors()),
      buffers_(std::move(buffers)),
      thread_([this] { run(); }) {}

StateTransfer::~StateTransfer() {
  bool is_cut = false;
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    is_cut = pending_ > 0;
  }
  if (is_cut) {
    group_.abort();
  }
  changed_.notify_all();
  thread_.join();
}

std::function<void()> StateTransfer::send(
    const at::Tensor& tensor,
    std::string_view name) {
  auto sent = enqueue([this, tensor, name = std::string(name)] {
    group_.broadcast(tensor, 0, name).wait();
  });
  return [sent = std::move(sent)] { sent.get(); };
}

std::shared_future<void> StateTransfer::enqueue(std::function<void()> run) {
  Message message{.run = std::move(run), .sent = std::promise<void>()};
  std::shared_future<void> sent(message.sent.get_future());
  const std::lock_guard lock(mutex_);
  if (error_) {
    message.sent.set_exception(error_);
  } else {
    messages_.push_back(std::move(message));
    ++pending_;
    changed_.notify_all();
  }
  return sent;
}

void StateTransfer::send_changes() {
  const at::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(hashes_.size());
  const auto has_changed = at::zeros({count}, at::kByte);
  std::vector<std::pair<std::string, at::Tensor>> changes;
  if (sends()) {
    auto* flags = has_changed.mutable_data_ptr<uint8_t>();
    int64_t i = 0;
    for (const auto& part : state_.tensors()) {
      for (const auto& [name, tensor] : part) {
        const auto local = data_parallel::local_part(tensor).cpu().contiguous();
        const bool is_same =
            i < count && hash_of_bits(local) == hashes_[static_cast<size_t>(i)];
        if (!is_same) {
          changes.emplace_back(name, local);
        }
        if (i < count) {
          flags[i] = is_same ? 0 : 1;
        }
        ++i;
      }
    }
    WEFT_CHECK(
        i == count,
        "elastic",
        mesh::ErrorContext(),
        "registered state: got ",
        i,
        " tensors, expected ",
        count,
        " as when the step began. Create all of them before "
        "Manager::begin_step().");
  }
  enqueue([this, has_changed, changes = std::move(changes)] {
    group_.broadcast(has_changed, 0, "changes of the state").wait();
    const auto* flags = has_changed.const_data_ptr<uint8_t>();
    uint64_t sum = 0;
    size_t next = 0;
    for (size_t i = 0; i < hashes_.size(); ++i) {
      if (flags[i] == 0) {
        continue;
      }
      const auto& message =
          sends() ? changes[next++].second : received_[i].second;
      sum = sum * 31 + transfer(message, "change of the state");
    }
    check_hash(sum);
  }).get();
}

std::optional<StateTransfer::Message> StateTransfer::next_message() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_closed_ || !messages_.empty(); });
  if (messages_.empty()) {
    return std::nullopt;
  }
  auto result = std::move(messages_.front());
  messages_.pop_front();
  return result;
}

void StateTransfer::load() {
  if (sends()) {
    return;
  }
  const at::NoGradGuard no_grad;
  for (const auto& [local, message] : received_) {
    take_content(local, message);
  }
  received_.clear();
  for (const auto& part : tensors_) {
    for (const auto& [name, tensor] : part) {
      tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
  state_.loaded(tensors_);
}

void StateTransfer::run() {
  pthread_setname_np(pthread_self(), "weft_state");
  yield_to_training();
  const at::NoGradGuard no_grad;
  // A waiting thread may destroy this object once the promise is set.
  const auto is_done = [this](std::promise<void> done) {
    {
      const std::lock_guard lock(mutex_);
      --pending_;
    }
    done.set_value();
  };
  std::optional<Message> message;
  try {
    transfer_state();
    is_done(std::exchange(arrival_, {}));
    while ((message = next_message())) {
      {
        const mesh::ExtraThread extra_thread;
        message->run();
      }
      auto sent = std::move(message->sent);
      message.reset(); // Frees its tensors before the caller continues.
      is_done(std::move(sent));
    }
  } catch (...) {
    group_.abort(); // The other ranks would wait for this one.
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    (message ? message->sent : arrival_).set_exception(error_);
    for (auto& each : messages_) {
      each.sent.set_exception(error_);
    }
  }
}

void StateTransfer::transfer_state() {
  const mesh::ExtraThread extra_thread;
  const auto start = std::chrono::steady_clock::now();
  uint64_t sum = 0;
  for (const auto& part : tensors_) {
    for (const auto& [name, tensor] : part) {
      const auto local = data_parallel::local_part(tensor);
      const auto message = message_for(local);
      hashes_.push_back(transfer(message, name));
      sum = sum * 31 + hashes_.back();
      bytes_ += static_cast<int64_t>(message.nbytes());
      if (!sends()) {
        received_.emplace_back(local, message);
      }
    }
  }
  check_hash(sum);
  milliseconds_ = std::chrono::duration<double, std::milli>(
                      std::chrono::steady_clock::now() - start)
                      .count();
}

void StateTransfer::check_hash(uint64_t sum) {
  const auto expected = at::tensor({static_cast<int64_t>(sum)});
  group_.broadcast(expected, 0, "hash of the state").wait();
  if (static_cast<uint64_t>(expected.item<int64_t>()) != sum) {
    mesh::throw_error<mesh::CommError>(
        "[elastic] the state that arrived from another group differs from "
        "what was sent");
  }
}

at::Tensor StateTransfer::message_for(const at::Tensor& local) {
  if (sends()) {
    return local.cpu().contiguous();
  }
  return received_.size() < buffers_.size()
             ? std::exchange(buffers_[received_.size()], {})
             : at::empty(local.sizes(), local.options().device(at::kCPU));
}

/// Sends or receives a tensor. Returns its hash_of_bits().
uint64_t StateTransfer::transfer(
    const at::Tensor& message,
    const std::string& name) {
  uint64_t sum = 0;
  for (const auto& slice : slices_of(message)) {
    group_.broadcast(slice, 0, name).wait();
    sum = with_slice(sum, slice);
  }
  return sum;
}

} // namespace weft::elastic
