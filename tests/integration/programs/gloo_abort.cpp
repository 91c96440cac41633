// Two ranks that call c10d's gloo themselves, with tensors of different sizes:
// gloo's own thread ends one of them with an exception that nobody can catch.

#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO // which the header asks for
#endif

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include <ATen/ops/ones.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "mesh/crash/crash_handler.h"

namespace {

int number(const char* name) {
  return std::atoi(std::getenv(name));
}

void all_reduce_of_different_sizes(int rank) {
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<uint16_t>(number("MASTER_PORT"));
  store_options.isServer =
      rank == 0 &&
      std::string("True") != std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      "gloo",
      c10::make_intrusive<c10d::TCPStore>(
          std::getenv("MASTER_ADDR"), store_options));
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(
      c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  c10d::ProcessGroupGloo group(store, rank, number("WORLD_SIZE"), options);
  for (int64_t step = 0; step < 10; ++step) {
    const int64_t size = step == 9 && rank == 1 ? 4000 : 1000;
    std::vector<at::Tensor> tensors{at::ones({size})};
    group.allreduce(tensors)->wait();
  }
}

} // namespace

int main() {
  weft::mesh::install_crash_handler();
  const int rank = number("RANK");
  try {
    all_reduce_of_different_sizes(rank);
  } catch (const std::exception& error) {
    const std::string what = error.what();
    std::fprintf(
        stderr,
        "rank %d failed: %s\n",
        rank,
        what.substr(0, what.find('\n')).c_str());
    return 1;
  }
  return 0;
}
