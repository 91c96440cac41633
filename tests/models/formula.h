#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <ATen/ATen.h>

#include "models/model.h"

namespace weft::models {

/// Values in (-1, 1) by a formula that tests/models/oracle has too.
inline at::Tensor
wave(int64_t count, double phase, at::ScalarType dtype = at::kDouble) {
  const auto i = at::arange(count, dtype);
  return (i * i * 0.013 + i * 0.7 + phase).sin();
}

inline std::map<std::string, at::Tensor> sorted_parameters(const Model& model) {
  std::map<std::string, at::Tensor> sorted;
  for (const auto& item : model.named_parameters()) {
    sorted.emplace(item.key(), item.value());
  }
  return sorted;
}

} // namespace weft::models
