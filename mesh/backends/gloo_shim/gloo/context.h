#pragma once

// Declares what c10d's ProcessGroupGloo.hpp names of gloo. The torch wheel
// ships that header and the compiled gloo, but not gloo's own headers. Nothing
// here is ever defined or laid out by us: objects are made inside libtorch and
// held behind pointers.

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

namespace transport {

class Pair;

namespace tcp {
/// The base class of transport::Pair on Linux.
class Pair {
 public:
  std::exception_ptr signalExceptionExternal(const std::string& message);
};
} // namespace tcp

} // namespace transport

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  /// Returns the connection to `rank`, or null for this rank.
  std::unique_ptr<transport::Pair>& getPair(int rank);
};

} // namespace gloo
