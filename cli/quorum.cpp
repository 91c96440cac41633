#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/checkpoint_text.h"
#include "cli/program.h"
#include "mesh/error/error.h"
#include "train/metrics/quorum_log.h"

namespace weft::cli {
namespace {

struct QuorumArguments {
  std::string run;
  bool as_json = false;
};

struct Totals {
  int64_t lost = 0;
  int64_t joined = 0;
  int64_t steps_redone = 0;
};

Totals totals_of(const train::QuorumHistory& history) {
  Totals totals;
  for (const auto& entry : history.entries) {
    totals.lost += std::ssize(entry.quorum.lost);
    totals.joined += std::ssize(entry.quorum.joined);
    totals.steps_redone += entry.quorum.steps_redone;
  }
  return totals;
}

train::QuorumHistory read(const std::string& run) {
  const auto path = (std::filesystem::path(run) / "quorum.jsonl").string();
  auto history = train::QuorumHistory::read(path);
  if (history.entries.empty()) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: has no {}quorum.jsonl, which an elastic run (elastic.batch) "
        "writes. Give the folder of one, like outputs/NAME",
        run,
        history.unreadable > 0 ? "readable line in " : ""));
  }
  return history;
}

std::string change_of(const elastic::Quorum& quorum) {
  std::vector<std::string> words;
  for (const auto& lost : quorum.lost) {
    words.push_back(
        lost.why.empty() ? fmt::format("{} lost", lost.group)
                         : fmt::format("{} lost ({})", lost.group, lost.why));
  }
  if (!quorum.joined.empty()) {
    words.push_back(fmt::format("{} joined", fmt::join(quorum.joined, " ")));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string state_of(const elastic::Quorum& quorum) {
  return quorum.state_bytes == 0
             ? ""
             : fmt::format(
                   "{:.1f} MB in {:.0f} ms",
                   static_cast<double>(quorum.state_bytes) * 1e-6,
                   quorum.state_ms);
}

void print_text(const train::QuorumHistory& history) {
  std::vector<std::vector<std::string>> rows = {
      {"epoch",
       "from step",
       "groups",
       "change",
       "redone",
       "reconfigured",
       "state"}};
  for (const auto& [quorum, time] : history.entries) {
    rows.push_back(
        {std::to_string(quorum.epoch),
         std::to_string(quorum.step),
         fmt::format("{}", fmt::join(quorum.groups, " ")),
         change_of(quorum),
         std::to_string(quorum.steps_redone),
         fmt::format("{:.1f} ms", quorum.reconfigure_ms),
         state_of(quorum)});
  }
  print_table(rows, "<<<<<<<");
  const auto totals = totals_of(history);
  print(fmt::format(
      "epochs: {}, groups lost: {}, joined: {}, steps done again: {}",
      history.entries.size(),
      totals.lost,
      totals.joined,
      totals.steps_redone));
  if (history.unreadable > 0) {
    print(fmt::format(
        "{} lines of quorum.jsonl cannot be read and are left out",
        history.unreadable));
  }
}

void print_json(const train::QuorumHistory& history) {
  using nlohmann::ordered_json;
  auto epochs = ordered_json::array();
  for (const auto& entry : history.entries) {
    epochs.push_back(base::parse_json<ordered_json>(train::quorum_line(entry)));
  }
  const auto totals = totals_of(history);
  const ordered_json all = {
      {"groups", history.entries.back().quorum.groups},
      {"lost", totals.lost},
      {"joined", totals.joined},
      {"steps_redone", totals.steps_redone},
      {"unreadable_lines", history.unreadable},
      {"epochs", epochs}};
  print(all);
}

} // namespace

void add_quorum(CLI::App& app) {
  auto arguments = std::make_shared<QuorumArguments>();
  auto* command = app.add_subcommand(
      "quorum",
      "List which replica groups trained together in an elastic run, and why "
      "that changed");
  command->add_option("run", arguments->run, "Folder of the run, outputs/NAME")
      ->required();
  command->add_flag("--json", arguments->as_json, "Print one JSON object");
  command->callback([arguments] {
    const auto history = read(arguments->run);
    arguments->as_json ? print_json(history) : print_text(history);
  });
}

} // namespace weft::cli
