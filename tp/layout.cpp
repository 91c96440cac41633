#include "tp/layout.h"

#include "mesh/error/error.h"

namespace weft::tp {

Placements Layout::on(const mesh::DeviceMesh& mesh) const {
  return is_list_ ? placements_ : Placements(mesh.ndim(), placements_[0]);
}

void Layout::check(
    const mesh::DeviceMesh& mesh,
    const std::string& style,
    const std::string& what) const {
  const auto placements = static_cast<int64_t>(on(mesh).size());
  WEFT_CHECK(
      placements == mesh.ndim(),
      style,
      mesh::ErrorContext{mesh.describe_rank()},
      what,
      ": the number of placements must equal the number of mesh dims: ",
      placements,
      " vs ",
      mesh.ndim(),
      ". Give one per mesh dim, or a single one for all.");
}

} // namespace weft::tp
