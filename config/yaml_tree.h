#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/yaml_scan.h"

namespace weft::recipes {

/// One value of a YAML document and where it stands.
struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kNull;
  /// Of a scalar: written in quotes or as a block, so text whatever it says.
  bool quoted = false;
  std::string text;
  /// Of a map, beside `items`; in the order written, repeated keys included.
  std::vector<YamlNode> keys;
  std::vector<YamlNode> items;
  Position where;
};

/// Parses one document. Anchors, aliases and tags are refused, as is whatever
/// scan_yaml() refuses, more than kMaxYamlNodes nodes, or depth over
/// kMaxYamlDepth. A byte order mark is skipped; no document gives kNull.
/// Throws: YamlError.
YamlNode parse_yaml(std::string_view text);

} // namespace weft::recipes
