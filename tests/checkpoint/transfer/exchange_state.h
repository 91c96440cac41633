#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/save/save.h"
#include "mesh/device_mesh.h"

namespace weft::test {

/// A tensor of tests/checkpoint/oracle/tensors.json, which
/// bench/peer/checkpoint_exchange.py gives the same values.
struct ExchangeTensor {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  /// How it lies on a mesh of dp x tp: "rows", "columns", "strided"...
  std::string cut;
  /// Byte k of the tensor with index i of the file: (7 k + 13 i + 3) mod 251;
  /// of a bool its lowest bit.
  at::Tensor values;
};

/// The folder with tensors.json.
std::vector<ExchangeTensor> exchange_tensors(
    const std::filesystem::path& oracle);

/// What PyTorch 2.15 consolidates: it fails on dtypes that are not floating
/// point, and writes zero for tensors of no dims.
std::vector<ExchangeTensor> consolidable(std::vector<ExchangeTensor> tensors);

/// Their values by name.
std::map<std::string, at::Tensor> exchange_values(
    const std::vector<ExchangeTensor>& tensors);

/// They lie on `mesh`, dims dp and tp, with their values or with ones in every
/// bit. No communication.
checkpoint::StateDicts exchange_state(
    const std::vector<ExchangeTensor>& tensors,
    const mesh::DeviceMesh& mesh,
    bool with_values);

/// Names of tensors of which this rank's parts differ in a bit.
std::vector<std::string> differing_parts(
    const checkpoint::StateDicts& a,
    const checkpoint::StateDicts& b);

} // namespace weft::test
