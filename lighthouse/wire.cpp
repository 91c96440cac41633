#include "lighthouse/wire.h"

#include <cstring>

#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace weft::lighthouse {
namespace {

using nlohmann::json;

constexpr uint32_t kLongest = 64 << 20;

// The kind of a message, which is its first element.
enum class Tag { kReport, kReply, kStoreRequest, kStoreAnswer };

json to_json(const std::string& bytes) {
  return json::binary({bytes.begin(), bytes.end()});
}

std::string bytes_of(const json& value) {
  const auto& bytes = value.get_binary();
  return {bytes.begin(), bytes.end()};
}

json to_json(const std::vector<std::string>& texts) {
  auto result = json::array();
  for (const auto& text : texts) {
    result.push_back(to_json(text));
  }
  return result;
}

std::vector<std::string> texts_of(const json& value) {
  std::vector<std::string> result;
  for (const auto& text : value) {
    result.push_back(bytes_of(text));
  }
  return result;
}

json to_json(const Commit& commit) {
  return {commit.step, commit.id};
}

Commit commit_of(const json& value) {
  return {value.at(0).get<int64_t>(), value.at(1).get<uint64_t>()};
}

json to_json(const Epoch& epoch) {
  return {
      epoch.number.ballot,
      epoch.number.count,
      epoch.generation.ballot,
      epoch.generation.count,
      epoch.members,
      to_json(epoch.base)};
}

Epoch epoch_of(const json& value) {
  return {
      {value.at(0).get<uint64_t>(), value.at(1).get<uint64_t>()},
      {value.at(2).get<uint64_t>(), value.at(3).get<uint64_t>()},
      value.at(4).get<std::vector<GroupId>>(),
      commit_of(value.at(5))};
}

json to_json(const Report& report) {
  return {
      Tag::kReport,
      report.group,
      report.ballot,
      report.sent.count(),
      to_json(report.epoch),
      report.has_left,
      report.is_of_epoch,
      to_json(report.applied),
      to_json(report.prepared),
      report.is_held,
      report.has_finished,
      report.has_left_for_good,
      report.min_groups,
      report.join_timeout.count(),
      report.is_stopping};
}

Report report_of(const json& value) {
  return {
      .group = value.at(1).get<GroupId>(),
      .ballot = value.at(2).get<uint64_t>(),
      .sent = Time(value.at(3).get<int64_t>()),
      .epoch = epoch_of(value.at(4)),
      .has_left = value.at(5).get<bool>(),
      .is_of_epoch = value.at(6).get<bool>(),
      .applied = commit_of(value.at(7)),
      .prepared = commit_of(value.at(8)),
      .is_held = value.at(9).get<bool>(),
      .has_finished = value.at(10).get<bool>(),
      .has_left_for_good = value.at(11).get<bool>(),
      .min_groups = value.at(12).get<int64_t>(),
      .join_timeout = Time(value.at(13).get<int64_t>()),
      .is_stopping = value.at(14).get<bool>()};
}

json to_json(const Reply& reply) {
  return {
      Tag::kReply,
      reply.group,
      reply.ballot,
      reply.answers.count(),
      reply.directive,
      to_json(reply.epoch),
      to_json(reply.acknowledged)};
}

Reply reply_of(const json& value) {
  return {
      .group = value.at(1).get<GroupId>(),
      .ballot = value.at(2).get<uint64_t>(),
      .answers = Time(value.at(3).get<int64_t>()),
      .directive = value.at(4).get<Directive>(),
      .epoch = epoch_of(value.at(5)),
      .acknowledged = commit_of(value.at(6))};
}

json to_json(const StoreRequest& request) {
  return {
      Tag::kStoreRequest,
      request.id,
      request.op,
      to_json(request.keys),
      to_json(request.value),
      to_json(request.expected),
      request.amount};
}

StoreRequest request_of(const json& value) {
  return {
      .id = value.at(1).get<uint64_t>(),
      .op = value.at(2).get<StoreRequest::Op>(),
      .keys = texts_of(value.at(3)),
      .value = bytes_of(value.at(4)),
      .expected = bytes_of(value.at(5)),
      .amount = value.at(6).get<int64_t>()};
}

json to_json(const StoreAnswer& answer) {
  return {Tag::kStoreAnswer, answer.id, answer.number, to_json(answer.values)};
}

StoreAnswer answer_of(const json& value) {
  return {
      .id = value.at(1).get<uint64_t>(),
      .number = value.at(2).get<int64_t>(),
      .values = texts_of(value.at(3))};
}

Message message_of(const json& value) {
  switch (value.at(0).get<Tag>()) {
    case Tag::kReport:
      return report_of(value);
    case Tag::kReply:
      return reply_of(value);
    case Tag::kStoreRequest:
      return request_of(value);
    case Tag::kStoreAnswer:
      return answer_of(value);
  }
  throw WireError("a message of an unknown kind");
}

} // namespace

std::string encode(const Message& message) {
  const auto value =
      std::visit([](const auto& part) { return to_json(part); }, message);
  const auto bytes = base::to_cbor(value);
  const auto length = static_cast<uint32_t>(bytes.size());
  std::string head(sizeof(length), '\0');
  std::memcpy(head.data(), &length, sizeof(length));
  return head + bytes;
}

std::optional<Message> MessageReader::take() {
  uint32_t length = 0;
  if (buffer_.size() < sizeof(length)) {
    return std::nullopt;
  }
  std::memcpy(&length, buffer_.data(), sizeof(length));
  if (length > kLongest) {
    throw WireError(
        "a message of " + std::to_string(length) + " bytes, more than " +
        std::to_string(kLongest));
  }
  if (buffer_.size() < sizeof(length) + length) {
    return std::nullopt;
  }
  const auto text = std::string_view(buffer_).substr(sizeof(length), length);
  try {
    auto message = message_of(base::parse_cbor(text));
    buffer_.erase(0, sizeof(length) + length);
    return message;
  } catch (const json::exception& error) {
    throw WireError(
        std::string("bytes that are not a message: ") + error.what());
  }
}

} // namespace weft::lighthouse
