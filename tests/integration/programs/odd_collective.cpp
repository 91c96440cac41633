// odd_collective KIND RANK STEP BACKEND, one process a rank of four:
// collectives as in training steps, of which RANK calls one wrongly at STEP.
// KIND: shape, dtype, op, reduction, order, root, group, skip or extra. The odd
// rank says when it begins to be wrong; all end as `weft` does, so with 5.

#include <cstdlib>
#include <iostream>
#include <string>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "cli/failure.h"
#include "mesh/communicator/communicator.h"
#include "mesh/crash/crash_handler.h"
#include "mesh/world.h"

namespace weft::test {
namespace {

using mesh::Communicator;
using mesh::ReduceOp;

constexpr int64_t kSteps = 1000;

/// One rank's steps.
class Steps {
 public:
  explicit Steps(const mesh::World& world)
      : all_(world.group()),
        half_(world.make_group(
            "half/" + std::to_string(world.rank() / 2),
            {world.rank() / 2 * 2, world.rank() / 2 * 2 + 1})) {}

  /// `kind` is empty where this rank calls what the others call.
  void step(const std::string& kind) {
    if (kind == "order") {
      settings(0);
      reduce_second();
      reduce_first(kind);
    } else {
      settings(kind == "root" ? 1 : 0);
      if (kind != "skip") {
        reduce_first(kind);
      }
      if (kind == "extra") {
        reduce_first(kind);
      }
      reduce_second();
    }
    half_.all_reduce(at::ones({8, 32}), ReduceOp::kSum, "norm.weight").wait();
  }

 private:
  void settings(int64_t root) {
    all_.broadcast(at::ones({4}), root, "settings").wait();
  }

  void reduce_first(const std::string& kind) {
    const std::string name = "q_proj.weight";
    const auto gradient = at::ones({kind == "shape" ? 65 : 64, 32});
    if (kind == "op") {
      all_.all_gather(at::empty({4 * 64 * 32}), gradient, name).wait();
    } else if (kind == "dtype") {
      all_.all_reduce(gradient.to(at::kDouble), ReduceOp::kSum, name).wait();
    } else {
      auto& group = kind == "group" ? half_ : all_;
      const auto op = kind == "reduction" ? ReduceOp::kMax : ReduceOp::kSum;
      group.all_reduce(gradient, op, name).wait();
    }
  }

  void reduce_second() {
    all_.all_reduce(at::ones({64, 32}), ReduceOp::kSum, "k_proj.weight").wait();
  }

  Communicator all_;
  Communicator half_;
};

void run(char** arguments) {
  const std::string kind = arguments[1];
  const int64_t odd_rank = std::atoll(arguments[2]);
  const int64_t odd_step = std::atoll(arguments[3]);
  mesh::WorldOptions options;
  options.backend = arguments[4];
  const auto world = mesh::World::from_env(options);
  Steps steps(world);
  for (int64_t step = 1; step <= kSteps; ++step) {
    const bool is_odd = step == odd_step && world.rank() == odd_rank;
    if (is_odd) {
      std::cout << "odd from now on" << std::endl;
    }
    steps.step(is_odd ? kind : "");
  }
}

} // namespace
} // namespace weft::test

int main(int argc, char** argv) {
  weft::mesh::install_crash_handler();
  at::set_num_threads(1);
  if (argc != 5) {
    std::cerr << "odd_collective KIND RANK STEP BACKEND\n";
    return 2;
  }
  try {
    weft::test::run(argv);
  } catch (...) {
    return weft::cli::report_exception("odd_collective");
  }
  return 0;
}
