#include "elastic/link/lighthouse_link.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/bootstrap/env.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"

namespace weft::elastic {
namespace {

using mesh::CommError;
using mesh::throw_error;
using std::chrono::milliseconds;
using Op = lighthouse::StoreRequest::Op;

constexpr const char* kFd = "WEFT_LIGHTHOUSE_FD";
constexpr const char* kGroup = "WEFT_GROUP_LIFE";

[[noreturn]] void throw_gone() {
  throw_error<CommError>(
      "[lighthouse] the connection to weftrun is closed: weftrun has ended, or "
      "has started this worker's replica group again");
}

std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

class LinkStore final : public c10d::Store {
 public:
  explicit LinkStore(std::shared_ptr<LighthouseLink> link)
      : link_(std::move(link)) {}

  /// The copy shares the connection, because requests of several threads do not
  /// wait for each other.
  c10::intrusive_ptr<c10d::Store> clone() override {
    auto copy = c10::make_intrusive<LinkStore>(link_);
    copy->setTimeout(getTimeout());
    return copy;
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    ask({.op = Op::kSet, .keys = {key}, .value = text_of(value)});
  }
  std::vector<uint8_t> compareSet(
      const std::string& key,
      const std::vector<uint8_t>& expected,
      const std::vector<uint8_t>& desired) override {
    return bytes_of(ask({.op = Op::kCompareSet,
                         .keys = {key},
                         .value = text_of(desired),
                         .expected = text_of(expected)})
                        .values.at(0));
  }
  std::vector<uint8_t> get(const std::string& key) override {
    return bytes_of(ask({.op = Op::kGet, .keys = {key}}).values.at(0));
  }
  std::vector<std::vector<uint8_t>> multiGet(
      const std::vector<std::string>& keys) override {
    std::vector<std::vector<uint8_t>> result;
    for (const auto& value : ask({.op = Op::kGet, .keys = keys}).values) {
      result.push_back(bytes_of(value));
    }
    return result;
  }
  int64_t add(const std::string& key, int64_t value) override {
    return ask({.op = Op::kAdd, .keys = {key}, .amount = value}).number;
  }
  bool deleteKey(const std::string& key) override {
    return ask({.op = Op::kDelete, .keys = {key}}).number != 0;
  }
  bool check(const std::vector<std::string>& keys) override {
    return ask({.op = Op::kCheck, .keys = keys}).number != 0;
  }
  int64_t getNumKeys() override { return ask({.op = Op::kCount}).number; }
  std::vector<std::string> listKeys() override {
    return ask({.op = Op::kList}).values;
  }
  void wait(const std::vector<std::string>& keys) override {
    wait(keys, getTimeout());
  }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout)
      override {
    link_->ask({.op = Op::kWait, .keys = keys}, timeout);
  }

 private:
  lighthouse::StoreAnswer ask(lighthouse::StoreRequest request) {
    return link_->ask(std::move(request), getTimeout());
  }

  std::shared_ptr<LighthouseLink> link_;
};

} // namespace

std::shared_ptr<LighthouseLink> LighthouseLink::from_env() {
  const auto fd =
      mesh::env::get_int(kFd, 0, std::numeric_limits<int32_t>::max());
  const auto group =
      mesh::env::get_int(kGroup, 1, std::numeric_limits<int64_t>::max());
  const auto number = mesh::env::get_int(
      "REPLICA_GROUP_ID", 0, std::numeric_limits<int32_t>::max());
  if (!fd || !group) {
    throw_error<mesh::UsageError>(
        "[lighthouse] this process has no connection to a lighthouse. Start it "
        "with weftrun --replica-size N");
  }
  // Processes that this one starts must not use the connection.
  mesh::env::unset(kFd);
  ::fcntl(static_cast<int>(*fd), F_SETFD, FD_CLOEXEC);
  return std::make_shared<LighthouseLink>(
      base::UniqueFd(static_cast<int>(*fd)),
      GroupLife{
          .id = static_cast<lighthouse::GroupId>(*group),
          .number = number.value_or(0),
          .is_restarted =
              mesh::env::get("TORCHELASTIC_RESTART_COUNT").value_or("0") != "0",
          .groups =
              mesh::env::get_int(
                  "NUM_REPLICA_GROUPS", 0, std::numeric_limits<int32_t>::max())
                  .value_or(0)});
}

