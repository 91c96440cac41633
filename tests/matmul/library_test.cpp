#include "matmul/library.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace weft::matmul {
namespace {

// AMD's, with AVX-512, and the package of libtorch for x86.
Host amd() {
  return {
      .processor_vendor = "AuthenticAMD",
      .has_mkl = true,
      .onednn_problem = "",
      .has_bfloat16 = true};
}

TEST(MatmulLibrary, NamesAreThoseOfTheRecipe) {
  EXPECT_EQ(to_string(Library::kLibtorch), "libtorch");
  EXPECT_EQ(to_string(Library::kOneDnn), "onednn");
}

TEST(MatmulLibrary, OneDnnWhereMklLeavesVectorsUnused) {
  EXPECT_EQ(choose_library(at::kFloat, amd()).library, Library::kOneDnn);
  auto hygon = amd();
  hygon.processor_vendor = "HygonGenuine";
  EXPECT_EQ(choose_library(at::kFloat, hygon).library, Library::kOneDnn);
  auto intel = amd();
  intel.processor_vendor = "GenuineIntel";
  EXPECT_EQ(choose_library(at::kFloat, intel).library, Library::kLibtorch);
}

TEST(MatmulLibrary, LibtorchWhereItsProductsAreNotMkls) {
  auto openblas = amd();
  openblas.has_mkl = false;
  EXPECT_EQ(choose_library(at::kFloat, openblas).library, Library::kLibtorch);
}

TEST(MatmulLibrary, LibtorchWhereOneDnnCannot) {
  auto without = amd();
  without.onednn_problem = "this libtorch was built without it";
  const auto choice = choose_library(at::kFloat, without);
  EXPECT_EQ(choice.library, Library::kLibtorch);
  EXPECT_EQ(choice.reason, "oneDNN cannot: this libtorch was built without it");
}

TEST(MatmulLibrary, BFloat16IsWidenedWhereTheProcessorHasNone) {
  auto old = amd();
  old.processor_vendor = "GenuineIntel";
  old.has_bfloat16 = false;
  EXPECT_EQ(choose_library(at::kFloat, old).library, Library::kLibtorch);
  EXPECT_EQ(choose_library(at::kBFloat16, old).library, Library::kOneDnn);
  old.has_bfloat16 = true;
  EXPECT_EQ(choose_library(at::kBFloat16, old).library, Library::kLibtorch);
}

TEST(MatmulLibrary, LibtorchMultipliesUntilToldOtherwise) {
  EXPECT_EQ(library(), Library::kLibtorch);
}

} // namespace
} // namespace weft::matmul
