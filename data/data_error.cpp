#include "data/data_error.h"

#include <fmt/format.h>

namespace weft::data {

void refuse_data(
    const std::string& path,
    int64_t offset,
    const std::string& reason) {
  mesh::throw_error<DataError>(
      fmt::format("data file \"{}\", offset {}: {}", path, offset, reason));
}

} // namespace weft::data
