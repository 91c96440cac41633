#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "config/recipe.h"
#include "mesh/world.h"
#include "train/health/integrity_checker.h"
#include "train/trainer.h"

namespace weft::integration {

/// One bit of one rank's memory that is turned over while it trains.
struct Flip {
  enum class Where {
    kWeight,
    /// Before it is reduced over the replicas, and after.
    kOwnGradient,
    kReducedGradient,
  };
  /// In the course of a step.
  enum class When { kBetweenSteps, kForward, kBackward, kBeforeUpdate };

  Where where = Where::kWeight;
  When when = When::kBetweenSteps;
  int64_t rank = 0;
  /// From 0; the bit changes in the course of it.
  int64_t step = 0;
  /// The index among the model's parameters; the element (modulo the number of
  /// elements of the rank) and the bit, 0 is the mantissa's lowest.
  size_t tensor = 0;
  int64_t element = 0;
  int bit = 0;
};

/// A mantissa bit of a weight, anywhere, at any time of one of the steps
/// [1, steps).
Flip random_flip(
    std::mt19937_64& random,
    int64_t ranks,
    size_t tensors,
    int64_t steps);

struct FlipResult {
  /// The error. Empty if there was none.
  std::string message;
  /// After how many steps it came; one that flips in step 3 and is found at the
  /// end of step 3 has 1.
  int64_t steps_until = 0;
  /// The only rank that the error names. -1 if it names none or several.
  int64_t named = -1;
  /// Other messages for the user (rank 0).
  std::vector<std::string> notes;
};

/// Trains with an integrity check, as `weft train` does, from step 0 for
/// recipe.train.steps; one that was found ends it.
/// Collective: all ranks of `world`.
FlipResult train_with_flip(
    const config::Recipe& recipe,
    const mesh::World& world,
    const std::vector<Flip>& flips);

/// Returns the only rank that an error of the integrity check blames. -1 if it
/// blames none or several.
int64_t blamed_rank(const std::string& message);

} // namespace weft::integration
