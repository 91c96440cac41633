#include "dtensor/async_tp.h"

#include <atomic>

namespace weft::dtensor {
namespace {

// Of a root mesh.
struct AsyncTpMode {
  std::atomic<AsyncTp> mode = AsyncTp::kAuto;
};

} // namespace

void set_async_tp(const mesh::DeviceMesh& mesh, AsyncTp mode) {
  mesh.root().extension<AsyncTpMode>().mode = mode;
}

AsyncTp async_tp(const mesh::DeviceMesh& mesh) {
  return mesh.root().extension<AsyncTpMode>().mode;
}

} // namespace weft::dtensor
