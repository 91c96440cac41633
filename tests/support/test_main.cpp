#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/memory_allocator.h"
#include "base/process.h"

namespace {

void prepare_for_libtorch(
    int /*argc*/,
    char** /*argv*/,
    char** /*environment*/) {
  weft::base::take_memory_for_libtorch();
}

[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kBeforeLibtorch)(int, char**, char**) =
    &prepare_for_libtorch;

} // namespace

// Hundreds of test processes a run: each ends without libtorch's 50 ms.
int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  weft::base::end_process(RUN_ALL_TESTS());
}
