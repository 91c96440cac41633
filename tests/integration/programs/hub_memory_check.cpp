// Under weftrun: no rank needs more than its part of a model while it is read
// from a Hugging Face folder. [DIM LAYERS [DTYPE]] for another size.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include "checkpoint/files/folder.h"
#include "cli/bench/measure.h"
#include "dtensor/tensor/dtensor.h"
#include "hf/config_json.h"
#include "hf/tensor_map.h"
#include "hf/weight_writer.h"
#include "mesh/communicator/exchange.h"
#include "mesh/device_mesh.h"
#include "mesh/world.h"
#include "tests/support/temp_folder.h"
#include "train/setup/initial_weights.h"
#include "train/setup/load_recipe.h"
#include "train/setup/train_job.h"
#include "train/setup/validate.h"

namespace weft::integration {
namespace {

namespace fs = std::filesystem;

// All weights 0.5, a file of about 300 MB each.
void write_model(
    const fs::path& path,
    const config::ModelConfig& model,
    at::ScalarType dtype) {
  const auto folder = checkpoint::Folder::open(path);
  hf::write_small_file(
      folder, hf::kConfigName, hf::write_config(model, 128, "", ""));
  const auto map = hf::tensor_map(model);
  std::vector<hf::Planned> all;
  for (const auto& [name, shape] : map.hub) {
    all.push_back({name, dtype, shape});
  }
  constexpr size_t kPerFile = 40;
  std::string index;
  for (size_t first = 0; first < all.size(); first += kPerFile) {
    const auto file = fmt::format("model-{}.safetensors", first);
    const std::vector<hf::Planned> part(
        all.begin() + static_cast<std::ptrdiff_t>(first),
        all.begin() + static_cast<std::ptrdiff_t>(
                          std::min(first + kPerFile, all.size())));
    hf::WeightWriter writer(folder, file, part);
    for (const auto& tensor : part) {
      writer.append(
          at::full(tensor.shape, 0.5, at::TensorOptions().dtype(dtype)));
      index += fmt::format(
          R"({}"{}":"{}")", index.empty() ? "" : ",", tensor.name, file);
    }
    writer.finish();
  }
  hf::write_small_file(
      folder,
      "model.safetensors.index.json",
      R"({"weight_map":{)" + index + "}}");
}

config::ModelConfig model_of(int64_t dim, int64_t layers) {
  config::ModelConfig model;
  model.dim = dim;
  model.layers = layers;
  model.heads = 8;
  model.kv_heads = 8;
  model.ffn_dim = 4 * dim;
  model.vocab_size = 32'000;
  return model;
}

struct Growth {
  int64_t peak = 0;
  int64_t shard = 0;
  int64_t read = 0;
};

// From before the model is built until it has its weights.
Growth measure(const std::string& folder, const mesh::World& world) {
  const auto tp = world.world_size();
  auto recipe = train::parse_recipe(
      fmt::format(
          "model: {{from: {}}}\nmesh: {{dp: 1, tp: {}}}\n"
          "data: {{paths: [none], sequence_length: 128}}\n",
          folder,
          tp),
      "check");
  train::validate(recipe, tp);
  const auto mesh = mesh::DeviceMesh::create(world, {1, tp}, {"dp", "tp"});
  world.group().barrier();
  std::ofstream("/proc/self/clear_refs") << "5"; // the peak is now
  const int64_t before = cli::bench::status_bytes("VmRSS");
  auto job = train::make_train_job(recipe, mesh);
  train::load_initial_weights(recipe, job);
  Growth growth;
  growth.peak = cli::bench::status_bytes("VmHWM") - before;
  for (const auto& parameter : job.model->parameters()) {
    const auto local = dtensor::to_local(parameter.detach());
    growth.shard += static_cast<int64_t>(local.nbytes());
    TORCH_CHECK(local.eq(0.5).all().item<bool>());
  }
  return growth;
}

int check(int argc, char** argv) {
  at::set_num_threads(1);
  const int64_t dim = argc > 1 ? std::atoll(argv[1]) : 512;
  const int64_t layers = argc > 2 ? std::atoll(argv[2]) : 16;
  const auto dtype = argc > 3 && std::string(argv[3]) == "float32"
                         ? at::kFloat
                         : at::kBFloat16;
  const auto world = mesh::World::from_env();
  const test::TempFolder own; // That of rank 0 is used.
  if (world.rank() == 0) {
    write_model(own.path(), model_of(dim, layers), dtype);
  }
  auto group = world.group();
  const auto folder =
      mesh::all_gather_text(group, own.path(), "folder").front();
  {
    // What starts at the first use of anything is not the model's.
    const auto small = folder + "/small";
    if (world.rank() == 0) {
      fs::create_directory(small);
      write_model(small, model_of(64, 1), dtype);
    }
    group.barrier();
    measure(small, world);
  }
  const auto growth = measure(folder, world);
  group.barrier();
  // Beside the parts: what threads and libraries touch meanwhile.
  constexpr int64_t kSlack = int64_t{4} << 20;
  const auto ratio = static_cast<double>(growth.peak - kSlack) /
                     static_cast<double>(growth.shard);
  std::printf(
      "rank %lld: %.1f MiB grown, %.1f MiB held\n",
      static_cast<long long>(world.rank()),
      static_cast<double>(growth.peak) / (1 << 20),
      static_cast<double>(growth.shard) / (1 << 20));
  return world.world_size() > 1 && ratio <= 1.2 ? 0 : 1;
}

} // namespace
} // namespace weft::integration

int main(int argc, char** argv) {
  return weft::integration::check(argc, argv);
}
