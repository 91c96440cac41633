// Runs faults of bench/crash_points.py and crash_points_test.cpp: reads one a
// line as JSON, from stdin or the file that is named, and prints what happens
// to it as one line of JSON.
//
//   {"folder": "/tmp/x", "async": false, "sync": true, "rank": 2,
//    "call": "fsync", "fault": "signal=KILL:when=3"}
//
// `folder` is made, used and deleted; `rank` -1 goes without strace; without
// `call` the rank's calls are listed; "kib", "max_bytes", "checkpoints" and
// "ballast" are those of the structs. {"skip": why} where there is no strace.

#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/checkpoint/crash/crash_point.h"
#include "tests/checkpoint/crash/short_writes.h"
#include "tests/checkpoint/crash/strace.h"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string run_line(const std::string& line) {
  const auto json = Json::parse(line);
  const fs::path folder = json.at("folder");
  weft::test::CrashPoint point;
  point.run.checkpoints =
      json.value("checkpoints", (folder / "checkpoints").string());
  point.run.is_async = json.value("async", false);
  point.run.fsync = json.value("sync", true);
  point.run.kib = json.value("kib", point.run.kib);
  point.run.ballast = json.value("ballast", "");
  point.rank = json.value("rank", -1);
  point.call = json.value("call", "");
  point.fault = json.value("fault", "");
  weft::test::max_bytes_a_write = json.value("most_bytes", int64_t{0});
  const auto result = weft::test::run_crash_point(point, folder);
  fs::remove_all(folder);
  return result;
}

} // namespace

int main(int argc, char** argv) {
  std::ifstream file;
  if (argc > 1) {
    file.open(argv[1]);
  }
  std::istream& input = argc > 1 ? file : std::cin;
  for (std::string line; std::getline(input, line);) {
    try {
      std::cout << run_line(line) << std::endl;
    } catch (const weft::test::StraceMissing& error) {
      std::cout << Json{{"skip", error.what()}} << std::endl;
    } catch (const std::exception& error) {
      std::cout << Json{{"failed", error.what()}} << std::endl;
    }
  }
}
