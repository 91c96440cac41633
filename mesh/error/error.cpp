#include "mesh/error/error.h"

#include <utility>

namespace weft::mesh::detail {

void throw_value_error(
    const char* file,
    int line,
    const char* function,
    std::string message) {
  throw c10::ValueError(
      {function, file, static_cast<uint32_t>(line)}, std::move(message));
}

} // namespace weft::mesh::detail
