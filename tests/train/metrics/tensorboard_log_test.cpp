#include "train/metrics/tensorboard_log.h"

#include <cstring>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/config/fixtures.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

template <class T>
T fixed_at(std::string_view bytes, size_t at) {
  T value{};
  EXPECT_LE(at + sizeof(T), bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// The records of an event file, whose checksums must be right.
std::vector<std::string> records_of(const std::string& text) {
  std::vector<std::string> records;
  for (size_t at = 0; at < text.size();) {
    const auto size = fixed_at<uint64_t>(text, at);
    EXPECT_EQ(
        fixed_at<uint32_t>(text, at + 8), masked_crc32c(text.substr(at, 8)));
    records.push_back(text.substr(at + 12, size));
    EXPECT_EQ(
        fixed_at<uint32_t>(text, at + 12 + size),
        masked_crc32c(records.back()));
    at += 16 + size;
  }
  return records;
}

// The fields of a message: numbers and fixed ones as their bytes.
using Fields = std::multimap<uint64_t, std::string>;

uint64_t read_varint(std::string_view bytes, size_t& at) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.at(at++));
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) {
      return value;
    }
  }
}

Fields fields_of(std::string_view bytes) {
  Fields fields;
  for (size_t at = 0; at < bytes.size();) {
    const auto key = read_varint(bytes, at);
    size_t size = 0;
    switch (key & 7) {
      case 0:
        fields.emplace(key >> 3, std::to_string(read_varint(bytes, at)));
        continue;
      case 1:
        size = 8;
        break;
      case 2:
        size = read_varint(bytes, at);
        break;
      case 5:
        size = 4;
        break;
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
        return fields;
    }
    fields.emplace(key >> 3, bytes.substr(at, size));
    at += size;
  }
  return fields;
}

std::map<std::string, float> scalars_of(const std::string& record) {
  std::map<std::string, float> scalars;
  const auto summary = fields_of(fields_of(record).find(5)->second);
  for (const auto& [number, value] : summary) {
    EXPECT_EQ(number, 1U);
    const auto fields = fields_of(value);
    scalars[fields.find(1)->second] =
        fixed_at<float>(fields.find(2)->second, 0);
  }
  return scalars;
}

TEST(MaskedCrc32c, IsTheKnownOne) {
  // CRC-32C of "123456789" is 0xe3069283 (RFC 3720's polynomial).
  const uint32_t crc = 0xe3069283;
  EXPECT_EQ(
      masked_crc32c("123456789"), ((crc >> 15) | (crc << 17)) + 0xa282ead8U);
}

TEST(TensorBoardLog, WritesAnEventAStep) {
  const fixtures::TempFolder folder;
  TensorBoardLog log(folder / "run/tensorboard", 1, /*ranks=*/4);
  StepMetrics metrics{
      .step = 300,
      .loss = 2.5,
      .grad_norm = 1.25,
      .lr = 0.5,
      .tokens = 4096,
      .tokens_per_s = 1000,
      .step_ms = 250,
      .peak_rss_mb = 512};
  log.write(metrics);
  EXPECT_EQ(records_of(fixtures::read_text(log.path())).size(), 3U)
      << "there before the log closes";
  metrics.step = 301;
  metrics.eval_loss = 3.5;
  metrics.peak_device_mb = 2048;
  log.write(metrics);

  const auto records = records_of(fixtures::read_text(log.path()));
  ASSERT_EQ(records.size(), 4U);
  EXPECT_EQ(fields_of(records[0]).find(3)->second, "brain.Event:2");
  EXPECT_EQ(fields_of(records[2]).find(2)->second, "300");
  const auto wall_time =
      fixed_at<double>(fields_of(records[2]).find(1)->second, 0);
  EXPECT_NEAR(wall_time, static_cast<double>(::time(nullptr)), 60);
  const auto scalars = scalars_of(records[2]);
  EXPECT_EQ(scalars.at("loss_metrics/global_avg_loss"), 2.5F);
  EXPECT_EQ(scalars.at("grad_norm"), 1.25F);
  EXPECT_EQ(scalars.at("lr"), 0.5F);
  EXPECT_EQ(scalars.at("n_tokens_seen"), 4096.0F);
  EXPECT_EQ(scalars.at("throughput(tps)"), 250.0F) << "of one rank";
  EXPECT_EQ(scalars.at("time_metrics/end_to_end(s)"), 0.25F);
  EXPECT_EQ(scalars.at("memory/peak_rss(GiB)"), 0.5F);
  EXPECT_FALSE(scalars.contains("memory/max_active(GiB)"));
  EXPECT_FALSE(scalars.contains("validation_metrics/loss"));
  EXPECT_EQ(scalars_of(records[3]).at("memory/max_active(GiB)"), 2.0F);
  EXPECT_EQ(scalars_of(records[3]).at("validation_metrics/loss"), 3.5F);
}

TEST(TensorBoardLog, AResumedRunHasAFileOfItsOwn) {
  const fixtures::TempFolder folder;
  const TensorBoardLog first(folder.path(), 1, 1);
  const TensorBoardLog second(folder.path(), 11, 1);
  EXPECT_LT(first.path(), second.path()) << "TensorBoard reads them in order";
  const auto start =
      fields_of(records_of(fixtures::read_text(second.path())).at(1));
  EXPECT_EQ(start.find(2)->second, "11");
  EXPECT_EQ(start.find(7)->second, std::string("\x08\x01", 2)) << "START";
}

TEST(TensorBoardLog, NamesWhatItCannotWrite) {
  const fixtures::TempFolder folder;
  const auto file = folder.write("file", "x");
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [&] { TensorBoardLog(file, 1, 1); }),
      HasSubstr("output_dir: cannot write \"" + file));
}

} // namespace
} // namespace weft::train
