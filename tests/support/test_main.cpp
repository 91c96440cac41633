#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/process.h"

// Hundreds of test processes a run: each ends without libtorch's 50 ms.
int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  weft::base::end_process(RUN_ALL_TESTS());
}
