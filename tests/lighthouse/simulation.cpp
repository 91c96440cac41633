#include "tests/lighthouse/simulation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "base/fnv.h"
#include "lighthouse/lighthouse.h"
#include "lighthouse/member.h"

namespace weft::lighthouse::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Time kHeartbeat = milliseconds(5);
constexpr Time kSuspect = milliseconds(20);
constexpr Time kLease = milliseconds(120);
constexpr Time kStepTimeout = milliseconds(30);
constexpr Time kFaults = milliseconds(300);
constexpr Time kEnd = milliseconds(900);
constexpr Time kLastSteps = milliseconds(100);
constexpr size_t kMostLives = 24;

/// xorshift64*: quick, and the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed)
      : state_(seed * 0x9e3779b97f4a7c15 + 0x1234567) {}
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1d;
  }
  int64_t below(int64_t limit) {
    return static_cast<int64_t>((next() >> 16) % static_cast<uint64_t>(limit));
  }
  bool one_in(int64_t n) { return below(n) == 0; }
  Time up_to(Time limit) { return Time(below(limit.count() + 1)); }

 private:
  uint64_t state_;
};

enum class Kind {
  kReport, // to the lighthouse
  kLost,
  kReply, // to a group
  kMeet,
  kState,
  kGradients,
  kReady,
  kGone,
  kHeartbeat, // of a group
  kComputed,
  kLoaded,
  kCheckProgress,
  kTick, // of the lighthouse
  kStopLighthouse,
  kStartLighthouse,
  kStartGroup,
  kFault,
};

struct Message {
  Report report;
  Reply reply;
  EpochNumber epoch;
  int64_t step = 0;
  uint64_t content = 0;
  bool leaves = false;
  /// The life of the lighthouse or the attempt that a timer belongs to.
  uint64_t token = 0;
};

struct Event {
  Time at;
  uint64_t order;
  Kind kind;
  GroupId to;
  GroupId from;
  std::shared_ptr<const Message> message;

  bool operator>(const Event& other) const {
    return std::tie(at, order) > std::tie(other.at, other.order);
  }
};

struct Group {
  Group(GroupId id, double drift, Time offset, Time now)
      : drift(drift), offset(offset), member(id, kLease, clock(now)) {}

  Time clock(Time now) const {
    return offset + Time(static_cast<int64_t>(
                        static_cast<double>(now.count()) * (1 + drift)));
  }

  double drift;
  Time offset;
  Member member;
  bool is_alive = true;
  Time stopped_until{0};
  Time cut_from_lighthouse_until{0};
  Time cut_from_groups_until{0};

  /// The weights, as a hash of all that went into them.
  uint64_t content = 0;
  uint64_t prepared_content = 0;
  EpochNumber prepared_generation;

  /// The epoch that the group has accepted last, and the messages in it.
  EpochNumber epoch;
  std::map<EpochNumber, std::set<GroupId>> meetings;
  std::map<int64_t, std::map<GroupId, uint64_t>> gradients;
  std::map<int64_t, std::map<GroupId, bool>> ready;
  std::optional<uint64_t> offered_content;
  /// The attempt and the step whose gradients are being computed.
  std::pair<uint64_t, int64_t> computing{0, 0};
  uint64_t attempt = 0;
  Time progressed{0};
  Member::Phase last_phase = Member::Phase::kOutside;
};

