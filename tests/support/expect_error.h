#pragma once

#include <string>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::test {

/// Expects `body` to throw an E and returns its message, or "" if it does not.
template <class E, class Body>
std::string message_of_thrown(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

} // namespace weft::test
