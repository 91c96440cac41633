#include <sys/resource.h>

#include <filesystem>
#include <functional>

#include <gtest/gtest.h>

#include "tests/checkpoint/sample.h"
#include "tests/fuzz/fuzz_input.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

int64_t peak_kib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// Names begin with what a reader must do: see make_corpus.py.
void replay(
    const std::string& name,
    const std::function<FuzzVerdict(std::string_view)>& read) {
  constexpr int64_t kMaxGrowth = 32 << 10;
  int64_t count = 0;
  const auto before = peak_kib();
  for (const auto& entry :
       fs::directory_iterator(fs::path(WEFT_FUZZ_CORPUS) / name)) {
    const auto file = entry.path().filename().string();
    ASSERT_TRUE(file.starts_with("ok-") || file.starts_with("no-")) << file;
    const auto run_result = read(read_file(entry.path()));
    EXPECT_EQ(run_result.is_accepted, file.starts_with("ok-"))
        << file << ": " << run_result.error;
    EXPECT_EQ(run_result.is_accepted, run_result.error.empty()) << file;
    ++count;
  }
  EXPECT_GT(count, 100);
  EXPECT_LT(peak_kib() - before, kMaxGrowth) << "KiB; no input has 10 of them";
}

TEST(FuzzCorpus, HeadersAreReadOrRefused) {
  replay("header", fuzz_header);
}

TEST(FuzzCorpus, ManifestsAreReadOrRefused) {
  replay("manifest", fuzz_manifest);
}

} // namespace
} // namespace weft::test
