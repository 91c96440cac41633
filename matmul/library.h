#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace weft::matmul {

/// Multiplies matrices of float32 on the CPU. It does so below every op: mm,
/// addmm, bmm and baddbmm, and what is made of them (linear, matmul, the
/// modules of torch::nn, their gradients), of DTensors and of plain tensors
/// alike.
enum class Library {
  /// What libtorch calls by itself: MKL, in its packages for x86.
  kLibtorch,
  /// oneDNN, which is part of libtorch. MKL keeps to AVX2 on processors that
  /// are
  /// not Intel's, oneDNN uses AVX-512 there. Products that are too small to
  /// gain
  /// stay with libtorch (is_worth_onednn() in kernels.cpp).
  kOneDnn,
};

/// "libtorch" or "onednn", as the recipe's key `products` has it.
std::string_view to_string(Library library);

/// The library of that name; none: there is none.
std::optional<Library> library_of(std::string_view name);

/// What the choice of a library depends on.
struct Host {
  /// As CPUID gives it: "AuthenticAMD", "GenuineIntel"; empty: not x86.
  std::string processor_vendor;
  /// libtorch was built with MKL.
  bool has_mkl = false;
  /// Why oneDNN cannot multiply float32; empty: it can.
  std::string onednn_problem;
  /// The processor multiplies bfloat16, or AVX-512 widens it.
  bool has_bfloat16 = false;
};

/// This host, with oneDNN tried.
const Host& this_host();

struct Choice {
  Library library = Library::kLibtorch;
  /// A clause, for the user: "MKL keeps to AVX2 on this processor".
  std::string reason;
};

/// The faster library by a rule that looks at the host and at the dtype of
/// computation, never at timings, so that ranks and resumed runs decide alike.
/// oneDNN is chosen where libtorch's products are MKL's and the processor is
/// not Intel's, and for bfloat16 where the processor cannot multiply it: there
/// libtorch's products of bfloat16 are tens of times slower than those of
/// float32, and with kOneDnn they are made in float32 and rounded.
Choice choose_library(c10::ScalarType dtype, const Host& host = this_host());

/// Lets `library` multiply from now on, in all threads of the process. The
/// results of either differ in their last bits. Until the first call libtorch
/// multiplies.
/// Throws: mesh::UsageError if oneDNN cannot be had on this host.
void set_library(Library library);

/// The library that multiplies now.
Library library();

} // namespace weft::matmul
