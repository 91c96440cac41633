#pragma once

#include <string_view>
#include <vector>

namespace weft::base {

/// Returns true if `path`, a name with components separated by dots, matches
/// `pattern` component by component. `*` and `?` match within a component; `**`
/// matches any number of components. Examples: "model.layers.*.wq.weight",
/// "optimizer.**", "**.bias".
bool matches_dotted(std::string_view pattern, std::string_view path);

/// Like matches_dotted(), for one component. The time is at most proportional
/// to the product of both lengths.
bool matches_component(std::string_view pattern, std::string_view component);

/// Returns the components of "a.b.c". Empty for an empty string.
std::vector<std::string_view> components_of(std::string_view path);

} // namespace weft::base
