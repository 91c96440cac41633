#pragma once

#include <cstdint>

/// The limits of what a reader of checkpoints accepts, so that a malicious file
/// costs no more time and memory than its own size. A writer enforces the
/// limits, too (docs/checkpoint_format.md).
namespace weft::checkpoint::limits {

/// The bytes of JSON in the header of one safetensors file.
constexpr int64_t kHeaderBytes = 100'000'000;
constexpr int64_t kHeaderDepth = 4;
/// The bytes of a manifest. A chunk takes 110 to 250 bytes, so this allows
/// about 5 million chunks: 4,096 ranks that each write their rows of 1,300
/// tensors.
constexpr int64_t kManifestBytes = 1 << 30;
constexpr int64_t kManifestDepth = 32;
/// The number of tensors of one file, and of one checkpoint.
constexpr int64_t kTensors = 1'000'000;
/// The number of JSON keys in all objects that are open at one position.
constexpr int64_t kOpenKeys = kTensors + 100'000;
/// The bytes of a tensor's name and of a file's name.
constexpr int64_t kTensorName = 512;
constexpr int64_t kFileName = 255;
constexpr int64_t kDims = 8;
/// The limit for one tensor of its chunks times 2^(dims along which it is
/// sharded).
constexpr int64_t kChunkCorners = 1 << 22;
constexpr int64_t kMinPieceBytes = 4 << 10;
constexpr int64_t kMaxPieceBytes = 1 << 30;

} // namespace weft::checkpoint::limits
