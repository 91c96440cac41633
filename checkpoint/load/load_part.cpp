#include "checkpoint/load/load_part.h"

#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include "dtensor/init/factories.h"
#include "dtensor/spec/placement.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {

dtensor::StateDict empty_part(
    const Manifest& manifest,
    const std::string& part,
    const mesh::DeviceMesh& mesh) {
  const auto dims = static_cast<size_t>(mesh.ndim());
  const dtensor::DTensorSpec rows{
      mesh, dtensor::Placements(dims, dtensor::Shard(0))};
  const dtensor::DTensorSpec whole{
      mesh, dtensor::Placements(dims, dtensor::Replicate())};
  const auto prefix = part + ".";
  dtensor::StateDict tensors;
  for (auto each = manifest.tensors.lower_bound(prefix);
       each != manifest.tensors.end() && each->first.starts_with(prefix);
       ++each) {
    const auto& record = each->second;
    tensors.emplace(
        each->first.substr(prefix.size()),
        dtensor::zeros(
            record.shape,
            at::TensorOptions(at::kCPU).dtype(record.dtype),
            record.shape.empty() ? whole : rows));
  }
  return tensors;
}

dtensor::StateDict load_part(
    const std::filesystem::path& step_folder,
    const std::string& part,
    const mesh::DeviceMesh& mesh,
    LoadOptions options) {
  options.world = mesh.world();
  const auto manifest =
      read_manifest(step_folder, options.world, options.hmac_key);
  auto tensors = empty_part(manifest, part, mesh);
  if (tensors.empty()) {
    std::set<std::string> parts;
    for (const auto& [key, record] : manifest.tensors) {
      parts.insert(key.substr(0, key.find('.')));
    }
    mesh::throw_error<c10::ValueError>(mesh::detail::concat(
        "[checkpoint.load_part] ",
        step_folder.string(),
        " has no part \"",
        part,
        "\". Its parts are ",
        c10::Join(", ", parts),
        "."));
  }
  load(step_folder, manifest, {{part, tensors}}, options);
  return tensors;
}

} // namespace weft::checkpoint
