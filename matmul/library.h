#pragma once

#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace weft::matmul {

/// The library for float32 matmuls on the CPU. It applies below every op: mm,
/// addmm, bmm and baddbmm, and everything made of them (linear, matmul, the
/// modules of torch::nn, their gradients), for DTensors and plain tensors
/// alike.
enum class Library {
  /// libtorch's own choice: MKL, in its packages for x86.
  kLibtorch,
  /// oneDNN, which is part of libtorch. MKL uses only AVX2 on processors that
  /// are not from Intel, while oneDNN uses AVX-512. Matmuls that are too small
  /// to gain stay with libtorch (is_worth_onednn() in kernels.cpp).
  kOneDnn,
};

/// Returns "libtorch" or "onednn", the values of the recipe key `products`.
std::string_view to_string(Library library);

/// The properties of a host on which the choice of a library depends.
struct Host {
  /// The vendor by CPUID: "AuthenticAMD", "GenuineIntel". Empty if the host is
  /// not x86.
  std::string processor_vendor;
  /// True if libtorch was built with MKL.
  bool has_mkl = false;
  /// The reason why oneDNN cannot multiply float32. Empty if it can.
  std::string onednn_problem;
  /// True if the processor multiplies bfloat16 or converts it with AVX-512.
  bool has_bfloat16 = false;
};

/// Returns the properties of this host. Tests oneDNN at the first call.
const Host& this_host();

/// A library and the reason for it.
struct Choice {
  /// The library.
  Library library = Library::kLibtorch;
  /// A clause for the user: "MKL keeps to AVX2 on this processor".
  std::string reason;
};

/// Returns the faster library by a rule on the host and the dtype of
/// computation, not by timings, so that ranks and resumed runs decide alike.
/// The rule selects oneDNN if libtorch uses MKL and the processor is not
/// Intel's, and for bfloat16 if the processor cannot multiply it: libtorch's
/// bfloat16 matmuls are then tens of times slower than those of float32, while
/// kOneDnn computes them in float32 and rounds.
Choice choose_library(c10::ScalarType dtype, const Host& host = this_host());

/// Selects the library for all threads of the process. Results differ in their
/// last bits. Until the first call libtorch multiplies.
/// Throws: mesh::UsageError if oneDNN is not available on this host.
void set_library(Library library);

/// Returns the current library.
Library library();

} // namespace weft::matmul
