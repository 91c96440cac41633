#include "checkpoint/save/rank_report.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace weft::checkpoint {
namespace {

using Json = nlohmann::json;
using Binary = Json::binary_t;

Json to_binary(const std::vector<Sha256>& digests) {
  Binary bytes;
  for (const auto& digest : digests) {
    const auto* data = reinterpret_cast<const uint8_t*>(digest.data());
    bytes.insert(bytes.end(), data, data + digest.size());
  }
  return bytes;
}

std::vector<Sha256> to_digests(const Json& json) {
  const auto& bytes = json.get_binary();
  std::vector<Sha256> digests(bytes.size() / sizeof(Sha256));
  if (!digests.empty()) {
    std::memcpy(digests.data(), bytes.data(), digests.size() * sizeof(Sha256));
  }
  return digests;
}

Json to_json(const WrittenFile& file, const std::map<std::string, size_t>& at) {
  Json chunks = Json::array();
  for (const auto& [key, chunk] : file.chunks) {
    chunks.push_back(
        {at.at(key),
         chunk.offset,
         chunk.shape,
         chunk.begin,
         chunk.end,
         chunk.piece_hashes,
         to_binary(chunk.piece_sha256)});
  }
  const auto& record = file.record;
  std::vector<Sha256> header;
  if (record.header_sha256) {
    header.push_back(*record.header_sha256);
  }
  return {
      file.name,
      record.bytes,
      record.header_bytes,
      record.header_hash,
      to_binary(header),
      std::move(chunks)};
}

WrittenFile to_file(const Json& json, const std::vector<StateItem>& items) {
  WrittenFile file{
      .name = json.at(0),
      .record =
          {.bytes = json.at(1),
           .header_bytes = json.at(2),
           .header_hash = json.at(3)},
      .chunks = {}};
  if (const auto header = to_digests(json.at(4)); !header.empty()) {
    file.record.header_sha256 = header.front();
  }
  for (const auto& chunk : json.at(5)) {
    file.chunks.emplace_back(
        items.at(chunk.at(0)).item.key,
        Chunk{
            .file = file.name,
            .offset = chunk.at(1),
            .shape = chunk.at(2),
            .begin = chunk.at(3),
            .end = chunk.at(4),
            .piece_hashes = chunk.at(5),
            .piece_sha256 = to_digests(chunk.at(6))});
  }
  return file;
}

} // namespace

std::string to_bytes(
    const RankReport& report,
    const std::vector<StateItem>& items) {
  std::map<std::string, size_t> numbers;
  for (size_t i = 0; i < items.size(); ++i) {
    numbers[items[i].item.key] = i;
  }
  Json files = Json::array();
  for (const auto& file : report.files) {
    files.push_back(to_json(file, numbers));
  }
  const Json all = {
      report.error, report.agreement, std::move(files), report.seconds};
  return base::to_cbor(all);
}

RankReport report_from_bytes(
    std::string_view bytes,
    const std::vector<StateItem>& items,
    uint64_t agreement) {
  const auto json = base::parse_cbor(bytes);
  RankReport report{
      .error = json.at(0),
      .agreement = json.at(1),
      .files = {},
      .seconds = json.at(3)};
  if (report.agreement == agreement) {
    for (const auto& file : json.at(2)) {
      report.files.push_back(to_file(file, items));
    }
  }
  return report;
}

std::string describe_slow_writer(const std::vector<RankReport>& reports) {
  constexpr double kTimes = 2;
  constexpr double kMinSeconds = 0.2;
  std::vector<double> seconds;
  std::vector<double> per_byte;
  size_t slowest = 0;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const auto& report = reports[rank];
    int64_t bytes = 0;
    for (const auto& file : report.files) {
      bytes += file.record.bytes;
    }
    if (bytes == 0) { // Others write what it has.
      continue;
    }
    seconds.push_back(report.seconds);
    per_byte.push_back(report.seconds / static_cast<double>(bytes));
    if (per_byte.back() >= *std::ranges::max_element(per_byte)) {
      slowest = rank;
    }
  }
  if (seconds.empty()) {
    return {};
  }
  const auto lower_median = [](std::vector<double> values) {
    const auto middle = values.begin() + (values.size() - 1) / 2;
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  };
  const double own = reports[slowest].seconds;
  const double others = lower_median(seconds);
  if (own < others + kMinSeconds || own < kTimes * others ||
      *std::ranges::max_element(per_byte) < kTimes * lower_median(per_byte)) {
    return {};
  }
  return fmt::format(
      "rank {} is slow: it wrote its part of the checkpoint in {:.2f} s, the "
      "others in {:.2f} s",
      slowest,
      own,
      others);
}

void add_tensors(const std::vector<StateItem>& items, Manifest& manifest) {
  for (const auto& [item, dtype, local, whole] : items) {
    auto& record = manifest.tensors[item.key];
    record.dtype = dtype;
    record.shape = item.sizes;
    if (item.spec.mesh_ndim() > 0) {
      record.placements = dtensor::to_string(item.spec.placements());
      record.mesh = item.spec.mesh().to_string();
    }
  }
}

void add_files(RankReport report, Manifest& manifest) {
  for (auto& file : report.files) {
    manifest.files[file.name] = file.record;
    for (auto& [key, chunk] : file.chunks) {
      manifest.tensors.at(key).chunks.push_back(std::move(chunk));
    }
  }
}

} // namespace weft::checkpoint
