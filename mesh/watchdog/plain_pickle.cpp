#include "mesh/watchdog/plain_pickle.h"

#include <bit>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string_view>

#include <nlohmann/json.hpp>

namespace weft::mesh {
namespace {

using Json = nlohmann::ordered_json;

/// Source: Lib/pickletools.py of CPython.
enum class Opcode : uint8_t {
  kProtocol = 0x80,
  kStop = '.',
  kNone = 'N',
  kTrue = 0x88,
  kFalse = 0x89,
  kBigInt = 0x8a,
  kDouble = 'G',
  kText = 'X',
  kMark = '(',
  kDict = '}',
  kSetItems = 'u',
  kList = ']',
  kAppends = 'e',
};

class Pickler {
 public:
  Pickler() {
    put(Opcode::kProtocol);
    bytes_ += '\x02';
  }

  std::string finish() && {
    put(Opcode::kStop);
    return std::move(bytes_);
  }

  void put(const Json& value) {
    switch (value.type()) {
      case Json::value_t::object:
        put_dict(value);
        break;
      case Json::value_t::array:
        put_list(value);
        break;
      case Json::value_t::string:
        put_text(value.get_ref<const std::string&>());
        break;
      case Json::value_t::boolean:
        put(value.get<bool>() ? Opcode::kTrue : Opcode::kFalse);
        break;
      case Json::value_t::number_integer:
        put_int(static_cast<uint64_t>(value.get<int64_t>()), 8);
        break;
      case Json::value_t::number_unsigned:
        put_int(value.get<uint64_t>(), 9); // The ninth byte keeps it positive.
        break;
      case Json::value_t::number_float:
        put_double(value.get<double>());
        break;
      default:
        put(Opcode::kNone);
    }
  }

 private:
  void put(Opcode opcode) { bytes_ += static_cast<char>(opcode); }

  void put_little_endian(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) {
      bytes_ += static_cast<char>(i < 8 ? value >> (8 * i) & 0xff : 0);
    }
  }

  void put_int(uint64_t value, int count) {
    put(Opcode::kBigInt);
    bytes_ += static_cast<char>(count);
    put_little_endian(value, count);
  }

  void put_double(double value) {
    put(Opcode::kDouble);
    const auto bits = std::bit_cast<uint64_t>(value);
    for (int shift = 56; shift >= 0; shift -= 8) {
      bytes_ += static_cast<char>(bits >> shift & 0xff);
    }
  }

  void put_text(std::string_view text) {
    if (text.size() > std::numeric_limits<uint32_t>::max()) {
      throw std::length_error("a string is too long for a pickle");
    }
    put(Opcode::kText);
    put_little_endian(text.size(), 4);
    bytes_ += text;
  }

  void put_dict(const Json& value) {
    put(Opcode::kDict);
    put(Opcode::kMark);
    for (const auto& [key, item] : value.items()) {
      put_text(key);
      put(item);
    }
    put(Opcode::kSetItems);
  }

  void put_list(const Json& value) {
    put(Opcode::kList);
    put(Opcode::kMark);
    for (const auto& item : value) {
      put(item);
    }
    put(Opcode::kAppends);
  }

  std::string bytes_;
};

} // namespace

std::string plain_pickle(const Json& value) {
  Pickler pickler;
  pickler.put(value);
  return std::move(pickler).finish();
}

} // namespace weft::mesh
