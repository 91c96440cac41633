#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/choices.h"
#include "config/yaml_tree.h"

namespace weft::config {

/// Describes a node: `the string "four"`, "the number 0.5", "a list".
std::string describe(const YamlNode& node);

/// Reads a node strictly as a value of the second argument's type: an integer
/// is not 1e3 or "5", a bool is `true` or `false`, and a string that YAML reads
/// as another type must be quoted. Throws: YamlError at the node, with the
/// expected and the found type.
void read_value(const YamlNode& node, int64_t& value);
void read_value(const YamlNode& node, double& value);
void read_value(const YamlNode& node, bool& value);
void read_value(const YamlNode& node, std::string& value);
void read_value(const YamlNode& node, std::vector<std::string>& value);
void read_value(const YamlNode& node, std::array<double, 2>& value);
/// Throws: YamlError at the node also for a string that is not a choice.
void read_value(const YamlNode& node, ChoiceRef value);

/// Returns the YAML of a number, a string, a bool or a list of these. Reading
/// it gives the same value as reading `node`.
/// Throws: YamlError at the node for other types.
std::string normalized_value(const YamlNode& node);

/// Describes the error in a string that is not among `choices`. Empty if it is
/// one of them, or if there are none.
std::string choice_error(
    std::span<const std::string_view> choices,
    std::string_view value);

/// Writes a value so that read_value() returns exactly the same value.
std::string write_value(int64_t value);
std::string write_value(double value);
std::string write_value(bool value);
std::string write_value(const std::string& value);
std::string write_value(const std::vector<std::string>& value);
std::string write_value(const std::array<double, 2>& value);
std::string write_value(ChoiceRef value);
/// Returns "{heads: 4, width: 64}" from the YAML of each value.
std::string write_value(
    const std::map<std::string, std::string, std::less<>>& values);

} // namespace weft::config
