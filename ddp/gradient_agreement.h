#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "mesh/device_mesh.h"

namespace weft::ddp {

/// The replicas that must agree, and over what. Messages and collectives of
/// this header use it.
struct Replicas {
  const mesh::DeviceMesh& dp;
  /// Names of the parameters, by index.
  const std::vector<std::string>& names;
  /// Where tensors to communicate lie.
  c10::Device device;
};

/// Rank 0's order of `ready`, which lists the parameters of one backward in
/// the order in which their gradients became ready. `kinds[i]` says how the
/// gradient of parameter i is reduced.
/// Collective: all ranks of `dp`; blocks.
/// Throws, on all ranks: c10::ValueError if a parameter is not in every rank's
/// `ready`; mesh::DisagreementError if ranks differ in `kinds`.
std::vector<size_t> agree_on_order(
    const Replicas& replicas,
    const std::vector<size_t>& ready,
    const std::vector<int64_t>& kinds);

/// Fails with the names of the parameters that got no gradient, and on which
/// ranks.
/// Collective: all ranks of `dp`; blocks.
[[noreturn]] void throw_missing(
    const Replicas& replicas,
    const std::vector<size_t>& ready);

} // namespace weft::ddp
