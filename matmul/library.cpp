#include "matmul/library.h"

#include <array>
#include <atomic>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <ATen/ATen.h>

#include "matmul/kernels.h"
#include "matmul/onednn.h"
#include "mesh/error/error.h"

namespace weft::matmul {
namespace {

constexpr std::array kNames{"libtorch", "onednn"};

std::atomic<Library> current{Library::kLibtorch};

std::string processor_vendor() {
#if defined(__x86_64__)
  unsigned int largest = 0;
  std::array<unsigned int, 3> words{};
  if (__get_cpuid(0, &largest, words.data(), &words[2], &words[1]) != 0) {
    std::array<char, 12> text{};
    std::memcpy(text.data(), words.data(), text.size());
    return {text.data(), text.size()};
  }
#endif
  return "";
}

} // namespace

std::string_view to_string(Library library) {
  return kNames.at(static_cast<size_t>(library));
}

const Host& this_host() {
  static const Host host{
      .processor_vendor = processor_vendor(),
      .has_mkl = at::hasMKL(),
      .onednn_problem = onednn::support().problem,
      .has_bfloat16 = onednn::support().has_bfloat16};
  return host;
}

Choice choose_library(c10::ScalarType dtype, const Host& host) {
  if (!host.onednn_problem.empty()) {
    return {Library::kLibtorch, "oneDNN cannot: " + host.onednn_problem};
  }
  if (dtype == c10::kBFloat16 && !host.has_bfloat16) {
    return {
        Library::kOneDnn,
        "this processor cannot multiply bfloat16: matmuls run in float32"};
  }
  if (!host.has_mkl) {
    return {Library::kLibtorch, "libtorch was built without MKL"};
  }
  if (host.processor_vendor == "GenuineIntel") {
    return {Library::kLibtorch, "MKL uses all of this processor"};
  }
  return {Library::kOneDnn, "MKL keeps to AVX2 on this processor"};
}

void set_library(Library library) {
  if (library == Library::kOneDnn) {
    const auto& problem = onednn::support().problem;
    if (!problem.empty()) {
      mesh::throw_error<mesh::UsageError>(
          "[set_library] oneDNN cannot be used on this host: " + problem +
          ". Use Library::kLibtorch, or the library that choose_library() "
          "returns.");
    }
    register_kernels();
  }
  current.store(library, std::memory_order_relaxed);
}

Library library() {
  return current.load(std::memory_order_relaxed);
}

} // namespace weft::matmul
