#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "config/yaml_tree.h"

namespace weft::recipes {

/// What stands there, in words: `the text "four"`, "the number 0.5", "a list".
std::string describe(const YamlNode& node);

/// Reads a node as a value of the second argument's type, strictly: a whole
/// number is neither 1e3 nor "5", a truth value is true or false, a text that
/// YAML takes for something else must be quoted.
/// Throws: YamlError at the node, with what was found and what is expected.
void read_value(const YamlNode& node, int64_t& value);
void read_value(const YamlNode& node, double& value);
void read_value(const YamlNode& node, bool& value);
void read_value(const YamlNode& node, std::string& value);
void read_value(const YamlNode& node, std::vector<std::string>& value);
void read_value(const YamlNode& node, std::array<double, 2>& value);

/// The YAML of a number, a text, a truth value or a list of them: reading it
/// gives what reading `node` gives.
/// Throws: YamlError at the node if it is something else.
std::string normalized_value(const YamlNode& node);

/// Writes a value so that read_value() gives exactly the same again.
std::string write_value(int64_t value);
std::string write_value(double value);
std::string write_value(bool value);
std::string write_value(const std::string& value);
std::string write_value(const std::vector<std::string>& value);
std::string write_value(const std::array<double, 2>& value);
/// "{heads: 4, width: 64}", from the YAML of each value.
std::string write_value(
    const std::map<std::string, std::string, std::less<>>& values);

} // namespace weft::recipes
