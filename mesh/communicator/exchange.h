#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "mesh/communicator/communicator.h"

namespace weft::mesh {

/// Returns the string of every rank, by group rank. With a fake process group
/// this rank's string stands for all. `device` is a device whose memory the
/// backend can move; the flight recorder shows `name`.
/// Collective: all ranks of `group`; blocks.
std::vector<std::string> all_gather_text(
    Communicator& group,
    const std::string& text,
    std::string_view name,
    c10::Device device = c10::Device(c10::DeviceType::CPU));

/// The parts of check_lines_match()'s message: "[op] <what> differs between
/// ranks. Entry 3: rank 0 has ..., rank 2 has ... <hint> (<where>)".
struct MismatchMessage {
  std::string op;
  std::string what;
  std::string hint;
  std::string where;
};

/// Formats the message. `texts` are the lines of all ranks, each ended by a
/// newline, and not all equal.
std::string describe_difference(
    const std::vector<std::string>& texts,
    const MismatchMessage& message);

/// Compares lists of lines, e.g. one per parameter, of all ranks of a group.
/// Ranks exchange only a hash while the lists are equal.
/// Collective: all ranks of `group`; blocks.
/// Throws: DisagreementError naming the first line that differs and its ranks.
void check_lines_match(
    Communicator& group,
    const std::vector<std::string>& lines,
    const MismatchMessage& message,
    c10::Device device = c10::Device(c10::DeviceType::CPU));

/// Returns the numbers of every rank; all ranks pass the same count.
/// Shapes: [size, n] on the CPU; [1, n] in a group of one rank and with a fake
/// process group, which know only this rank's numbers. `device` is a device
/// whose memory the backend can move; the flight recorder shows `name`.
/// Collective: all ranks of `group`; blocks.
at::Tensor gather_numbers(
    Communicator& group,
    const std::vector<int64_t>& own,
    c10::Device device,
    std::string_view name);

} // namespace weft::mesh
