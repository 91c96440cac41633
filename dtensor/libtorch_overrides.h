#pragma once

namespace weft::dtensor {

/// Does nothing but bring libtorch_overrides.cpp into every program that makes
/// DTensors.
void link_libtorch_overrides();

} // namespace weft::dtensor
