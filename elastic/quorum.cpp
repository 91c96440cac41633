#include "elastic/quorum.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft::elastic {
namespace {

double to_ms(lighthouse::Time time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

} // namespace

void set_changes(
    const Quorum& before,
    const std::function<std::string(lighthouse::GroupId life, int64_t group)>&
        why,
    Quorum& quorum) {
  quorum.joined.clear();
  quorum.lost.clear();
  for (size_t i = 0; i < quorum.groups.size(); ++i) {
    if (std::ranges::count(before.lives, quorum.lives[i]) == 0) {
      quorum.joined.push_back(quorum.groups[i]);
    }
  }
  for (size_t i = 0; i < before.groups.size(); ++i) {
    if (std::ranges::count(quorum.lives, before.lives[i]) == 0) {
      quorum.lost.push_back(
          {.group = before.groups[i],
           .why = why(before.lives[i], before.groups[i])});
    }
  }
}

QuorumRecorder::QuorumRecorder(std::shared_ptr<LighthouseLink> link)
    : link_(std::move(link)) {}

void QuorumRecorder::enter(
    const lighthouse::Epoch& epoch,
    const std::vector<int64_t>& numbers,
    lighthouse::Time left,
    lighthouse::Time now) {
  Quorum quorum;
  quorum.lighthouse = epoch.number.ballot;
  quorum.epoch = static_cast<int64_t>(epoch.number.count);
  quorum.groups = numbers;
  quorum.lives = epoch.members;
  quorum.steps_redone = next_ ? next_->steps_redone : 0;
  auto since = left;
  set_changes(
      last_,
      [&](lighthouse::GroupId life, int64_t /*group*/) {
        const auto end = ended(life);
        since = end && end->when < since ? end->when : since;
        return end ? end->why : "";
      },
      quorum);
  quorum.reconfigure_ms = since > lighthouse::Time{0} ? to_ms(now - since) : 0;
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
    last_ = *std::exchange(next_, std::nullopt);
    is_taken_ = false;
  }
}

std::optional<Quorum> QuorumRecorder::take() {
  return std::exchange(is_taken_, true) ? std::nullopt : std::optional(last_);
}

// Reads when and why a group ended from the store, where it is "TIME WHY". All
// processes of the host share the clock.
std::optional<QuorumRecorder::Ended> QuorumRecorder::ended(
    lighthouse::GroupId group) const {
  const auto store = link_->store();
  const auto key = lighthouse::ended_key(group);
  if (!store->check({key})) {
    return std::nullopt;
  }
  const auto bytes = store->get(key);
  const std::string text(bytes.begin(), bytes.end());
  const auto space = std::min(text.find(' '), text.size());
  int64_t when = 0;
  std::from_chars(text.data(), text.data() + space, when);
  return Ended{
      .when = lighthouse::Time(when),
      .why = text.substr(std::min(space + 1, text.size()))};
}

} // namespace weft::elastic
