#include "cli/bench/benches.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/bench/measure.h"
#include "matmul/library.h"

namespace weft::cli::bench {
namespace {

using Json = nlohmann::ordered_json;
using matmul::Library;

constexpr int kRounds = 9;
constexpr double kMinMicroseconds = 3000;
/// The size of the square matmul that measures the processor's peak.
constexpr int64_t kPeakSize = 1024;

// A matmul of [m, k] and [k, n], which a step runs `count` times. `batch` above
// 0 makes it a batched matmul.
struct Product {
  int64_t m;
  int64_t k;
  int64_t n;
  /// The operands that are transposed views: "nn" (none), "nt" or "tn".
  std::string form;
  double count;
  int64_t batch = 0;

  double gflop() const {
    return 2e-9 * static_cast<double>(m * k * n) *
           static_cast<double>(std::max<int64_t>(batch, 1));
  }
};

// Adds the three matmuls of a linear layer: forward, and the gradients of its
// input and its weight.
void add_linear(
    std::vector<Product>& products,
    int64_t tokens,
    int64_t in,
    int64_t out,
    int64_t count) {
  const auto times = static_cast<double>(count);
  products.push_back({tokens, in, out, "nt", times});
  products.push_back({tokens, out, in, "nn", times});
  products.push_back({out, tokens, in, "tn", times});
}

// Returns the matmuls in a step of the Llama of bench/peer/train_step.py on one
// rank.
std::vector<Product> products_of_step(const StepOptions& options) {
  const int64_t tokens = options.batch * options.seq;
  const int64_t head_dim = options.dim / options.heads;
  const int64_t kv_heads = options.kv_heads ? options.kv_heads : options.heads;
  const int64_t ffn_dim = options.ffn_dim ? options.ffn_dim : 4 * options.dim;
  std::vector<Product> products;
  add_linear(products, tokens, options.dim, options.dim, 2 * options.layers);
  add_linear(
      products, tokens, options.dim, kv_heads * head_dim, 2 * options.layers);
  add_linear(products, tokens, options.dim, ffn_dim, 2 * options.layers);
  add_linear(products, tokens, ffn_dim, options.dim, options.layers);
  add_linear(products, tokens, options.dim, options.vocab, 1);
  // The scores and the weighted sums have one forward and two backward matmuls
  // each. The causal mask halves the work, so `count` is 1.5 per layer.
  const int64_t heads = options.batch * options.heads;
  const double count = 1.5 * static_cast<double>(options.layers);
  products.push_back({options.seq, head_dim, options.seq, "nt", count, heads});
  products.push_back({options.seq, options.seq, head_dim, "nn", count, heads});
  return products;
}

struct Operands {
  at::Tensor a;
  at::Tensor b;

  Operands(const Product& product, c10::ScalarType dtype) {
    const auto [m, k, n] = std::array{product.m, product.k, product.n};
    a = product.form[0] == 't' ? make(product, k, m, dtype).mT()
                               : make(product, m, k, dtype);
    b = product.form[1] == 't' ? make(product, n, k, dtype).mT()
                               : make(product, k, n, dtype);
  }

  static at::Tensor make(
      const Product& product,
      int64_t rows,
      int64_t columns,
      c10::ScalarType dtype) {
    auto sizes = std::vector{rows, columns};
    if (product.batch > 0) {
      sizes.insert(sizes.begin(), product.batch);
    }
    return at::randn(sizes).to(dtype);
  }

  void multiply() const { at::matmul(a, b); }
};

std::vector<Library> libraries() {
  std::vector<Library> result{Library::kLibtorch};
  if (matmul::this_host().onednn_problem.empty()) {
    result.push_back(Library::kOneDnn);
  }
  return result;
}

Json time_product(const Product& product, c10::ScalarType dtype) {
  const Operands operands(product, dtype);
  const auto work = [&] { operands.multiply(); };
  work();
  const double once = std::max(microseconds(work), 0.1);
  const int calls = std::max(1, static_cast<int>(kMinMicroseconds / once));
  std::map<Library, std::vector<double>> times;
  for (int round = 0; round < kRounds; ++round) {
    for (const auto library : libraries()) {
      matmul::set_library(library);
      work();
      times[library].push_back(microseconds(work, calls));
    }
  }
  Json result;
  for (const auto library : libraries()) {
    result[std::string(matmul::to_string(library))] =
        rounded(median(times[library]), 1e2);
  }
  return result;
}

} // namespace

std::string run_matmul(const StepOptions& options) {
  const at::NoGradGuard no_grad;
  at::set_num_threads(static_cast<int>(options.threads));
  const auto dtype = options.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const auto choice = matmul::choose_library(dtype);
  const auto products = products_of_step(options);
  double gflop = 0;
  auto total = Json::object();
  Json lines = Json::array();
  for (const auto& product : products) {
    const auto times = time_product(product, dtype);
    gflop += product.count * product.gflop();
    for (const auto& [library, us] : times.items()) {
      total[library] =
          total.value(library, 0.0) + 1e-3 * product.count * us.get<double>();
    }
    lines.push_back(
        {{"m", product.m},
         {"k", product.k},
         {"n", product.n},
         {"form", product.form},
         {"batch", product.batch},
         {"count", product.count},
         {"us", times}});
  }
  const Product peak{kPeakSize, kPeakSize, kPeakSize, "nn", 1};
  Json peak_gflops;
  const auto peak_us = time_product(peak, dtype);
  for (const auto& [library, us] : peak_us.items()) {
    peak_gflops[library] = rounded(1e6 * peak.gflop() / us.get<double>(), 1e1);
  }
  return base::json_text(Json{
      {"bench", "matmul"},
      {"dtype", options.dtype},
      {"vector", at::get_cpu_capability()},
      {"auto", matmul::to_string(choice.library)},
      {"gflop", rounded(gflop, 1e3)},
      {"ms", total},
      {"peak_gflops", peak_gflops},
      {"products", lines}});
}

} // namespace weft::cli::bench
