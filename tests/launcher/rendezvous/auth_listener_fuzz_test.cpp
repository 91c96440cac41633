// A little of scripts/fuzz.sh rendezvous, the same each time.
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/fuzz/rendezvous_input.h"

namespace weft::launcher {
namespace {

using nlohmann::json;

class Dice {
 public:
  size_t below(size_t count) { return generator_() % count; }
  template <typename T>
  const T& one_of(const std::vector<T>& values) {
    return values[below(values.size())];
  }

 private:
  std::mt19937 generator_{20261123};
};

std::string random_bytes(Dice& dice) {
  std::string bytes(dice.below(400), '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(dice.below(256));
  }
  return bytes;
}

/// A message with a value that it should not have, or not JSON any more.
std::string changed(const json& message, Dice& dice) {
  static const std::vector<json> kValues{
      json(),
      json(-1),
      json(0),
      json(1),
      json(65),
      json(256),
      json(1 << 30),
      json(int64_t{1} << 62),
      json(~uint64_t{0}),
      json(1e300),
      json(""),
      json(std::string(9000, 'x')),
      json("\xff\n\0"),
      json::array({1}),
      json::object(),
      json("start"),
      json(true)};
  json copy = message;
  for (size_t i = dice.below(3); i > 0; --i) {
    auto field = copy.begin();
    std::advance(field, static_cast<ptrdiff_t>(dice.below(copy.size())));
    *field = dice.one_of(kValues);
  }
  std::string text = copy.dump(-1, ' ', false, json::error_handler_t::replace);
  if (dice.below(4) == 0) {
    text[dice.below(text.size())] = static_cast<char>(dice.below(256));
  }
  if (dice.below(200) == 0) {
    text = std::string(60000, '[');
  }
  return text;
}

std::string lines_of_messages(
    const std::vector<json>& messages,
    const char* first,
    Dice& dice) {
  std::string lines = dice.below(8) == 0 ? "" : first;
  for (size_t i = 1 + dice.below(4); i > 0; --i) {
    lines += changed(dice.one_of(messages), dice) + "\n";
  }
  return lines;
}

void throw_at(
    const std::function<std::string(std::string_view)>& target,
    const std::function<std::string(Dice&)>& make,
    int times) {
  Dice dice;
  for (int i = 0; i < times; ++i) {
    const std::string input = make(dice);
    ASSERT_EQ(target(input), "") << "input " << i << ": " << input;
  }
}

TEST(AuthListenerFuzz, RejectsEveryPeerWithoutTheToken) {
  throw_at(knock_at_gate, random_bytes, 3000);
}

TEST(AuthListenerFuzz, RejectsTamperedMessages) {
  throw_at(interfere, random_bytes, 3000);
}

TEST(AuthListenerFuzz, ServerSurvivesMalformedMessages) {
  const std::vector<json> messages{
      {{"type", "join"}, {"host", "h"}, {"node", 1}, {"workers", 2}},
      {{"type", "ready"}},
      {{"type", "failed"}},
      {{"type", "signal"}, {"signal", 15}},
      {{"type", "end"},
       {"code", 1},
       {"signal", 0},
       {"lost_peer", 0},
       {"age_ms", 5},
       {"line", "ERROR 1 rank=2 op=launch failed"}},
      {{"type", "ping"}}};
  throw_at(
      tell_host0,
      [&](Dice& dice) { return lines_of_messages(messages, "join\n", dice); },
      2000);
}

TEST(AuthListenerFuzz, ClientSurvivesMalformedMessages) {
  const std::vector<json> messages{
      {{"type", "start"},
       {"epoch", 1},
       {"random", std::string(64, 'a')},
       {"node", 1},
       {"nodes", 2},
       {"first", 2},
       {"world", 4},
       {"restarts", 0}},
      {{"type", "stop"}, {"signal", 15}, {"requested", 1}},
      {{"type", "verdict"},
       {"code", 1},
       {"line", "ERROR 1 rank=0 op=launch failed"},
       {"note", ""},
       {"restart_ms", 1000}}};
  throw_at(
      tell_other_host,
      [&](Dice& dice) { return lines_of_messages(messages, "", dice); },
      2000);
}

} // namespace
} // namespace weft::launcher
