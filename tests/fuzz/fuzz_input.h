#pragma once

#include <string>
#include <string_view>

/// The inputs of the fuzzers, for libFuzzer and for the test that runs the
/// corpus. Both abort if something is accepted that breaks a
/// promise; any exception but CheckpointError passes through.
namespace weft::test {

struct FuzzVerdict {
  bool is_accepted = false;
  /// Why not.
  std::string error;
};

/// A safetensors file: 8 bytes, little-endian, that are added to the length in
/// its first bytes (0: it is right), 2 bytes for the size of its data, and the
/// JSON of its header. Shorter inputs are no files.
FuzzVerdict fuzz_header(std::string_view input);

/// The bytes of that file; the data is zeros.
std::string header_file(std::string_view input);

/// The text of a manifest. Where it ends with a hash this is made right first,
/// and so is an HMAC for kFuzzKey, which is asked for then.
FuzzVerdict fuzz_manifest(std::string_view input);

constexpr std::string_view kFuzzKey = "key";

} // namespace weft::test
