#include "mesh/bootstrap/await_count.h"

#include <thread>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft::mesh {

void await_count(
    c10d::Store& store,
    const std::string& key,
    int64_t count,
    std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (store.add(key, 0) < count &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

} // namespace weft::mesh
