// Checks every op against samples in text files: see --help.

#include <chrono>
#include <fstream>
#include <iostream>
#include <regex>

#include <torch/torch.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "dtensor/rules/rule.h"
#include "tests/dtensor/op_check/coverage_table.h"
#include "tests/dtensor/op_check/dispatch_check.h"
#include "tests/dtensor/op_check/leaf_check.h"
#include "tests/dtensor/op_check/placement_search.h"
#include "tests/dtensor/op_check/strategy_check.h"
#include "tests/dtensor/op_check/view_chains.h"

namespace weft::dtensor::check {
namespace {

struct Options {
  std::string samples;
  std::string filter;
  std::string parts = "A,C";
  bool full = false;
  int64_t combinations = 8;
  int64_t leaf_cases = 16;
  int64_t operand_mixes = 200;
  uint64_t seed = 0;
  std::string json;
  std::string registry;
  std::string write_table;
  std::string check_table;
  bool list = false;

  bool has(char part) const { return parts.find(part) != std::string::npos; }
};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Rules that no op reaches, and ops with a rule that no sample runs.
void check_completeness(const std::vector<CheckedOp>& ops, Report& report) {
  std::set<std::string> sampled;
  for (const auto& op : ops) {
    sampled.insert(short_name(op.op));
  }
  std::set<const Rule*> reached;
  for (const auto& op : ops_with_rules()) {
    reached.insert(find_rule(op));
    if (!sampled.contains(short_name(op))) {
      report.fail(
          {"samples",
           short_name(op),
           "",
           "",
           "has a rule, but no sample of it runs"});
    }
  }
  for (const auto& op : out_forms()) {
    reached.insert(find_rule(op));
  }
  for (const auto& op : ops_of_other_devices()) {
    reached.insert(find_rule(op));
    report.other_devices.insert(without_overload(short_name(op)));
  }
  for (const auto& [name, rule] : all_rules()) {
    if (!reached.contains(rule)) {
      report.fail({"samples", name, "", "", "the rule is reached by no op"});
    }
  }
}

uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  }
  return hash ^ (hash >> 29);
}

// On one mesh dim everything that the table counts, whether quick or not.
void check_sample_strategies(
    const Sample& sample,
    const std::vector<Grid>& grids,
    const Options& options,
    Report& report) {
  const auto seed = hash_of(sample.name() + sample.text) + options.seed;
  for (size_t g = 0; g < grids.size(); ++g) {
    const bool line = grids[g].shape.size() == 1;
    if (!options.full && sample.is_form && g > 0) {
      continue;
    }
    check_strategies(
        sample,
        grids[g],
        {.other_cuts = options.full || (g == 1 && !sample.is_form),
         .stride = options.full || line ? 1U : 12U,
         .seed = seed},
        report);
  }
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
    const auto other = with_dtype(sample, dtype);
    if (options.full && try_run(other).empty()) {
      check_strategies(other, grids[1], {.other_cuts = false}, report);
    }
  }
}

void check_all_strategies(
    const std::vector<CheckedOp>& ops,
    const Options& options,
    Report& report) {
  std::vector<Grid> grids;
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{2}, {3}, {4}, {2, 2}}) {
    grids.emplace_back(shape);
  }
  for (const auto& op : ops) {
    for (const auto& sample : op.samples) {
      check_sample_strategies(sample, grids, options, report);
    }
  }
}

void check_all_placements(
    const std::vector<CheckedOp>& ops,
    const Options& options,
    Report& report) {
  const std::vector<Grid> grids{Grid({2}), Grid({3})};
  for (const auto& op : ops) {
    for (const auto& sample : op.samples) {
      const auto seed = hash_of(sample.name() + sample.text) + options.seed;
      search_placements(sample, grids[seed % 2], seed, report);
    }
  }
}

// Ops without strategies, or whose strategies nothing shows by hand, may have a
// kernel that keeps cuts.
void check_kernels(
    const std::vector<CheckedOp>& ops,
    const Options& options,
    Report& report) {
  LockstepRanks ranks({2});
  for (const auto& op : ops) {
    const Rule* rule = find_rule(op.op);
    const bool has_strategies = rule && rule->strategies;
    const bool shown = options.has('A')
                           ? !report.ops.at(short_name(op.op)).cutting.empty()
                           : has_strategies;
    if (!shown && !op.samples.empty() && !op.samples[0].is_out) {
      check_cut_is_kept(op.samples, ranks, {2}, report);
    }
  }
}

void check_all_dispatch(
    const std::vector<CheckedOp>& ops,
    const Options& options,
    Report& report) {
  const std::vector<std::vector<int64_t>> shapes{{2}, {3}, {2, 2}};
  for (size_t s = 0; s < shapes.size(); ++s) {
    const auto begin = Clock::now();
    LockstepRanks ranks(shapes[s]);
    for (const auto& op : ops) {
      for (const auto& sample : op.samples) {
        const auto seed = hash_of(sample.name() + sample.text) + options.seed;
        const bool picked =
            seed % shapes.size() == s && (!sample.is_form || seed / 3 % 4 == 0);
        // In place and out= follow the op that they are forms of.
        const int64_t all = options.combinations / (sample.is_form ? 4 : 1);
        if (options.full || picked) {
          check_dispatch(
              sample,
              ranks,
              shapes[s],
              {.combinations = options.full ? all : 2, .seed = seed},
              report);
        }
      }
    }
    std::cout << "dispatch on " << c10::IntArrayRef(shapes[s]) << ": "
              << seconds_since(begin) << " s" << std::endl;
  }
}

