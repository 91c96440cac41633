#include "dtensor/ops/whole_vectors.h"

#include <algorithm>

#include <ATen/ops/zeros.h>

namespace weft::dtensor {
namespace {

constexpr size_t kVectorBytes = 64;

int64_t vector_elements(const at::Tensor& tensor) {
  return static_cast<int64_t>(kVectorBytes / tensor.element_size());
}

// Returns true if the tensors are dense and their i-th elements are at the same
// offset in memory.
bool is_alike(const at::Tensor& tensor, const at::Tensor& first) {
  return tensor.is_cpu() && tensor.is_non_overlapping_and_dense() &&
         tensor.sizes() == first.sizes() &&
         tensor.strides() == first.strides() &&
         tensor.scalar_type() == first.scalar_type();
}

at::Tensor as_row(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

} // namespace

bool WholeVectors::is_whole(const at::Tensor& tensor) {
  // This is called for every parameter in every step, so it avoids a division.
  return static_cast<size_t>(tensor.numel()) * tensor.element_size() %
             kVectorBytes ==
         0;
}

WholeVectors::WholeVectors(
    const std::vector<List*>& lists,
    const std::vector<List*>& numbers) {
  const auto& firsts = *lists.front();
  const size_t count = firsts.size();
  for (size_t i = 0; i < count; ++i) {
    if (is_whole(firsts[i]) ||
        !std::ranges::all_of(
            lists,
            [&](const List* list) {
              return list->empty() || is_alike((*list)[i], firsts[i]);
            }) ||
        !take(lists, i)) {
      continue;
    }
    for (auto* list : numbers) {
      if (!list->empty()) {
        list->push_back((*list)[i]);
      }
    }
  }
}

bool WholeVectors::take(const std::vector<List*>& lists, size_t index) {
  const auto& first = (*lists.front())[index];
  const int64_t rest = first.numel() % vector_elements(first);
  const int64_t begin = first.numel() - rest;
  for (auto* list : lists) {
    if (list->empty()) {
      continue;
    }
    const auto all = as_row((*list)[index]);
    const auto row = at::zeros({vector_elements(all)}, all.options());
    rests_.push_back({all.narrow(0, begin, rest), row.narrow(0, 0, rest)});
    rests_.back().scratch.copy_(rests_.back().own);
    if (begin == 0) {
      (*list)[index] = row;
    } else {
      (*list)[index] = all.narrow(0, 0, begin);
      list->push_back(row);
    }
  }
  return begin != 0;
}

void WholeVectors::copy_back() const {
  for (const auto& [own, scratch] : rests_) {
    at::Tensor(own).copy_(scratch);
  }
}

} // namespace weft::dtensor
