#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data_parallel/comm_hooks/power_sgd_memory.h"

namespace weft::data_parallel {

/// A bucket that PowerSGD processes.
struct PowerSGDPass {
  explicit PowerSGDPass(GradBucket of) : bucket(std::move(of)) {}

  GradBucket bucket;
  /// The gradients plus the errors of error feedback, and later the result. A
  /// 1-D tensor in the dtype of computation. Its first elements are those of
  /// the bucket in the same order. They may be followed by padding.
  at::Tensor work;
  /// A copy of `work` before compression. Undefined without error feedback.
  at::Tensor before;
  /// The gradients that are not compressed, and their indices.
  std::vector<size_t> plain_indices;
  std::vector<at::Tensor> plain;
  /// Gradients of one shape as matrices. Shape [b, n, m]; views of `work` if
  /// possible.
  struct Matrices {
    at::Tensor stacked;
    std::vector<at::Tensor> gradients;
    at::Tensor p;
    at::Tensor q;
  };
  std::vector<Matrices> matrices;
  /// All p and all q.
  at::Tensor ps;
  at::Tensor qs;
  /// The first message: the uncompressed gradients followed by all p.
  at::Tensor message;
};

/// The algorithm of both hooks.
class PowerSGD : public std::enable_shared_from_this<PowerSGD> {
 public:
  /// `whole_bucket` compresses the bucket as one square matrix.
  PowerSGD(const PowerSGDOptions& options, bool whole_bucket);

  BucketFuture run(const GradBucket& bucket);

  const char* name() const;
  PowerSGDMemory& memory() { return memory_; }

 private:
  using Pass = PowerSGDPass;

  void gather_gradients(Pass& pass) const;
  void sort_gradients(Pass& pass) const;
  void make_square(Pass& pass) const;
  void add_matrices(
      Pass& pass,
      const std::vector<std::vector<at::Tensor>>& by_shape) const;
  int64_t rank_of(int64_t rows, int64_t columns) const;
  void count(const Pass& pass);
  void start_qs(Pass& pass);
  void compute_ps(Pass& pass) const;
  void take_message(Pass& pass) const;
  void reduce_qs(Pass& pass) const;
  void decompress(Pass& pass) const;
  void remember(Pass& pass);

  PowerSGDOptions options_;
  bool whole_bucket_;
  PowerSGDMemory memory_;
};

} // namespace weft::data_parallel
