#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/yaml_scan.h"

namespace weft::config {

/// A value of a YAML document and its position.
struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kNull;
  /// For a scalar: true if it is quoted or a block, and therefore a string.
  bool quoted = false;
  std::string text;
  /// For a map, in addition to `items`: the keys in order, including repeated
  /// ones.
  std::vector<YamlNode> keys;
  std::vector<YamlNode> items;
  Position where;
};

/// Parses one document.
/// Throws: YamlError for anchors, aliases and tags, for the errors of
/// scan_yaml(), for more than kMaxYamlNodes nodes, and for a depth above
/// kMaxYamlDepth. A byte order mark is skipped. An empty document gives kNull.
YamlNode parse_yaml(std::string_view text);

} // namespace weft::config
