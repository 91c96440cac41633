#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/spec/placement.h"
#include "mesh/device_mesh.h"

namespace weft::tp {

using dtensor::Partial;
using dtensor::Placement;
using dtensor::Placements;
using dtensor::Replicate;
using dtensor::Shard;

/// The placements of a tensor on the mesh of a style: one placement for all
/// mesh dims, or a list with one for each, `Placements{Shard(0), Replicate()}`.
class Layout {
 public:
  /// Uses the same placement for all mesh dims.
  Layout(Placement placement)
      : placements_{std::move(placement)}, is_list_(false) {}
  /// Uses one placement per mesh dim.
  Layout(Placements placements)
      : placements_(std::move(placements)), is_list_(true) {}

  /// Returns one placement per mesh dim.
  Placements on(const mesh::DeviceMesh& mesh) const;
  /// Throws: c10::ValueError naming `what` if the number of placements is not
  /// that of the mesh dims.
  void check(
      const mesh::DeviceMesh& mesh,
      const std::string& style,
      const std::string& what) const;

  bool operator==(const Layout&) const = default;

 private:
  Placements placements_;
  bool is_list_;
};

/// The layouts of several tensors, with std::nullopt for those that stay as
/// they are: `{Shard(1), std::nullopt}`; or of one, `Shard(1)`.
class Layouts {
 public:
  Layouts() = default;
  /// Creates the layouts of one tensor.
  Layouts(Placement placement) : layouts_{Layout(std::move(placement))} {}
  /// Creates the layouts of one tensor.
  Layouts(Placements placements) : layouts_{Layout(std::move(placements))} {}
  /// Creates the layouts of one tensor.
  Layouts(Layout layout) : layouts_{std::move(layout)} {}
  /// Creates one layout per tensor. A tensor without a layout stays as it is.
  Layouts(std::initializer_list<std::optional<Layout>> layouts)
      : layouts_(layouts) {}
  /// Creates one layout per tensor. A tensor without a layout stays as it is.
  Layouts(std::vector<std::optional<Layout>> layouts)
      : layouts_(std::move(layouts)) {}

  /// The number of tensors.
  size_t size() const { return layouts_.size(); }
  /// Returns true if no tensor has a layout.
  bool empty() const { return layouts_.empty(); }
  /// The layout of tensor `i`.
  const std::optional<Layout>& operator[](size_t i) const {
    return layouts_[i];
  }

 private:
  std::vector<std::optional<Layout>> layouts_;
};

} // namespace weft::tp
