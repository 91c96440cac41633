#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "mesh/communicator/communicator.h"

namespace weft::mesh {

/// Every rank's text, by rank of the group; in an imagined world only this
/// rank's own is known, and stands for all.
/// Collective: all ranks of `group`; blocks. `device` is where the backend can
/// move bytes; the ledger shows `name`.
std::vector<std::string> all_gather_text(
    Communicator& group,
    const std::string& text,
    std::string_view name,
    c10::Device device = c10::Device(c10::DeviceType::CPU));

/// What check_lines_match() says when ranks differ: "[op] <what> differs
/// between ranks. Entry 3: rank 0 has ..., rank 2 has ... <hint> (<where>)".
struct MismatchMessage {
  std::string op;
  std::string what;
  std::string hint;
  std::string where;
};

/// That sentence; `texts` are of all ranks, lines ended by line feeds, and not
/// all equal.
std::string describe_difference(
    const std::vector<std::string>& texts,
    const MismatchMessage& message);

/// Compares lists of lines, e.g. one a parameter, of all ranks of a group; only
/// a hash travels while they are equal.
/// Collective: all ranks of `group`; blocks.
/// Throws: DisagreementError naming the first line that differs and its ranks.
void check_lines_match(
    Communicator& group,
    const std::vector<std::string>& lines,
    const MismatchMessage& message,
    c10::Device device = c10::Device(c10::DeviceType::CPU));

/// Every rank's numbers, as many on each. Shape [size, n], on the CPU; [1, n]
/// in a group of one and in an imagined world, where only one's own are known.
/// Collective: all ranks of `group`; blocks. `device` is where the backend can
/// move bytes; the ledger shows `name`.
at::Tensor gather_numbers(
    Communicator& group,
    const std::vector<int64_t>& own,
    c10::Device device,
    std::string_view name);

} // namespace weft::mesh
