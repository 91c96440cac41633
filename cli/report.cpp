#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/program.h"
#include "train/report/report.h"

namespace weft::cli {
namespace {

struct ReportArguments {
  std::vector<std::string> runs;
  std::string output;
};

void report(const ReportArguments& arguments) {
  std::string path = arguments.output;
  if (!path.empty()) {
    train::write_report(arguments.runs, path);
  } else if (arguments.runs.size() == 1) {
    path = train::write_report(arguments.runs.front());
  } else {
    path = "report.html";
    train::write_report(arguments.runs, path);
  }
  std::printf("%s\n", path.c_str());
}

} // namespace

void add_report(CLI::App& app) {
  auto arguments = std::make_shared<ReportArguments>();
  auto* command = app.add_subcommand(
      "report",
      "Write the charts of one run, or of several for comparison, as an HTML "
      "page");
  command->add_option("runs", arguments->runs, "Folders of runs, outputs/NAME")
      ->required();
  command->add_option(
      "-o,--output",
      arguments->output,
      "Output file. Default: RUN/report.html for one run, ./report.html for "
      "several");
  command->callback([arguments] { report(*arguments); });
}

} // namespace weft::cli
