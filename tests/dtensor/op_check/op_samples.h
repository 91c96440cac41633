#pragma once

#include <filesystem>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "tests/dtensor/op_check/arguments.h"
#include "tests/dtensor/op_check/report.h"
#include "tests/dtensor/op_check/sample_parser.h"

namespace weft::dtensor::check {

/// One call of one op, on full tensors.
struct Sample {
  c10::OperatorHandle op;
  Stack arguments;
  /// "view.txt:12".
  std::string where;
  /// The text in the file.
  std::string text;
  /// The source of the arguments, by `bound_to`'s schema.
  std::shared_ptr<const SampleLine> line;
  c10::OperatorHandle bound_to;
  /// The last arguments are written to only.
  bool is_out = false;
  /// In place or out=, made of a sample of the op that returns a new tensor.
  bool is_form = false;

  std::string name() const { return short_name(op); }
};

/// Returns the call with other values.
Stack other_arguments(const Sample& sample);
/// Returns the call with floats of another dtype.
Sample with_dtype(const Sample& sample, at::ScalarType dtype);
/// Empty if it runs on one rank, else what it threw.
std::string try_run(const Sample& sample);

/// An op and what to call it with.
struct CheckedOp {
  c10::OperatorHandle op;
  std::vector<Sample> samples;
};

/// All samples of the *.txt files of `folder`, by op, in-place forms
/// and out= forms too; each ran on one rank. What does not fit or run is a
/// failure in `report`. Only ops whose name `filter` finds.
std::vector<CheckedOp> load_samples(
    const std::filesystem::path& folder,
    const std::regex& filter,
    Report& report);

/// Ops that the dispatcher sends through rules, except out= forms.
std::vector<c10::OperatorHandle> ops_with_rules();
/// Their out= forms.
std::vector<c10::OperatorHandle> out_forms();
/// The ops with a rule but without a CPU kernel.
std::vector<c10::OperatorHandle> ops_of_other_devices();
/// Every op of libtorch that can run on the CPU, by "aten::name".
std::vector<c10::OperatorHandle> overloads_of(const std::string& name);

} // namespace weft::dtensor::check
