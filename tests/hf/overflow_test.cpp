// Stored values that the dtype of a copy cannot hold: export, import and the
// weights of a new run refuse them and leave nothing behind.

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/format/rounding.h"
#include "checkpoint/save/save.h"
#include "hf/export_model.h"
#include "hf/export_tensors.h"
#include "hf/import_model.h"
#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "tests/hf/hub_folder.h"

namespace weft::hf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Sets element [row, column] of a float32 tensor in the folder's file.
void set_element(
    const std::filesystem::path& folder,
    const std::string& name,
    int64_t row,
    int64_t column,
    float value) {
  const auto path = folder / "model.safetensors";
  auto file = TensorFile::read(path);
  const auto& entry = file.header.at(name);
  const auto columns = entry.at("shape")[1].get<int64_t>();
  const auto begin =
      entry.at("data_offsets")[0].get<int64_t>() + (row * columns + column) * 4;
  std::memcpy(file.data.data() + begin, &value, sizeof(value));
  file.write(path);
}

// A Llama whose weights are finite in float32 alone.
std::filesystem::path large_llama(
    const fixtures::TempFolder& temp,
    float largest) {
  const auto folder = copy_hub_folder("llama", temp);
  set_element(folder, "model.layers.0.mlp.down_proj.weight", 0, 0, 1e5F);
  set_element(folder, "lm_head.weight", 3, 3, largest);
  return folder;
}

TEST(Overflow, ExportNamesTheValueAndWritesNothing) {
  const fixtures::TempFolder temp;
  const auto imported = import_model(large_llama(temp, 3.3e38F), temp / "run");
  const auto export_as = [&](at::ScalarType dtype) {
    return fixtures::message_of<mesh::UsageError>(
        [&] { export_model(imported.path, temp / "out", {.dtype = dtype}); });
  };
  EXPECT_THAT(
      export_as(at::kHalf),
      AllOf(
          HasSubstr("is too large for float16"),
          ::testing::AnyOf(
              HasSubstr("\"model.layers.0.mlp.down_proj.weight\"[0, 0] holds "
                        "100000 as float32"),
              HasSubstr("\"lm_head.weight\"[3, 3] holds 3.3e+38")),
          HasSubstr("These dtypes hold it: bfloat16, float32, float64."),
          HasSubstr("--dtype")));
  EXPECT_FALSE(std::filesystem::exists(temp / "out"));
  EXPECT_EQ(export_as(at::kBFloat16), "") << "3.3e38 is finite in bfloat16";
  EXPECT_TRUE(std::filesystem::exists(temp / "out"));
}

TEST(Overflow, ExportRefusesWhatRoundsUpToInfinity) {
  const fixtures::TempFolder temp;
  const auto imported = import_model(large_llama(temp, 3.4e38F), temp / "run");
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>([&] {
        export_model(imported.path, temp / "out", {.dtype = at::kBFloat16});
      }),
      AllOf(
          HasSubstr("\"lm_head.weight\"[3, 3] holds 3.4e+38 as float32"),
          HasSubstr("too large for bfloat16"),
          HasSubstr("hold it: float32, float64.")));
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>([&] {
        export_tensors(
            imported.path, temp / "all.safetensors", {.dtype = at::kBFloat16});
      }),
      HasSubstr("lm_head.weight\"[3, 3] holds 3.4e+38 as float32"));
  EXPECT_FALSE(std::filesystem::exists(temp / "out"));
  EXPECT_FALSE(std::filesystem::exists(temp / "all.safetensors"));
}

TEST(Overflow, ImportRefusesWhatFloat32CannotHold) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("llama", temp);
  const auto path = folder / "model.safetensors";
  auto file = TensorFile::read(path);
  const std::string name = "model.norm.weight";
  const auto size = file.header.at(name).at("shape")[0].get<int64_t>();
  std::vector<double> values(static_cast<size_t>(size), 1.0);
  values[2] = 1e300;
  std::string bytes(values.size() * sizeof(double), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  file.rename(name, "");
  file.add(name, "F64", {size}, bytes);
  file.write(path);
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [&] { import_model(folder, temp / "run"); }),
      AllOf(
          HasSubstr("model.safetensors: \"model.norm.weight\"[2] holds 1e+300 "
                    "as float64"),
          HasSubstr("too large for float32"),
          HasSubstr("hold it: float64.")));
  EXPECT_FALSE(std::filesystem::exists(temp / "run/step-0"));
}

TEST(Overflow, RoundingKeepsWhatIsNotFinite) {
  using checkpoint::round_to;
  const auto values = at::tensor({1.0F, INFINITY, -INFINITY, NAN});
  EXPECT_TRUE(at::allclose(
      round_to(values, at::kHalf, {.name = "w"}).to(at::kFloat),
      values,
      0,
      0,
      /*equal_nan=*/true));
  EXPECT_EQ(round_to(at::empty({0, 3}), at::kHalf, {.name = "w"}).numel(), 0);
  const auto wide = at::full({2, 3, 4}, 1.0, at::kDouble);
  wide[1][2][3] = -1e39;
  const auto refusal = [&](const at::Tensor& tensor, at::ScalarType dtype) {
    return fixtures::message_of<c10::ValueError>([&] {
      round_to(tensor, dtype, {.name = "w", .offset = {{10, 20, 30}}});
    });
  };
  EXPECT_THAT(refusal(wide, at::kFloat), HasSubstr("\"w\"[11, 22, 33] holds"));
  EXPECT_THAT(
      refusal(wide.transpose(0, 2), at::kBFloat16),
      AllOf(HasSubstr("\"w\"[13, 22, 31] holds"), HasSubstr("bfloat16")));
  EXPECT_EQ(
      checkpoint::describe_non_finite(values, {.name = "w", .offset = {{5}}}),
      "\"w\"[6] is inf");
}

} // namespace
} // namespace weft::hf
