// In a program with this source, a Process of `weft` is a fork of it.

#include "cli/main.h"
#include "tests/integration/process.h"

namespace weft::test {
namespace {

[[maybe_unused]] const bool kIsSet = [] {
  start_by_fork(
      WEFT_WEFT, [](int argc, char** argv) { return cli::main(argc, argv); });
  return true;
}();

} // namespace
} // namespace weft::test
