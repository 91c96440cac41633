#include "launcher/rendezvous/messages.h"

#include <nlohmann/json.hpp>

#include "launcher/rendezvous/key.h"

namespace weft::launcher {

using nlohmann::json;
using std::chrono::milliseconds;

int int_of(const json& message, const char* name, int otherwise) {
  const auto found = message.find(name);
  return found != message.end() && found->is_number_integer()
             ? found->get<int>()
             : otherwise;
}

std::string text_of(const json& message, const char* name) {
  const auto found = message.find(name);
  return found != message.end() && found->is_string()
             ? found->get<std::string>()
             : std::string();
}

json to_message(const HostEnd& end) {
  return {
      {"type", "end"},
      {"code", end.code},
      {"signal", end.signal},
      {"lost_peer", end.lost_peer ? 1 : 0},
      {"age_ms", end.age.count()},
      {"line", end.line.substr(0, 8192)}};
}

HostEnd read_end(const json& message) {
  return {
      .code = int_of(message, "code", 0),
      .signal = int_of(message, "signal", 0),
      .lost_peer = int_of(message, "lost_peer", 0) != 0,
      .age = milliseconds(int_of(message, "age_ms", 0)),
      .line = text_of(message, "line")};
}

json to_message(const Verdict& verdict) {
  const auto delay = verdict.restart_after.value_or(milliseconds(-1));
  return {
      {"type", "verdict"},
      {"code", verdict.code},
      {"line", verdict.line},
      {"note", verdict.note},
      {"restart_ms", delay.count()}};
}

Verdict read_verdict(const json& message) {
  Verdict verdict;
  verdict.code = int_of(message, "code", 2);
  verdict.line = text_of(message, "line");
  verdict.note = text_of(message, "note");
  const int delay = int_of(message, "restart_ms", -1);
  if (delay >= 0) {
    verdict.restart_after = milliseconds(delay);
  }
  return verdict;
}

std::string command_digest(const Options& options) {
  std::string text;
  for (const auto& word : options.command) {
    text += word;
    text += '\0';
  }
  return to_hex(sha256(text));
}

} // namespace weft::launcher
