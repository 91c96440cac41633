#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "train/trainer.h"

namespace weft::integration {

/// The complete result of a training run.
struct Trace {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> initial;
  std::map<std::string, at::Tensor> final;
  double eval_loss = 0;
};

/// A file of text with some structure, so that the loss falls.
std::string corpus_path();

/// A file of 200 images of 8 x 8 pixels whose digits can be learned.
std::string digits_path();

/// Trains a validated recipe on as many ranks as its mesh has, threads of this
/// process.
Trace train(const config::Recipe& recipe);

/// Like train(), once per recipe and process: returns the earlier trace of a
/// recipe that was trained before. For references of many meshes.
const Trace& train_once(const config::Recipe& recipe);

double relative_distance(const at::Tensor& a, const at::Tensor& b);

/// Losses within `tolerance` of each other, relative; parameters too, in their
/// norm; the same initial values, bitwise.
void expect_same_training(
    const Trace& actual,
    const Trace& expected,
    double tolerance = 1e-4);

/// The comparison means something only if training moves everything.
void expect_training_happened(const Trace& trace, int64_t steps);

} // namespace weft::integration
