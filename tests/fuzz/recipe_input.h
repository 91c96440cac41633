#pragma once

#include <string_view>

#include "tests/fuzz/fuzz_input.h"

namespace weft::test {

/// The text of a recipe. What is accepted must come back the same when it is
/// written and read; what is refused must be refused in one line that says
/// where: file, line and column, or only the file of what is not there at all.
/// Throws: std::logic_error if that is not so.
FuzzVerdict fuzz_recipe(std::string_view input);

} // namespace weft::test
