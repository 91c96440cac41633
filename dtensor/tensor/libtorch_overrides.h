#pragma once

namespace weft::dtensor {

/// Does nothing but bring libtorch_overrides.cpp into every program that makes
/// DTensors.
void link_libtorch_overrides();

/// Deletes nothing: the deleter of a DTensor's data pointer, whose context is
/// the storage of its local tensor.
void keep_base_memory(void* memory);

} // namespace weft::dtensor
