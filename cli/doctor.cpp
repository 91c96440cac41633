#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/doctor/checks.h"
#include "cli/doctor/listeners.h"
#include "cli/program.h"

namespace weft::cli {
namespace {

struct DoctorArguments {
  bool listeners = false;
  bool json = false;
};

nlohmann::json to_json(const Listener& listener) {
  return {
      {"pid", listener.pid},
      {"program", listener.program},
      {"rank",
       listener.rank ? nlohmann::json(*listener.rank) : nlohmann::json()},
      {"address", listener.address},
      {"port", listener.port},
      {"loopback", listener.is_loopback},
      {"purpose", listener.purpose}};
}

std::string warning(const std::string& text) {
  return isatty(STDOUT_FILENO) != 0 ? "\x1b[31m" + text + "\x1b[0m" : text;
}

void print_json(
    const std::vector<Check>& checks,
    const std::vector<Listener>& listeners) {
  auto json = nlohmann::json::object();
  json["checks"] = nlohmann::json::array();
  for (const auto& check : checks) {
    json["checks"].push_back(
        {{"name", check.name},
         {"value", check.value},
         {"problem", check.problem}});
  }
  json["listeners"] = nlohmann::json::array();
  for (const auto& listener : listeners) {
    json["listeners"].push_back(to_json(listener));
  }
  std::puts(base::json_text(json).c_str());
}

void print_listeners(const std::vector<Listener>& listeners) {
  if (listeners.empty()) {
    std::puts("listeners: none, no process of weft or weftrun listens");
  }
  for (const auto& listener : listeners) {
    fmt::print(
        "listener: {}:{} by {} (pid {}{}): {}{}\n",
        listener.address,
        listener.port,
        listener.program,
        listener.pid,
        listener.rank ? fmt::format(", rank {}", *listener.rank) : "",
        listener.purpose,
        listener.is_loopback ? "" : warning("  OPEN TO OTHER HOSTS"));
  }
}

void print_checks(const std::vector<Check>& checks) {
  for (const auto& check : checks) {
    fmt::print("{}: {}\n", check.name, check.value);
    if (!check.problem.empty()) {
      fmt::print("  {}\n", warning("PROBLEM: " + check.problem));
    }
  }
}

void doctor(const DoctorArguments& arguments) {
  const auto checks = arguments.listeners ? std::vector<Check>() : check_host();
  const auto listeners = find_listeners();
  if (arguments.json) {
    print_json(checks, listeners);
  } else {
    print_checks(checks);
    print_listeners(listeners);
  }
  std::string failed;
  for (const auto& check : checks) {
    if (!check.problem.empty()) {
      failed +=
          (failed.empty() ? "" : "; ") + check.name + ": " + check.problem;
    }
  }
  if (!failed.empty()) {
    throw std::runtime_error(failed);
  }
}

} // namespace

void add_doctor(CLI::App& app) {
  auto arguments = std::make_shared<DoctorArguments>();
  auto* command = app.add_subcommand(
      "doctor",
      "Check this host (exit code 1 if something would not work) and list the "
      "listening sockets of Weft processes");
  command->add_flag(
      "--listeners", arguments->listeners, "Lists only the listening sockets");
  command->add_flag("--json", arguments->json, "One line of JSON");
  command->callback([arguments] { doctor(*arguments); });
}

} // namespace weft::cli
