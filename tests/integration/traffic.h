#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "mesh/communicator/communicator.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/device_mesh.h"

namespace weft::integration {

/// Returns the collectives of this rank over "tp" since the last call.
inline std::vector<mesh::FlightRecorderEntry> take_entries(
    const mesh::DeviceMesh& mesh) {
  auto& flight_recorder = mesh.group("tp").flight_recorder();
  auto entries = flight_recorder.entries();
  flight_recorder.reset();
  return entries;
}

/// The traffic of one kind of collective.
struct Sent {
  int64_t calls = 0;
  double bytes = 0;
};

/// By kind. Bytes are those that leave a rank for its neighbour in a ring.
using KindTraffic = std::map<std::string, Sent>;

inline double
on_the_wire(const std::string& kind, double bytes, int64_t ranks) {
  const auto n = static_cast<double>(ranks);
  return (kind == "all_reduce" ? 2 : 1) * bytes * (n - 1) / n;
}

inline std::string kind_of(const mesh::FlightRecorderEntry& entry) {
  for (const auto* kind :
       {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}) {
    if (entry.op.starts_with(kind)) {
      return kind;
    }
  }
  ADD_FAILURE() << "another collective: " << entry.op;
  return entry.op;
}

inline KindTraffic operator+(KindTraffic a, const KindTraffic& b) {
  for (const auto& [kind, sent] : b) {
    a[kind].calls += sent.calls;
    a[kind].bytes += sent.bytes;
  }
  return a;
}

inline KindTraffic times(KindTraffic a, int64_t factor) {
  for (auto& [kind, sent] : a) {
    sent.calls *= factor;
    sent.bytes *= static_cast<double>(factor);
  }
  return a;
}

inline KindTraffic operator-(const KindTraffic& a, const KindTraffic& b) {
  return a + times(b, -1);
}

inline int64_t calls_of(const KindTraffic& traffic) {
  int64_t calls = 0;
  for (const auto& item : traffic) {
    calls += item.second.calls;
  }
  return calls;
}

/// A step's, in the parts that are compared each by itself.
struct StepTraffic {
  /// Without the loss.
  KindTraffic forward;
  /// Without pending gradients.
  KindTraffic backward;
  /// The bytes of the logits and of the counts of an auxiliary loss.
  KindTraffic loss;
  /// The bytes of parameters of which each rank has a term.
  KindTraffic gradients;

  KindTraffic all() const { return forward + backward + loss + gradients; }
};

inline StepTraffic operator-(const StepTraffic& a, const StepTraffic& b) {
  return {
      a.forward - b.forward,
      a.backward - b.backward,
      a.loss - b.loss,
      a.gradients - b.gradients};
}

/// Values of 4 bytes.
inline KindTraffic one(const std::string& kind, int64_t values, int64_t ranks) {
  const auto bytes = static_cast<double>(4 * values);
  return {{kind, {1, on_the_wire(kind, bytes, ranks)}}};
}

} // namespace weft::integration
