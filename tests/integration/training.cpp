#include "tests/integration/training.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include <fmt/format.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "tests/support/run_ranks.h"

namespace weft::integration {
namespace {

// Collective over the mesh: every rank gathers, all get the same.
std::map<std::string, at::Tensor> whole_parameters(train::TrainJob& job) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> whole;
  for (const auto& item : job.model->named_parameters()) {
    whole[item.key()] = dtensor::full_tensor(item.value()).clone();
  }
  return whole;
}

} // namespace

std::string corpus_path() {
  const auto path = std::filesystem::temp_directory_path() /
                    fmt::format("weft_layouts_{}.txt", getpid());
  std::ofstream file(path);
  for (int i = 0; i < 4000; ++i) {
    file << "int64_t value_" << i * 7919 % 1000 << " = " << i * i % 613
         << ";\n";
  }
  return path.string();
}

std::string digits_path() {
  const auto path = std::filesystem::temp_directory_path() /
                    fmt::format("weft_layouts_{}.csv", getpid());
  std::ofstream file(path);
  for (int image = 0; image < 200; ++image) {
    const int digit = image * 7 % 10;
    for (int pixel = 0; pixel < 64; ++pixel) {
      const int noise = (image * 31 + pixel * 17) % 7;
      file << (pixel % 10 == digit ? 16 - noise : noise) << ",";
    }
    file << digit << "\n";
  }
  return path.string();
}

Trace train(const config::Recipe& recipe) {
  Trace trace;
  std::mutex mutex;
  test::run_ranks(
      static_cast<int>(recipe.mesh.world_size()), [&](test::RankContext& self) {
        train::Trainer trainer(recipe, self.world);
        Trace own;
        own.initial = whole_parameters(trainer.job());
        for (int64_t step = 0; step < recipe.train.steps; ++step) {
          own.losses.push_back(trainer.train_step(step).loss);
        }
        own.eval_loss = trainer.evaluate().value();
        own.final = whole_parameters(trainer.job());
        const std::lock_guard lock(mutex);
        if (self.rank == 0) {
          trace = std::move(own);
        }
      });
  return trace;
}

const Trace& train_once(const config::Recipe& recipe) {
  static std::map<std::string, Trace> traces;
  const auto [place, is_new] = traces.try_emplace(config::to_yaml(recipe));
  if (is_new) {
    place->second = train(recipe);
  }
  return place->second;
}

double relative_distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

void expect_same_training(
    const Trace& actual,
    const Trace& expected,
    double tolerance) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < actual.losses.size(); ++i) {
    EXPECT_NEAR(
        actual.losses[i], expected.losses[i], tolerance * expected.losses[i])
        << "step " << i + 1;
  }
  EXPECT_NEAR(
      actual.eval_loss, expected.eval_loss, tolerance * expected.eval_loss);
  ASSERT_EQ(actual.initial.size(), expected.initial.size());
  for (const auto& [name, value] : expected.initial) {
    EXPECT_TRUE(at::equal(actual.initial.at(name), value)) << name;
  }
  for (const auto& [name, value] : expected.final) {
    // All keys of a softmax may be shifted alike: a bias of theirs has no
    // gradient but rounding, which AdamW makes steps of.
    if (!name.ends_with("k_proj.bias")) {
      EXPECT_LT(relative_distance(actual.final.at(name), value), tolerance)
          << name;
    }
  }
}

void expect_training_happened(const Trace& trace, int64_t steps) {
  ASSERT_EQ(trace.losses.size(), static_cast<size_t>(steps));
  EXPECT_LT(trace.losses.back(), 0.85 * trace.losses.front());
  for (const auto& [name, value] : trace.final) {
    EXPECT_GT(relative_distance(value, trace.initial.at(name)), 1e-3) << name;
  }
}

} // namespace weft::integration
