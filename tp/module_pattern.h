#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::tp {

/// Returns true if `path` matches `pattern` component by component: `*` and `?`
/// match within a component, `**` matches any number of components.
bool matches(std::string_view pattern, std::string_view path);

/// Returns the pattern for modules that `inner` matches below modules that
/// `outer` matches.
std::string join_patterns(const std::string& outer, const std::string& inner);

/// Returns suggestions for a pattern that matches none of `paths`: at most
/// three similar names, with the globs of `pattern` if they match.
std::vector<std::string> nearest_names(
    std::string_view pattern,
    const std::vector<std::string>& paths);

} // namespace weft::tp