void check_all_leaves(
    const std::vector<CheckedOp>& ops,
    const Options& options,
    Report& report) {
  const std::vector<std::vector<int64_t>> shapes{{2}, {3}, {2, 2}, {2, 3}};
  for (size_t s = 0; s < shapes.size(); ++s) {
    const auto begin = Clock::now();
    LockstepRanks ranks(shapes[s]);
    for (const auto& op : ops) {
      for (const auto& sample : op.samples) {
        const auto seed = hash_of(sample.name() + sample.text) + options.seed;
        if (options.full || seed / 7 % shapes.size() == s) {
          check_leaves(
              sample,
              ranks,
              shapes[s],
              {.cases = options.full ? options.leaf_cases : 2, .seed = seed},
              report);
        }
      }
    }
    std::cout << "leaves on " << c10::IntArrayRef(shapes[s]) << ": "
              << seconds_since(begin) << " s" << std::endl;
  }
}

// Forms in place and out= have no gradients of their own to be checked.
void check_all_operands(
    const std::vector<CheckedOp>& ops,
    const Options& options,
    Report& report) {
  const std::vector<std::vector<int64_t>> shapes{{2}, {3}, {2, 2}};
  for (size_t s = 0; s < shapes.size(); ++s) {
    const auto begin = Clock::now();
    LockstepRanks ranks(shapes[s]);
    for (const auto& op : ops) {
      for (const auto& sample : op.samples) {
        const auto seed = hash_of(sample.name() + sample.text) + options.seed;
        if (!sample.is_form &&
            (options.full || seed / 5 % shapes.size() == s)) {
          check_operands(
              sample,
              ranks,
              shapes[s],
              {.combinations = options.full ? options.operand_mixes : 3,
               .seed = seed},
              report);
        }
      }
    }
    std::cout << "operands on " << c10::IntArrayRef(shapes[s]) << ": "
              << seconds_since(begin) << " s" << std::endl;
  }
}

void check_all_view_chains(const Options& options, Report& report) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{2}, {3}, {2, 2}, {2, 3}}) {
    LockstepRanks ranks(shape);
    check_view_chains(
        ranks,
        shape,
        {.programs = options.full ? 3000 : 120, .seed = options.seed},
        report);
  }
  for (const auto& [family, counts] : report.chains) {
    std::cout << "  " << family << ": " << counts.right << " right, "
              << counts.refused << " refused\n";
  }
}

void print(const Report& report) {
  for (const auto& [text, n] : report.refusals) {
    std::cout << "  " << n << " x " << text << "\n";
  }
  for (const auto& failure : report.failures) {
    std::cout << "FAILED " << failure.part << " " << failure.op << " ("
              << failure.where << ")\n  " << failure.what << "\n  "
              << failure.message << "\n";
  }
  for (const auto& [name, op] : report.ops) {
    for (const auto& placements : op.lacking) {
      std::cout << "lacks " << name << ": " << placements << "\n";
    }
  }
  std::cout << all_rules().size() << " rules, " << report.ops.size() << " ops, "
            << report.samples << " samples";
  for (const auto& [part, n] : report.cases) {
    std::cout << ", " << n << " " << part;
  }
  std::cout << ", " << report.failures.size() << " failures\n";
}

void write_json(const Report& report, const Options& options, double seconds) {
  nlohmann::json json{
      {"rules", all_rules().size()},
      {"ops", report.ops.size()},
      {"samples", report.samples},
      {"cases", report.cases},
      {"failures", nlohmann::json::array()},
      {"mode", options.full ? "full" : "quick"},
      {"seconds", seconds}};
  for (const auto& failure : report.failures) {
    json["failures"].push_back(
        {{"part", failure.part},
         {"op", failure.op},
         {"where", failure.where},
         {"what", failure.what},
         {"message", failure.message}});
  }
  if (!options.registry.empty()) {
    const auto coverage = count_coverage(report, Registry(options.registry));
    for (const auto& [family, count] : coverage.families) {
      json["families"][family] = {
          {"pytorch", count.pytorch},
          {"sharded", count.sharded},
          {"replicated_only", count.replicated},
          {"python_only", count.python_only},
          {"all_sharded", count.all_sharded},
          {"refused", count.refused_names},
          {"unproven", count.unproven_names}};
    }
    json["sharded"] = coverage.sharded;
    json["replicated_only"] = coverage.replicated;
  }
  std::ofstream(options.json) << json.dump(2) << "\n";
}

