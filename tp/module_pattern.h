#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::tp {

/// Whether `path` matches `pattern` component by component: `*` and `?` match
/// within one, `**` is any number of them.
bool matches(std::string_view pattern, std::string_view path);

/// The pattern for modules that `inner` matches below those that `outer` does.
std::string join_patterns(const std::string& outer, const std::string& inner);

/// What may have been meant by a pattern that matches none of `paths`: the
/// nearest names, with the globs of `pattern` where they match; at most three,
/// none if nothing is near.
std::vector<std::string> nearest_names(
    std::string_view pattern,
    const std::vector<std::string>& paths);

} // namespace weft::tp
