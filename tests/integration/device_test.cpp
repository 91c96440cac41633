// `device: cuda` where it cannot work, and what a CPU run leaves alone.

#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/process.h"
#include "tests/support/temp_folder.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using Words = std::vector<std::string>;

constexpr const char* kCudaRecipe = R"(name: tiny
device: cuda
mesh: {dp: -1, tp: 1}
model: {dim: 32, layers: 1, heads: 4, ffn_dim: 64}
data: {paths: [corpus.txt], sequence_length: 32}
train: {steps: 100000, global_batch_size: 4}
eval: {every: 0, batches: 1}
)";

class DeviceTest : public ::testing::Test {
 protected:
  DeviceTest() {
    std::ofstream text(folder_ / "corpus.txt");
    for (int i = 0; i < 3000; ++i) {
      text << "line " << i * 7919 % 1000 << " of a text\n";
    }
    std::ofstream(folder_ / "tiny.yaml") << kCudaRecipe;
  }

  /// What `weft train tiny.yaml` says in the end, having exited with 2.
  std::string refusal(const std::string& library, const Words& launcher = {})
      const {
    Words words = launcher;
    words.insert(words.end(), {WEFT_WEFT, "train", "tiny.yaml"});
    Process run(words, folder_, {{"WEFT_CUDA_LIBRARY", library}});
    EXPECT_EQ(run.wait(), 2) << run.error();
    EXPECT_FALSE(fs::exists(folder_ / "outputs"));
    return run.last_error_line();
  }

  static std::string fake(const std::string& name) {
    return std::string(WEFT_FAKE_PLUGINS "/libweft_fake_")
        .append(name)
        .append(".so");
  }

  test::TempFolder temp_;
  const fs::path folder_ = temp_.path();
};

TEST_F(DeviceTest, CudaWithoutTheLibraryIsRefused) {
  EXPECT_THAT(
      refusal("/nowhere/libweft_cuda.so"),
      AllOf(
          StartsWith("ERROR 2 rank=0 op=train [device] device: cuda needs "
                     "libweft_cuda.so"),
          HasSubstr("not at /nowhere/libweft_cuda.so"),
          HasSubstr("docs/gpu.md"),
          HasSubstr("device: cpu")));
}

TEST_F(DeviceTest, CudaWithoutADeviceIsRefusedWithTheLibrarysReason) {
  EXPECT_THAT(
      refusal(fake("no_device")),
      HasSubstr("[device] there is no device here"));
}

TEST_F(DeviceTest, CudaOfAnotherVersionIsRefused) {
  EXPECT_THAT(refusal(fake("other_abi")), HasSubstr("has plugin interface"));
}

TEST_F(DeviceTest, EveryRankRefusesBeforeItWaitsForAnother) {
  EXPECT_THAT(
      refusal(fake("no_device"), {WEFT_WEFTRUN, "--nproc-per-node", "2", "--"}),
      AllOf(StartsWith("ERROR 2 "), HasSubstr("there is no device here")));
}

TEST_F(DeviceTest, ARecipeForCudaIsCheckedLikeAnyOther) {
  Process run(
      {WEFT_WEFT, "train", "tiny.yaml", "model.heads=5"},
      folder_,
      {{"WEFT_CUDA_LIBRARY", "/nowhere"}});
  EXPECT_EQ(run.wait(), 2);
  EXPECT_THAT(run.last_error_line(), HasSubstr("model.heads=5"));
}

TEST_F(DeviceTest, ACpuRunMapsNothingOfCudaOrNccl) {
  Process run({WEFT_WEFT, "train", "tiny.yaml", "device=cpu"}, folder_);
  while (
      lines_of(test::read_text(folder_ / "outputs/tiny/metrics.jsonl")).size() <
      3) {
    ASSERT_FALSE(run.wait(std::chrono::seconds(0))) << run.error();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const auto maps =
      test::read_text(fs::path("/proc") / std::to_string(run.pid()) / "maps");
  EXPECT_THAT(maps, HasSubstr("libtorch_cpu.so"));
  // The wheel's libtorch_cpu.so itself needs libcudart and libcupti; nothing
  // else of CUDA may be there.
  for (const auto* library :
       {"libweft_cuda",
        "libtorch_cuda",
        "libc10_cuda",
        "libnccl",
        "libcublas",
        "libcudnn",
        "libcuda.so",
        "libnvidia"}) {
    EXPECT_THAT(maps, Not(HasSubstr(library)));
  }
}

} // namespace
} // namespace weft::test