LighthouseLink::LighthouseLink(base::UniqueFd fd, GroupLife group)
    : fd_(std::move(fd)), group_(group), thread_([this] { read(); }) {}

LighthouseLink::~LighthouseLink() {
  ::shutdown(fd_.get(), SHUT_RDWR);
  thread_.join();
}

void LighthouseLink::listen(OnReply on_reply) {
  const std::lock_guard lock(reply_mutex_);
  on_reply_ = std::move(on_reply);
}

void LighthouseLink::send(const lighthouse::Message& message) {
  const auto bytes = lighthouse::encode(message);
  const std::lock_guard lock(send_mutex_);
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t size = ::send(
        fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (size < 0 && errno != EINTR) {
      throw_gone();
    }
    sent += static_cast<size_t>(std::max<ssize_t>(size, 0));
  }
}

lighthouse::StoreAnswer LighthouseLink::ask(
    lighthouse::StoreRequest request,
    milliseconds timeout) {
  {
    const std::lock_guard lock(mutex_);
    request.id = next_id_++;
    answers_.emplace(request.id, std::nullopt);
  }
  try {
    send(request);
  } catch (const CommError&) {
    const std::lock_guard lock(mutex_);
    answers_.erase(request.id);
    throw;
  }
  std::unique_lock lock(mutex_);
  const auto& answer = answers_.at(request.id);
  changed_.wait_for(lock, timeout, [&] { return answer || is_closed_; });
  auto result = std::move(answers_.extract(request.id).mapped());
  if (result) {
    return *std::move(result);
  }
  if (is_closed_) {
    throw_gone();
  }
  lock.unlock();
  send(lighthouse::StoreRequest{
      .op = Op::kCancel, .amount = static_cast<int64_t>(request.id)});
  const bool waits_for_keys = request.op == Op::kWait || request.op == Op::kGet;
  throw_error<mesh::TimeoutError>(mesh::detail::concat(
      waits_for_keys
          ? "[lighthouse] no worker has set the keys "
          : "[lighthouse] weftrun has not answered a request for the keys ",
      c10::Join(", ", request.keys),
      " within ",
      mesh::format_seconds(timeout),
      waits_for_keys
          ? ". The logs of the other workers show how far they have come."
          : ". Check whether weftrun is stopped or its host is overloaded."));
}

c10::intrusive_ptr<c10d::Store> LighthouseLink::store() {
  return c10::make_intrusive<LinkStore>(shared_from_this());
}

void LighthouseLink::read() {
  pthread_setname_np(pthread_self(), "weft_link");
  std::array<char, 16384> buffer;
  lighthouse::MessageReader incoming;
  try {
    while (true) {
      const ssize_t size = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
      if (size == 0 || (size < 0 && errno != EINTR)) {
        break;
      }
      incoming.append(
          {buffer.data(), static_cast<size_t>(std::max<ssize_t>(size, 0))});
      while (const auto message = incoming.take()) {
        take(*message);
      }
    }
  } catch (const lighthouse::WireError&) {
    // A malformed message counts as a closed connection.
  }
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

void LighthouseLink::take(const lighthouse::Message& message) {
  if (const auto* reply = std::get_if<lighthouse::Reply>(&message)) {
    const std::lock_guard lock(reply_mutex_);
    if (on_reply_) {
      on_reply_(*reply);
    }
  } else if (
      const auto* answer = std::get_if<lighthouse::StoreAnswer>(&message)) {
    const std::lock_guard lock(mutex_);
    const auto waiting = answers_.find(answer->id);
    if (waiting != answers_.end()) {
      waiting->second = *answer;
      changed_.notify_all();
    }
  }
}

} // namespace weft::elastic