std::string first_difference(const std::string& a, const std::string& b) {
  std::istringstream left(a);
  std::istringstream right(b);
  std::string x;
  std::string y;
  for (int64_t line = 1;; ++line) {
    const bool more_left = !std::getline(left, x).fail();
    const bool more_right = !std::getline(right, y).fail();
    if (more_left != more_right || x != y) {
      return "line " + std::to_string(line) + " is\n  " +
             (more_left ? x : "(end)") + "\n  where the checks say\n  " +
             (more_right ? y : "(end)");
    }
  }
}

// Writes the table, or compares it with the one that is there.
void handle_table(const Options& options, Report& report) {
  if (options.registry.empty()) {
    return;
  }
  // What this run does not show stays as it is: the figures of parts D to F
  // are those of the last full run.
  const auto [coverage, figures] = kept_tables(
      options.check_table.empty() ? options.write_table : options.check_table);
  const bool counts =
      options.full && options.has('D') && options.has('E') && options.has('F');
  const auto table =
      (options.has('A') && options.has('C')
           ? coverage_table(report, Registry(options.registry))
           : coverage) +
      (counts ? chain_table(report) + leaf_table(report) + operand_table(report)
              : figures);
  if (!options.write_table.empty()) {
    std::ofstream(options.write_table) << table;
  }
  if (!options.check_table.empty()) {
    std::ifstream file(options.check_table);
    const std::string text(
        (std::istreambuf_iterator<char>(file)),
        std::istreambuf_iterator<char>());
    if (text != table) {
      report.fail(
          {"table",
           "",
           options.check_table,
           "--write-table writes it anew",
           first_difference(text, table)});
    }
  }
}

int run(const Options& options) {
  at::set_num_threads(1);
  ignore_warnings();
  const auto start = Clock::now();
  Report report;
  ops_with_rules();
  const auto ops =
      load_samples(options.samples, std::regex(options.filter), report);
  for (const auto& op : ops) {
    auto& result = report.ops[short_name(op.op)];
    result.packet = packet_of(op.op);
    result.samples = static_cast<int64_t>(op.samples.size());
    if (!op.samples.empty()) {
      const auto& where = op.samples[0].where;
      result.file = where.substr(0, where.find('.'));
    }
  }
  if (options.filter.empty()) {
    check_completeness(ops, report);
  }
  if (options.list) {
    for (const auto& op : ops) {
      for (const auto& sample : op.samples) {
        std::cout << sample.where << " " << sample.name() << "("
                  << describe(sample.arguments) << ")\n";
      }
    }
  }
  const auto timed = [&](char part, const char* name, auto check) {
    if (options.has(part)) {
      const auto begin = Clock::now();
      check(ops, options, report);
      std::cout << name << ": " << seconds_since(begin) << " s\n";
    }
  };
  timed('A', "strategies", check_all_strategies);
  timed('B', "search", check_all_placements);
  timed('C', "dispatch", check_all_dispatch);
  if (options.has('C')) {
    check_kernels(ops, options, report);
  }
  timed('D', "view chains", [](const auto&, const Options& of, Report& to) {
    check_all_view_chains(of, to);
  });
  timed('E', "leaves", check_all_leaves);
  timed('F', "operands", check_all_operands);
  handle_table(options, report);
  print(report);
  if (!options.json.empty()) {
    write_json(report, options, seconds_since(start));
  }
  return report.failures.empty() ? 0 : 1;
}

} // namespace
} // namespace weft::dtensor::check

int main(int argc, char** argv) {
  weft::dtensor::check::Options options;
  CLI::App app(
      "Checks DTensor ops against one rank, on samples in text files "
      "(tests/dtensor/op_check/sample_parser.h says how they are written).");
  app.add_option("--samples", options.samples, "folder of *.txt files")
      ->required();
  app.add_option("--filter", options.filter, "only ops that this regex finds");
  app.add_option(
      "--parts",
      options.parts,
      "A: each strategy by hand; B: placements that rules do not know; C: the "
      "dispatcher, on ranks that communicate; D: random chains of views that "
      "are written and read; E: gradients of leaves that are placed in every "
      "way; F: gradients of ops with several operands, each placed otherwise");
  app.add_flag("--full,!--quick", options.full, "all cases, or a sample");
  app.add_option(
      "--combinations",
      options.combinations,
      "part C, full: placements of a sample's tensors on a mesh that are tried "
      "at most; a quarter of it for forms in place and out=");
  app.add_option(
      "--leaf-cases",
      options.leaf_cases,
      "part E, full: placements of a sample's tensors on a mesh that are tried "
      "at most");
  app.add_option(
      "--operand-mixes",
      options.operand_mixes,
      "part F, full: mixes of placements of a sample's operands on a mesh that "
      "are tried at most");
  app.add_option("--seed", options.seed, "of what the checks pick");
  app.add_option("--json", options.json, "file for the figures");
  app.add_option(
      "--registry", options.registry, "PyTorch's ops: lines of family and op");
  app.add_option(
      "--write-table", options.write_table, "file for the table of all ops");
  app.add_option(
      "--check-table", options.check_table, "table that has to be up to date");
  app.add_flag("--list", options.list, "print the samples");
  CLI11_PARSE(app, argc, argv);
  return weft::dtensor::check::run(options);
}
