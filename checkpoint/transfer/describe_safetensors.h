#pragma once

#include <filesystem>

#include "checkpoint/files/folder.h"
#include "checkpoint/format/manifest.h"

namespace weft::checkpoint {

/// Describes safetensors files without a manifest of Weft: a folder written by
/// PyTorch's HuggingFaceStorageWriter (sharded, where DCP_SHARDING_INFO gives
/// the positions of each file's pieces, or consolidated), the folder of a
/// Hugging Face model, or the folder of a single file. The keys are the names
/// in the files. The result has has_no_hashes set, so data that is read is
/// checked for size and position only.
/// Throws: CheckpointError naming file, tensor and offset if a header violates
/// the format, pieces leave a gap or overlap, or a file named by an index is
/// missing; mesh::UsageError if the folder has no safetensors file.
Manifest describe_safetensors(const Folder& folder);

/// Like describe_safetensors(folder), for one file of `folder`.
Manifest describe_safetensors(const Folder& folder, const std::string& file);

} // namespace weft::checkpoint
