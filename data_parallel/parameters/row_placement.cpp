#include "data_parallel/parameters/row_placement.h"

#include "dtensor/tensor/dtensor_impl.h"

namespace weft::data_parallel {

DimShardCounts other_shards_of_dim(
    const at::Tensor& parameter,
    const mesh::DeviceMesh& dp,
    int64_t tensor_dim) {
  DimShardCounts cuts;
  const auto* impl = dtensor::dtensor_impl(parameter);
  const auto mesh_ndim = impl ? impl->spec().mesh_ndim() : 0;
  for (int64_t i = 0; i < mesh_ndim; ++i) {
    const auto& placement = impl->spec().placement(i);
    if (placement.is_shard(tensor_dim)) {
      const auto& own = impl->spec().mesh();
      const auto root = own.root();
      cuts.is_plain = cuts.is_plain && placement.is_chunked();
      const bool is_before = root.mesh_dim(own.mesh_dim_names()[i]) <
                             root.mesh_dim(dp.mesh_dim_names().front());
      (is_before ? cuts.before : cuts.after) *= own.size(i);
    }
  }
  return cuts;
}

dtensor::Placement row_placement(
    const at::Tensor& parameter,
    const mesh::DeviceMesh& dp) {
  const auto cuts = other_shards_of_dim(parameter, dp, 0);
  return cuts.after == 1 ? dtensor::Shard(0)
                         : dtensor::StridedShard(0, cuts.after);
}

} // namespace weft::data_parallel
