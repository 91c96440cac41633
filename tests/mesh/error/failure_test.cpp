#include "mesh/error/failure.h"

#include <new>
#include <stdexcept>
#include <string>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

template <class E>
E make(const char* text) {
  return E({"", "", 0}, text);
}

TEST(Message, IsThatOfTheErrorWithoutLibtorchsStack) {
  EXPECT_EQ(message_of(std::runtime_error("no room")), "no room");
  try {
    TORCH_CHECK(false, "sizes differ");
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()), "sizes differ");
    EXPECT_EQ(message_of(error), "sizes differ");
    EXPECT_EQ(message_of(std::current_exception()), "sizes differ");
  }
  EXPECT_EQ(
      message_of(std::make_exception_ptr(1)),
      "an exception that is not a std::exception");
}

TEST(OutOfMemory, IsKnownByItsTypeAndByLibtorchsWords) {
  EXPECT_TRUE(is_out_of_memory(std::bad_alloc()));
  EXPECT_TRUE(is_out_of_memory(std::bad_array_new_length()));
  EXPECT_TRUE(is_out_of_memory(make<c10::OutOfMemoryError>("CUDA")));
  EXPECT_TRUE(is_out_of_memory(make<c10::Error>(
      "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 "
      "bytes. Error code 12 (Cannot allocate memory)")));
  EXPECT_TRUE(is_out_of_memory(
      make<c10::Error>("[checkpoint.load] std::bad_alloc (rank 1)")));
}

TEST(OutOfMemory, IsNotWhatAnotherRankSaysOfItself) {
  EXPECT_FALSE(is_out_of_memory(
      make<CommError>("rank 1 left the step by std::bad_alloc")));
  EXPECT_FALSE(is_out_of_memory(make<c10::Error>("sizes differ")));
  EXPECT_FALSE(is_out_of_memory(std::runtime_error("std::bad_alloc")));
}

TEST(OutOfMemory, IsRethrownAsItIs) {
  const auto handle = [](const auto& cause) {
    try {
      throw cause;
    } catch (const std::exception& error) {
      rethrow_if_out_of_memory(error);
    }
  };
  EXPECT_THROW(handle(std::bad_array_new_length()), std::bad_array_new_length);
  EXPECT_NO_THROW(handle(std::runtime_error("closed by peer")));
}

} // namespace
} // namespace weft::mesh
