#include "elastic/quorum.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft::elastic {
namespace {

double to_ms(Time time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

} // namespace

QuorumRecorder::QuorumRecorder(std::shared_ptr<LighthouseLink> link)
    : link_(std::move(link)) {}

void QuorumRecorder::enter(
    const Epoch& epoch,
    const std::vector<int64_t>& numbers,
    Time left,
    Time now) {
  Quorum quorum;
  quorum.lighthouse = epoch.number.ballot;
  quorum.epoch = static_cast<int64_t>(epoch.number.count);
  quorum.groups = numbers;
  quorum.lives = epoch.members;
  quorum.steps_redone = next_ ? next_->steps_redone : 0;
  next_members_.clear();
  for (size_t i = 0; i < numbers.size(); ++i) {
    next_members_.emplace(epoch.members[i], numbers[i]);
    if (!members_.contains(epoch.members[i])) {
      quorum.joined.push_back(numbers[i]);
    }
  }
  auto since = left;
  for (const auto& [group, number] : members_) {
    if (!next_members_.contains(group)) {
      const auto end = ended(group);
      quorum.lost.push_back({.group = number, .why = end ? end->why : ""});
      since = end && end->when < since ? end->when : since;
    }
  }
  quorum.reconfigure_ms = since > Time{0} ? to_ms(now - since) : 0;
  next_ = std::move(quorum);
}

void QuorumRecorder::begin_step(int64_t step) {
  if (next_ && step == begun_step_) {
    ++next_->steps_redone;
  }
  begun_step_ = step;
}

void QuorumRecorder::note_transfer(int64_t bytes, double ms) {
  if (next_) {
    next_->state_bytes = bytes;
    next_->state_ms = ms;
  }
}

void QuorumRecorder::commit(int64_t step) {
  if (next_) {
    next_->step = step;
    taken_ = std::exchange(next_, std::nullopt);
    members_ = std::exchange(next_members_, {});
  }
}

std::optional<Quorum> QuorumRecorder::take() {
  return std::exchange(taken_, std::nullopt);
}

// "TIME WHY", by the clock that all processes of the host have.
std::optional<QuorumRecorder::Ended> QuorumRecorder::ended(
    GroupId group) const {
  const auto store = link_->store();
  const auto key = ended_key(group);
  if (!store->check({key})) {
    return std::nullopt;
  }
  const auto bytes = store->get(key);
  const std::string text(bytes.begin(), bytes.end());
  const auto space = std::min(text.find(' '), text.size());
  int64_t when = 0;
  std::from_chars(text.data(), text.data() + space, when);
  return Ended{
      .when = Time(when), .why = text.substr(std::min(space + 1, text.size()))};
}

} // namespace weft::elastic