uint64_t content_after(uint64_t content, const EpochNumber& epoch) {
  return base::fnv1a(
      base::fnv1a(base::fnv1a(content + 0x51ed270b, epoch.ballot), epoch.count),
      0x7f4a7c15);
}

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed), seed_(seed) {
    count_ = static_cast<size_t>(2 + random_.below(4));
    may_end_groups_ = !random_.one_in(4);
    min_groups_ = random_.one_in(3) ? 2 : 1;
    start_lighthouse(true);
    for (size_t i = 0; i < count_; ++i) {
      start_group();
    }
    const auto faults = 1 + random_.below(7);
    for (int64_t i = 0; i < faults; ++i) {
      at(milliseconds(10) + random_.up_to(kFaults), Kind::kFault, 0);
    }
    if (seed % 7 == 3) { // The others keep their numbers.
      for (int i = 0; i < 3; ++i) {
        at(milliseconds(10) + random_.up_to(kFaults), Kind::kStopLighthouse, 0);
      }
    }
  }

  Outcome run() {
    while (!events_.empty() && outcome_.violation.empty()) {
      const Event event = events_.top();
      if (event.at > kEnd) {
        break;
      }
      events_.pop();
      now_ = event.at;
      handle(event);
    }
    if (outcome_.violation.empty()) {
      check_progress();
    }
    return outcome_;
  }

 private:
  void violate(const std::string& what) {
    if (outcome_.violation.empty()) {
      outcome_.violation = what + " (seed " + std::to_string(seed_) + ", at " +
                           std::to_string(now_.count() / 1000) + " us)";
    }
  }

  // Events and messages.

  void at(
      Time delay,
      Kind kind,
      GroupId to,
      GroupId from = 0,
      std::shared_ptr<const Message> message = nullptr) {
    events_.push({now_ + delay, order_++, kind, to, from, std::move(message)});
  }

  bool has_faults() const { return now_ < kFaults; }

  Time delay() {
    if (has_faults() && random_.one_in(60)) {
      return random_.up_to(random_.one_in(2) ? 2 * kLease : 2 * kSuspect);
    }
    return microseconds(50) + random_.up_to(microseconds(400));
  }

  void send(
      Kind kind,
      GroupId to,
      GroupId from,
      const std::shared_ptr<const Message>& message) {
    if (has_faults() && random_.one_in(80)) {
      return;
    }
    at(delay(), kind, to, from, message);
    if (has_faults() && random_.one_in(60)) {
      at(delay(), kind, to, from, message);
    }
  }

  void send_to_lighthouse(Kind kind, GroupId from, Message message) {
    if (groups_.at(from).cut_from_lighthouse_until <= now_) {
      send(kind, 0, from, std::make_shared<Message>(std::move(message)));
    }
  }

  void send_to_members(Kind kind, GroupId from, Message message) {
    const auto& group = groups_.at(from);
    const auto shared = std::make_shared<Message>(std::move(message));
    for (const GroupId to : group.member.epoch().members) {
      if (to == from) {
        at(Time(0), kind, to, from, shared);
      } else if (
          group.cut_from_groups_until <= now_ && groups_.contains(to) &&
          groups_.at(to).cut_from_groups_until <= now_) {
        send(kind, to, from, shared);
      }
    }
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case Kind::kFault:
        return make_fault();
      case Kind::kStartGroup:
        return start_group();
      case Kind::kStartLighthouse:
        if (!lighthouse_) {
          start_lighthouse(false);
        }
        return;
      case Kind::kStopLighthouse:
        lighthouse_stopped_until_ = now_ + random_.up_to(2 * kLease);
        return;
      case Kind::kReport:
      case Kind::kLost:
      case Kind::kTick:
        return handle_at_lighthouse(event);
      default:
        break;
    }
    auto& group = groups_.at(event.to);
    if (!group.is_alive) {
      return;
    }
    if (group.stopped_until > now_) {
      Event later = event;
      later.at = group.stopped_until + random_.up_to(microseconds(300));
      later.order = order_++;
      events_.push(later);
      return;
    }
    handle_at_group(event, group);
  }

  // The lighthouse.

  void start_lighthouse(bool is_first) {
    ++outcome_.lighthouse_starts;
    LighthouseOptions options;
    options.suspect = kSuspect;
    options.end = kSuspect;
    options.lease = kLease;
    options.min_groups = min_groups_;
    options.expected_groups = static_cast<int64_t>(count_);
    options.join_timeout = milliseconds(20);
    options.is_first_start = is_first;
    lighthouse_.emplace(
        options, static_cast<uint64_t>(outcome_.lighthouse_starts), now_);
    told_.clear();
    lighthouse_stopped_until_ = now_;
    at(milliseconds(2), Kind::kTick, 0, 0, timer(lives_of_lighthouse_));
  }

  std::shared_ptr<const Message> timer(uint64_t token) const {
    Message message;
    message.token = token;
    return std::make_shared<Message>(message);
  }

  void handle_at_lighthouse(const Event& event) {
    if (!lighthouse_) {
      return;
    }
    const bool is_tick = event.kind == Kind::kTick;
    if (is_tick && event.message->token != lives_of_lighthouse_) {
      return;
    }
    if (lighthouse_stopped_until_ > now_) { // Its timer comes first then.
      Event later = event;
      later.at = lighthouse_stopped_until_ +
                 (is_tick ? Time(0) : random_.up_to(microseconds(300)));
      later.order = order_++;
      events_.push(later);
      return;
    }
    if (event.kind == Kind::kReport) {
      lighthouse_->receive(event.message->report, now_);
    } else if (event.kind == Kind::kLost) {
      lighthouse_->lose(event.from);
    } else {
      at(milliseconds(2), Kind::kTick, 0, 0, event.message);
    }
    lighthouse_->update(now_);
    note_epoch();
    for (const GroupId id : lighthouse_->groups()) {
      tell(id, event.kind == Kind::kReport && id == event.from);
    }
    if (may_end_groups_) {
      for (const GroupId id : lighthouse_->groups_to_end()) {
        kill(id, true);
      }
    }
  }

  void note_epoch() {
    const auto& epoch = lighthouse_->epoch();
    if (epoch && !epochs_.contains(epoch->number)) {
      epochs_.insert(epoch->number);
      ++outcome_.epochs;
      outcome_.generations += epoch->generation == epoch->number ? 1 : 0;
    }
  }

  void tell(GroupId id, bool is_answer) {
    if (!groups_.contains(id)) {
      return;
    }
    auto reply = lighthouse_->reply(id, now_);
    const auto now_told = std::make_pair(reply.directive, reply.epoch.number);
    auto [told, is_new] = told_.try_emplace(id, now_told);
    if (!is_answer && !is_new && told->second == now_told) {
      return;
    }
    told->second = now_told;
    check_acknowledged(reply);
    if (groups_.at(id).cut_from_lighthouse_until <= now_) {
      Message message;
      message.reply = std::move(reply);
      send(Kind::kReply, id, 0, std::make_shared<Message>(std::move(message)));
    }
  }

  // The groups.

  void start_group() {
    if (groups_.size() >= kMostLives) {
      return;
    }
    const GroupId id = groups_.size() + 1;
    const double drift = static_cast<double>(random_.below(201) - 100) / 1e4;
    groups_.emplace(
        std::piecewise_construct,
        std::forward_as_tuple(id),
        std::forward_as_tuple(
            id, drift, random_.up_to(std::chrono::hours(1)), now_));
    at(random_.up_to(milliseconds(3)), Kind::kHeartbeat, id);
    at(kStepTimeout, Kind::kCheckProgress, id);
  }

  void kill(GroupId id, bool is_noticed) {
    auto& group = groups_.at(id);
    if (!group.is_alive) {
      return;
    }
    ++outcome_.lost_groups;
    group.is_alive = false;
    if (is_noticed) {
      at(delay(), Kind::kLost, 0, id);
    }
    Message gone;
    gone.epoch = group.member.epoch().number;
    send_to_members(Kind::kGone, id, gone);
    at(milliseconds(5) + random_.up_to(milliseconds(60)), Kind::kStartGroup, 0);
  }

  void handle_at_group(const Event& event, Group& group) {
    const GroupId id = event.to;
    const bool is_current =
        event.message && event.message->epoch == group.epoch;
    switch (event.kind) {
      case Kind::kHeartbeat:
        report(id, group);
        at(kHeartbeat, Kind::kHeartbeat, id);
        return;
      case Kind::kReply:
        group.member.receive(event.message->reply, group.clock(now_));
        break;
      case Kind::kMeet:
        group.meetings[event.message->epoch].insert(event.from);
        break;
      case Kind::kState:
        if (is_current) {
          group.offered_content = event.message->content;
        }
        break;
      case Kind::kGradients:
        if (is_current) {
          group.gradients[event.message->step][event.from] =
              event.message->content;
        }
        break;
      case Kind::kReady:
        if (is_current) {
          group.ready[event.message->step][event.from] = event.message->leaves;
        }
        break;
      case Kind::kGone:
        if (is_current) {
          group.member.leave();
        }
        break;
      case Kind::kComputed:
        if (event.message->token == group.attempt) {
          offer_gradients(id, group);
        }
        break;
      case Kind::kLoaded:
        if (event.message->token == group.attempt &&
            group.member.phase() == Member::Phase::kWithoutState) {
          group.member.take_state(0);
          group.content = content_after(1, group.epoch);
        }
        break;
      case Kind::kCheckProgress:
        if (now_ - group.progressed > kStepTimeout) {
          group.member.leave();
        }
        at(kStepTimeout / 2, Kind::kCheckProgress, id);
        break;
      default:
        break;
    }
    advance(id, group);
  }

  void report(GroupId id, Group& group) {
    Message message;
    message.report = group.member.report(group.clock(now_));
    send_to_lighthouse(Kind::kReport, id, std::move(message));
  }

  // Goes on as far as what has arrived allows.
  void advance(GroupId id, Group& group) {
    auto& member = group.member;
    if (member.epoch().number != group.epoch) {
      accept(id, group);
    }
    const auto& members = member.epoch().members;
    if (member.phase() == Member::Phase::kMeeting &&
        group.meetings[group.epoch].size() == members.size()) {
      enter(id, group);
    }
    if (member.phase() == Member::Phase::kWithoutState &&
        group.offered_content && member.epoch().base) {
      ++outcome_.healed;
      group.content = *group.offered_content;
      member.take_state();
    }
    if (member.phase() == Member::Phase::kTraining) {
      train(id, group);
    }
    if (member.phase() != group.last_phase) {
      const bool has_left = member.phase() == Member::Phase::kOutside;
      group.last_phase = member.phase();
      if (has_left) {
        ++group.attempt;
        Message gone;
        gone.epoch = group.epoch;
        send_to_members(Kind::kGone, id, gone);
      }
      report(id, group);
    }
  }

  void accept(GroupId id, Group& group) {
    group.epoch = group.member.epoch().number;
    group.gradients.clear();
    group.ready.clear();
    group.offered_content.reset();
    group.progressed = now_;
    group.last_phase = Member::Phase::kMeeting;
    ++group.attempt;
    Message message;
    message.epoch = group.epoch;
    send_to_members(Kind::kMeet, id, message);
    report(id, group);
  }

  void enter(GroupId id, Group& group) {
    bool applies = false;
    group.progressed = now_;
    if (!group.member.enter(group.clock(now_), applies)) {
      return;
    }
    if (applies) {
      ++outcome_.rolled_forward;
      group.content = group.prepared_content;
      note_applied(group, group.prepared_generation);
    } else if (group.prepared_content != 0) {
      ++outcome_.done_again;
    }
    group.prepared_content = 0;
    if (group.member.phase() == Member::Phase::kTraining) {
      offer_state(id, group);
    } else if (!group.member.epoch().base) {
      at(random_.up_to(milliseconds(4)),
         Kind::kLoaded,
         id,
         0,
         timer(group.attempt));
    }
  }

  void offer_state(GroupId id, const Group& group) {
    Message message;
    message.epoch = group.epoch;
    message.content = group.content;
    send_to_members(Kind::kState, id, message);
  }

  void train(GroupId id, Group& group) {
    auto& member = group.member;
    const auto size = member.epoch().members.size();
    const auto step = member.applied().step + 1;
    if (group.prepared_content == 0) {
      auto& gradients = group.gradients[step];
      if (!gradients.contains(id)) {
        if (group.computing != std::make_pair(group.attempt, step)) {
          group.computing = {group.attempt, step};
          at(milliseconds(1) + random_.up_to(milliseconds(3)),
             Kind::kComputed,
             id,
             0,
             timer(group.attempt));
        }
        return;
      }
      if (gradients.size() < size) {
        return;
      }
      for (const auto& [from, content] : gradients) {
        if (content != group.content) {
          violate("groups with different weights add their gradients");
        }
      }
      group.prepared_content = content_after(group.content, group.epoch);
      group.prepared_generation = member.epoch().generation;
      group.progressed = now_;
      member.prepare();
      Message message;
      message.epoch = group.epoch;
      message.step = step;
      message.leaves = member.leaves_after_step();
      send_to_members(Kind::kReady, id, message);
      return;
    }
    const auto& ready = group.ready[step];
    if (ready.size() < size || !member.commit(group.clock(now_))) {
      return;
    }
    group.content = std::exchange(group.prepared_content, 0);
    group.progressed = now_;
    note_applied(group, group.prepared_generation);
    const bool leaves =
        std::ranges::any_of(ready, [](const auto& r) { return r.second; });
    group.gradients.erase(step);
    group.ready.erase(step);
    if (leaves) {
      member.leave();
    } else {
      train(id, group);
    }
  }

  void offer_gradients(GroupId id, Group& group) {
    if (group.member.phase() != Member::Phase::kTraining) {
      return;
    }
    Message message;
    message.epoch = group.epoch;
    message.step = group.member.applied().step + 1;
    message.content = group.content;
    send_to_members(Kind::kGradients, id, message);
  }

  // Faults.

  void make_fault() {
    std::vector<GroupId> alive;
    for (const auto& [id, group] : groups_) {
      if (group.is_alive) {
        alive.push_back(id);
      }
    }
    if (alive.empty()) {
      return;
    }
    const GroupId id =
        alive[static_cast<size_t>(random_.below(std::ssize(alive)))];
    auto& group = groups_.at(id);
    const Time until = now_ + random_.up_to(2 * kLease);
    switch (random_.below(9)) {
      case 0:
      case 1:
        return kill(id, true);
      case 2:
        return kill(id, false);
      case 3:
        group.stopped_until = until;
        return;
      case 4:
        group.cut_from_lighthouse_until = until;
        return;
      case 5:
        group.cut_from_groups_until = until;
        return;
      case 6:
      case 7:
        lighthouse_.reset();
        ++lives_of_lighthouse_;
        at(random_.up_to(random_.one_in(3) ? 2 * kLease : milliseconds(30)),
           Kind::kStartLighthouse,
           0);
        return;
      default:
        if (random_.one_in(3)) {
          for (const GroupId other : alive) {
            kill(other, random_.one_in(2));
          }
        } else {
          // All but one leave the lighthouse's sight.
          for (const GroupId other : alive) {
            if (other != id) {
              groups_.at(other).cut_from_lighthouse_until = until;
              groups_.at(other).cut_from_groups_until = until;
            }
          }
        }
    }
  }

  // What must hold.

  void note_applied(const Group& group, const EpochNumber& made_in) {
    const auto& member = group.member;
    ++outcome_.commits;
    last_commit_ = now_;
    const auto generation = member.epoch().generation;
    if (generation < newest_generation_) {
      violate("a group applies a step of a generation that has ended");
    }
    newest_generation_ = std::max(newest_generation_, generation);
    const auto [applied, is_first] = contents_.try_emplace(
        std::make_pair(made_in, member.applied().step), group.content);
    if (!is_first && applied->second != group.content) {
      violate(
          "two groups apply different steps " +
          std::to_string(member.applied().step));
    }
    const auto [named, is_new] =
        content_of_id_.try_emplace(member.applied().id, group.content);
    if (!is_new && named->second != group.content) {
      violate("one commit id names two states");
    }
  }

  void check_acknowledged(const Reply& reply) {
    const auto& commit = reply.acknowledged;
    if (commit.step > 0 && !content_of_id_.contains(commit.id)) {
      violate("a step that nobody has applied is acknowledged");
    }
  }

  void check_progress() {
    if (last_commit_ + kLastSteps < kEnd) {
      return violate("nobody trains at the end");
    }
    const auto& epoch = lighthouse_->epoch();
    for (const auto& [id, group] : groups_) {
      if (group.is_alive &&
          (!epoch || group.epoch != epoch->number || !epoch->has(id))) {
        return violate(
            "group " + std::to_string(id) + " is left out at the end");
      }
    }
  }

  Random random_;
  uint64_t seed_;
  size_t count_ = 0;
  int64_t min_groups_ = 1;
  bool may_end_groups_ = true;
  Time now_{0};
  uint64_t order_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::optional<Lighthouse> lighthouse_;
  uint64_t lives_of_lighthouse_ = 0;
  Time lighthouse_stopped_until_{0};
  std::map<GroupId, std::pair<Directive, EpochNumber>> told_;
  std::map<GroupId, Group> groups_;

  Outcome outcome_;
  std::set<EpochNumber> epochs_;
  Time last_commit_{0};
  EpochNumber newest_generation_;
  /// By the generation and the step.
  std::map<std::pair<EpochNumber, int64_t>, uint64_t> contents_;
  std::map<uint64_t, uint64_t> content_of_id_;
};

} // namespace

void Outcome::add(const Outcome& other) {
  commits += other.commits;
  epochs += other.epochs;
  generations += other.generations;
  lost_groups += other.lost_groups;
  lighthouse_starts += other.lighthouse_starts;
  rolled_forward += other.rolled_forward;
  done_again += other.done_again;
  healed += other.healed;
}

std::string Outcome::to_text() const {
  std::ostringstream out;
  out << commits << " steps applied, " << epochs << " epochs, " << generations
      << " generations, " << lost_groups << " groups lost, "
      << lighthouse_starts << " starts of lighthouses, " << rolled_forward
      << " steps applied at the next epoch, " << done_again
      << " steps done again, " << healed << " groups healed";
  return out.str();
}

Outcome simulate(uint64_t seed) {
  return Simulation(seed).run();
}

} // namespace weft::lighthouse::test
