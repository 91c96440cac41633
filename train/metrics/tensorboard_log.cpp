#include "train/metrics/tensorboard_log.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "mesh/error/error.h"

namespace weft::train {
namespace {

// The table of CRC-32C with Castagnoli's polynomial, reflected. Source: RFC
// 3720, appendix B.4.
constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0);
    }
    table.at(i) = crc;
  }
  return table;
}();

// The functions below encode protocol buffers: each field is a key (number and
// wire type) and a value, and messages are fields of bytes. Values are
// little-endian, as on every host here.
static_assert(std::endian::native == std::endian::little);

enum WireType : uint64_t {
  kVarint = 0,
  kFixed64 = 1,
  kBytes = 2,
  kFixed32 = 5
};

template <class T>
void put_fixed(std::string& out, T value) {
  std::array<char, sizeof(T)> bytes{};
  std::memcpy(bytes.data(), &value, sizeof(T));
  out.append(bytes.data(), bytes.size());
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    out += static_cast<char>(value | 0x80);
  }
  out += static_cast<char>(value);
}

void put_key(std::string& out, uint64_t number, WireType type) {
  put_varint(out, number << 3 | type);
}

void put_bytes(std::string& out, uint64_t number, std::string_view bytes) {
  put_key(out, number, kBytes);
  put_varint(out, bytes.size());
  out.append(bytes);
}

double seconds_since_epoch() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Encodes an Event: wall_time = 1, step = 2, file_version = 3, summary = 5,
// session_log = 7.
std::string event(int64_t step, uint64_t number, std::string_view what) {
  std::string bytes;
  put_key(bytes, 1, kFixed64);
  put_fixed(bytes, seconds_since_epoch());
  put_key(bytes, 2, kVarint);
  put_varint(bytes, static_cast<uint64_t>(step));
  put_bytes(bytes, number, what);
  return bytes;
}

// Appends to a Summary: value = 1. Value: tag = 1, simple_value = 2.
void put_scalar(std::string& summary, std::string_view tag, double number) {
  std::string value;
  put_bytes(value, 1, tag);
  put_key(value, 2, kFixed32);
  put_fixed(value, static_cast<float>(number));
  put_bytes(summary, 1, value);
}

// Encodes a SessionLog: status = 1, with the value START = 1.
std::string session_start() {
  std::string bytes;
  put_key(bytes, 1, kVarint);
  put_varint(bytes, 1);
  return bytes;
}

std::string name_of_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data()
                                                          : "localhost";
}

// Returns the path of a new file. Its name starts with the time, because
// TensorBoard reads the files of a folder in the order of their names.
std::string free_path(const std::string& folder) {
  const auto start = fmt::format(
      "events.out.tfevents.{:010}.{}.{}",
      static_cast<int64_t>(seconds_since_epoch()),
      name_of_host(),
      ::getpid());
  for (int i = 0;; ++i) {
    auto path = std::filesystem::path(folder) / fmt::format("{}.{}", start, i);
    if (!std::filesystem::exists(path)) {
      return path.string();
    }
  }
}

} // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffffU;
  for (const char byte : bytes) {
    crc = (crc >> 8) ^ kCrcTable.at((crc ^ static_cast<uint8_t>(byte)) & 0xff);
  }
  return std::rotr(~crc, 15) + 0xa282ead8U;
}

TensorBoardLog::TensorBoardLog(
    const std::string& folder,
    int64_t first_step,
    int64_t ranks)
    : ranks_(static_cast<double>(ranks)) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  path_ = error ? folder : free_path(folder);
  if (error) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "output_dir: cannot write \"{}\": {}", path_, error.message()));
  }
  file_.emplace(path_);
  write_record(event(0, 3, "brain.Event:2"));
  write_record(event(first_step, 7, session_start()));
}

std::string TensorBoardLog::write(const StepMetrics& metrics) {
  constexpr double kMibPerGib = 1024;
  const std::array<std::pair<std::string_view, double>, 10> scalars = {{
      {"loss_metrics/global_avg_loss", metrics.loss},
      {"grad_norm", metrics.grad_norm},
      {"lr", metrics.lr},
      {"n_tokens_seen", static_cast<double>(metrics.tokens)},
      {"throughput(tps)", metrics.tokens_per_s / ranks_},
      {"time_metrics/end_to_end(s)", metrics.step_ms * 1e-3},
      {"time_metrics/data_loading(s)", metrics.data_ms * 1e-3},
      {"time_metrics/waiting_for_ranks(s)", metrics.comm_ms * 1e-3},
      {"time_metrics/checkpoint(s)", metrics.checkpoint_ms * 1e-3},
      {"memory/peak_rss(GiB)", metrics.peak_rss_mb / kMibPerGib},
  }};
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    put_scalar(summary, tag, value);
  }
  if (metrics.peak_device_mb) {
    put_scalar(
        summary,
        "memory/max_active(GiB)",
        *metrics.peak_device_mb / kMibPerGib);
  }
  if (metrics.eval_loss) {
    put_scalar(summary, "validation_metrics/loss", *metrics.eval_loss);
  }
  if (metrics.ema_eval_loss) {
    put_scalar(summary, "validation_metrics/ema_loss", *metrics.ema_eval_loss);
  }
  return write_record(event(metrics.step, 5, summary));
}

// Writes a record: its length, the checksum of the length, the bytes and their
// checksum.
std::string TensorBoardLog::write_record(std::string_view bytes) {
  std::string record;
  put_fixed(record, static_cast<uint64_t>(bytes.size()));
  put_fixed(record, masked_crc32c(record));
  record.append(bytes);
  put_fixed(record, masked_crc32c(bytes));
  return file_->append(record);
}

} // namespace weft::train
