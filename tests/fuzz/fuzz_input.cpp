#include "tests/fuzz/fuzz_input.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "checkpoint/files/error.h"
#include "checkpoint/files/folder.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/manifest_rules.h"
#include "checkpoint/format/tensor_header.h"

namespace weft::test {
namespace {

constexpr size_t kLieBytes = 8;
constexpr size_t kHeadBytes = kLieBytes + 2;

void promise(bool holds, const char* what) {
  TORCH_INTERNAL_ASSERT(holds, "accepted, but ", what);
}

checkpoint::File in_memory(const std::string& bytes) {
  checkpoint::File file(::memfd_create("fuzz", MFD_CLOEXEC), "memory");
  TORCH_INTERNAL_ASSERT(file.fd() >= 0);
  const auto written = ::write(file.fd(), bytes.data(), bytes.size());
  TORCH_INTERNAL_ASSERT(written == static_cast<int64_t>(bytes.size()));
  return file;
}

void check_promises(
    const checkpoint::TensorHeader& header,
    int64_t file_bytes) {
  int64_t data_bytes = 0;
  for (const auto& [name, tensor] : header.tensors) {
    const auto item = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    promise(
        header.bytes <= tensor.begin && tensor.begin <= tensor.end &&
            tensor.end <= file_bytes,
        "a tensor is outside of the file");
    promise(
        checkpoint::element_count(tensor.shape) * item ==
            tensor.end - tensor.begin,
        "a tensor has not its size");
    data_bytes += tensor.end - tensor.begin;
  }
  promise(header.bytes + data_bytes == file_bytes, "bytes are left over");
}

void put(std::string& text, size_t at, std::string_view digits) {
  std::ranges::copy(digits, text.begin() + static_cast<int64_t>(at));
}

void make_digests_right(std::string& text, bool has_hmac) {
  const auto at = checkpoint::hash_position(text);
  put(text, at, checkpoint::kHashDigits);
  if (has_hmac) {
    const auto hmac_at = checkpoint::hmac_position(text);
    put(text, hmac_at, checkpoint::kHmacDigits);
    const auto hmac = checkpoint::hmac_sha256(kFuzzKey, text);
    put(text, hmac_at, checkpoint::to_hex(hmac));
  }
  put(text, at, checkpoint::to_hex(checkpoint::hash(text)));
}

bool ends_with_hash(std::string_view text) {
  const auto tail = checkpoint::kHashBefore.size() + checkpoint::kHexDigits +
                    checkpoint::kHashAfter.size();
  return text.size() >= tail &&
         text.substr(text.size() - tail).starts_with(checkpoint::kHashBefore) &&
         text.ends_with(checkpoint::kHashAfter);
}

} // namespace

std::string header_file(std::string_view input) {
  if (input.size() < kHeadBytes) {
    return std::string(input);
  }
  uint64_t length = 0;
  uint16_t data_bytes = 0;
  std::memcpy(&length, input.data(), sizeof(length));
  std::memcpy(&data_bytes, input.data() + kLieBytes, sizeof(data_bytes));
  const auto json = input.substr(kHeadBytes);
  length += json.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  file += json;
  return file.append(data_bytes, '\0');
}

FuzzVerdict fuzz_header(std::string_view input) {
  const auto bytes = header_file(input);
  const auto file_bytes = static_cast<int64_t>(bytes.size());
  try {
    const auto file = in_memory(bytes);
    const auto head = checkpoint::read_header(file, "input");
    promise(head.size() <= bytes.size(), "more was read than there is");
    check_promises(
        checkpoint::parse_header(head, file_bytes, "input"), file_bytes);
  } catch (const checkpoint::CheckpointError& error) {
    return {false, error.what_without_backtrace()};
  }
  return {true, ""};
}

FuzzVerdict fuzz_manifest(std::string_view input) {
  std::string text(input);
  const bool has_hmac =
      checkpoint::hmac_position(text) != std::string_view::npos;
  if (ends_with_hash(text)) {
    make_digests_right(text, has_hmac);
  }
  const auto key = has_hmac ? kFuzzKey : std::string_view();
  try {
    const auto manifest = checkpoint::parse_manifest(text, "input", key);
    // What can be read can be written, and says the same then.
    const auto again = checkpoint::to_json(manifest, key);
    const auto back = checkpoint::parse_manifest(again, "again", key);
    promise(checkpoint::to_json(back, key) == again, "it reads differently");
  } catch (const checkpoint::CheckpointError& error) {
    return {false, error.what_without_backtrace()};
  }
  return {true, ""};
}

} // namespace weft::test
