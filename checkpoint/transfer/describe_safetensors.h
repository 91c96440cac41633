#pragma once

#include <filesystem>

#include "checkpoint/files/folder.h"
#include "checkpoint/format/manifest.h"

namespace weft::checkpoint {

/// Describes safetensors files that have no manifest of Weft's: a folder as
/// PyTorch's HuggingFaceStorageWriter leaves it (sharded, where each file says
/// in DCP_SHARDING_INFO where its pieces lie, or consolidated), a folder of a
/// Hugging Face model, or the folder of a single file. Keys are the files' own.
/// The result's `has_no_hashes` is true: there are no hashes, so what is read
/// is checked for size and place only.
/// Throws: CheckpointError naming file, tensor and offset: headers that break a
/// rule of the format, pieces that leave a hole or overlap, a file that an
/// index names and that is not there; mesh::UsageError if there is no
/// safetensors file.
Manifest describe_safetensors(const Folder& folder);

/// The same of one file of `folder`.
Manifest describe_safetensors(const Folder& folder, const std::string& file);

} // namespace weft::checkpoint
