#pragma once

#include <cstdint>

/// What a reader of checkpoints accepts, so that a hostile file costs no more
/// time and memory than its own size. A writer refuses what a reader would
/// (docs/checkpoint_format.md).
namespace weft::checkpoint::limits {

/// Bytes of JSON in the header of one safetensors file.
constexpr int64_t kHeaderBytes = 100'000'000;
constexpr int64_t kHeaderDepth = 4;
/// A chunk takes 110 to 250 bytes: some 5 million of them, which are 4,096
/// ranks that each write their rows of 1,300 tensors.
constexpr int64_t kManifestBytes = 1 << 30;
constexpr int64_t kManifestDepth = 32;
/// Tensors of one file, and of one checkpoint.
constexpr int64_t kTensors = 1'000'000;
/// JSON: keys of all objects that are open at one place.
constexpr int64_t kOpenKeys = kTensors + 100'000;
/// Bytes of a tensor's name and of a file's name.
constexpr int64_t kTensorName = 512;
constexpr int64_t kFileName = 255;
constexpr int64_t kDims = 8;
/// Of one tensor: chunks times 2^(dims along which it is cut).
constexpr int64_t kChunkCorners = 1 << 22;
constexpr int64_t kMinPieceBytes = 4 << 10;
constexpr int64_t kMaxPieceBytes = 1 << 30;

} // namespace weft::checkpoint::limits
