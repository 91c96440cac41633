#pragma once

namespace weft::dtensor {

/// Links libtorch_overrides.cpp into every program that creates DTensors. Does
/// nothing else.
void link_libtorch_overrides();

/// The deleter of a DTensor's data pointer, whose context is the storage of its
/// local tensor. Deletes nothing.
void keep_base_memory(void* memory);

} // namespace weft::dtensor
