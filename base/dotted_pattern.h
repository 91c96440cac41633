#pragma once

#include <string_view>
#include <vector>

namespace weft::base {

/// Whether `path`, a name of components that dots separate, matches `pattern`
/// component by component: `*` and `?` match within one, `**` is any number of
/// them. "model.layers.*.wq.weight", "optimizer.**", "**.bias".
bool matches_dotted(std::string_view pattern, std::string_view path);

/// The same for one component. Takes time in proportion to the product of both
/// lengths at most.
bool matches_component(std::string_view pattern, std::string_view component);

/// The components of "a.b.c"; none of an empty text.
std::vector<std::string_view> components_of(std::string_view path);

} // namespace weft::base
