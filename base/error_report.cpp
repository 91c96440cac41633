#include "base/error_report.h"

#include <array>
#include <cstring>

#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/safe_writer.h"

namespace weft::base {
namespace {

constexpr int64_t kNanoseconds = 1'000'000'000;
constexpr size_t kPathBytes = 4096;
/// In the order of ErrorCause.
constexpr std::array<std::string_view, 4> kCauses{
    "other",
    "lost_peer",
    "timed_out",
    "out_of_memory"};

void write_record(int fd, const ErrorRecord& record) {
  SafeWriter out(fd);
  out << "{\"message\": {\"message\": ";
  out.open_string() << record.message;
  out.close_string() << ", \"extraInfo\": {\"py_callstack\": ";
  // torchrun prints only py_callstack, so it ends with the message, as a Python
  // traceback does.
  out.open_string() << record.callstack << record.message;
  out.close_string() << ", \"timestamp\": \""
                     << Decimal{record.time_ns / kNanoseconds}
                     << "\", \"timestamp_ns\": \"" << Decimal{record.time_ns}
                     << "\", \"rank\": \"" << Decimal{record.rank} << "\"";
  if (record.cause) {
    out << ", \"cause\": \"" << to_string(*record.cause) << "\"";
  }
  out << "}, \"errorCode\": " << Decimal{record.code} << "}}\n";
}

} // namespace

std::string_view to_string(ErrorCause cause) {
  return kCauses[static_cast<size_t>(cause)];
}

std::optional<ErrorCause> error_cause_of(std::string_view name) {
  for (size_t i = 0; i < kCauses.size(); ++i) {
    if (kCauses[i] == name) {
      return static_cast<ErrorCause>(i);
    }
  }
  return std::nullopt;
}

int64_t error_time_ns() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * kNanoseconds + time.tv_nsec;
}

bool write_error_file(const char* path, const ErrorRecord& record) {
  constexpr std::string_view kSuffix = ".part";
  std::array<char, kPathBytes> part;
  const size_t length = std::strlen(path);
  if (length == 0 || length + kSuffix.size() >= part.size()) {
    return false;
  }
  std::memcpy(part.data(), path, length);
  std::memcpy(part.data() + length, kSuffix.data(), kSuffix.size());
  part[length + kSuffix.size()] = '\0';
  const int fd = open(
      part.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    return false;
  }
  write_record(fd, record);
  return close(fd) == 0 && rename(part.data(), path) == 0;
}

} // namespace weft::base
