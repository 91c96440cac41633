#include "checkpoint/transfer/reshard.h"

#include <map>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/files/text.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/save/save_plan.h"
#include "checkpoint/save/step_writer.h"
#include "checkpoint/store/store.h"
#include "checkpoint/tensors/tensor_file.h"
#include "checkpoint/transfer/remap_spec.h"
#include "mesh/device_mesh.h"
#include "mesh/error/error.h"
#include "mesh/world.h"

namespace weft::checkpoint {
namespace {

// Several pieces are cached, because a piece of a tensor that is sharded by
// columns contains rows of many runs.
constexpr int64_t kReshardCachedPieces = 32;

mesh::DeviceMesh fake_mesh(const MeshSizes& mesh) {
  constexpr int64_t kMaxRanks = 65'536;
  std::vector<std::string> names;
  std::vector<int64_t> shape;
  int64_t ranks = 1;
  for (const auto& [name, size] : mesh) {
    names.push_back(name);
    shape.push_back(size);
    ranks = size > kMaxRanks ? kMaxRanks + 1 : ranks * size;
    if (ranks > kMaxRanks) {
      mesh::throw_error<mesh::UsageError>(fmt::format(
          "[checkpoint] reshard: the mesh has more than {} ranks. Give a "
          "smaller mesh",
          kMaxRanks));
    }
  }
  return mesh::DeviceMesh::create(
      mesh::World::fake(0, ranks), std::move(shape), std::move(names));
}

class Resharder {
 public:
  Resharder(
      const std::filesystem::path& step_folder,
      const ReshardOptions& options)
      : pin_(step_folder),
        options_(options),
        source_(read_manifest(pin_.folder(), options.hmac_key)),
        reader_(pin_.folder(), source_, kReshardCachedPieces),
        mesh_(fake_mesh(options.mesh)) {}

  Resharded run(const std::filesystem::path& checkpoints) {
    const SavePlan plan(list_items(), mesh_.size());
    StepWriter writer(
        checkpoints,
        new_manifest(plan.items()),
        {options_.fsync, options_.sha256, options_.hmac_key});
    for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
      for (const auto& [part, tensors] : files_of(plan, rank)) {
        write(writer, tensor_file_name(rank, part), tensors);
      }
    }
    result_.path = writer.commit();
    result_.tensors = std::ssize(writer.manifest().tensors);
    result_.files = std::ssize(writer.manifest().files);
    for (const auto& [name, file] : writer.manifest().files) {
      result_.bytes += file.bytes;
    }
    return std::move(result_);
  }

 private:
  std::vector<SaveItem> list_items() {
    std::vector<SaveItem> items;
    for (const auto& [key, tensor] : source_.tensors) {
      auto [spec, note] = remap_spec(key, tensor, mesh_);
      if (!note.empty()) {
        result_.notes.push_back(std::move(note));
      }
      const auto item = static_cast<int64_t>(c10::elementSize(tensor.dtype));
      items.push_back({key, std::move(spec), tensor.shape, item});
      total_ += element_count(tensor.shape) * item;
    }
    return items;
  }

  Manifest new_manifest(const std::vector<SaveItem>& items) const {
    Manifest manifest;
    manifest.step = source_.step;
    manifest.piece_bytes = source_.piece_bytes;
    manifest.state = source_.state;
    manifest.layout = source_.layout;
    for (const auto& item : items) {
      auto& record = manifest.tensors[item.key];
      record.dtype = source_.tensors.at(item.key).dtype;
      record.shape = item.sizes;
      if (item.spec.mesh_ndim() > 0) {
        record.placements = dtensor::to_string(item.spec.placements());
        record.mesh = mesh_.to_string();
      }
    }
    return manifest;
  }

  // Returns the tensors that `rank` writes, by file number. A file contains a
  // name only once, so the chunks of a tensor are in several files.
  std::map<int64_t, std::vector<StreamedTensor>> files_of(
      const SavePlan& plan,
      int64_t rank) const {
    std::map<int64_t, std::vector<StreamedTensor>> files;
    for (const auto& chunk : plan.chunks_of(rank)) {
      const auto& item = plan.items()[chunk.item];
      files[chunk.part].push_back(
          {item.key,
           source_.tensors.at(item.key).dtype,
           chunk.held.box.sizes,
           chunk.held.box.offset,
           item.sizes});
    }
    if (rank == 0) { // so that PyTorch finds empty tensors, too
      for (const auto& item : plan.items()) {
        if (element_count(item.sizes) == 0) {
          files[0].push_back(
              {item.key,
               source_.tensors.at(item.key).dtype,
               item.sizes,
               std::vector<int64_t>(item.sizes.size(), 0),
               item.sizes});
        }
      }
    }
    return files;
  }

  void write(
      StepWriter& writer,
      const std::string& file,
      const std::vector<StreamedTensor>& tensors) {
    writer.write_file(
        file,
        tensors,
        [&](size_t i,
            const std::vector<int64_t>& offset,
            const std::vector<int64_t>& shape,
            std::span<std::byte> out) {
          reader_.read_box(tensors[i].key, offset, shape, out);
        },
        [&](int64_t bytes) {
          done_ += bytes;
          if (options_.progress) {
            options_.progress(done_, total_, file);
          }
        });
  }

  StepPin pin_;
  const ReshardOptions& options_;
  Manifest source_;
  ChunkReader reader_;
  mesh::DeviceMesh mesh_;
  Resharded result_;
  int64_t done_ = 0;
  int64_t total_ = 0;
};

} // namespace

Resharded reshard(
    const std::filesystem::path& step_folder,
    const std::filesystem::path& checkpoints,
    const ReshardOptions& options) {
  return Resharder(step_folder, options).run(checkpoints);
}

} // namespace weft::checkpoint
