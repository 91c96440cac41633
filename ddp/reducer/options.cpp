#include "ddp/reducer/options.h"

#include "base/string_streams.h"

namespace weft::ddp {
namespace {

template <class T>
void add(std::vector<std::string>& lines, const char* name, const T& value) {
  base::StringWriter line;
  line << "option " << name << " = " << value;
  lines.push_back(line.str());
}

std::string dtype_name(const std::optional<c10::ScalarType>& dtype) {
  return dtype ? c10::toString(*dtype) : "none";
}

template <class T>
std::string join(const T& values) {
  base::StringWriter out;
  for (const auto& value : values) {
    out << value << ' ';
  }
  return out.str();
}

} // namespace

bool syncs_buffers_in_forward(const DistributedDataParallelOptions& options) {
  return options.forward_sync_buffers.value_or(
      options.broadcast_buffers.value_or(true));
}

bool finds_unused_in_each_step(const DistributedDataParallelOptions& options) {
  return options.find_unused_parameters && !options.static_graph;
}

std::vector<std::string> describe_options(
    const DistributedDataParallelOptions& options) {
  std::vector<std::string> lines;
  add(lines, "bucket_cap_mb", options.bucket_cap_mb.value_or(0));
  add(lines, "bucket_cap_mb_list", join(options.bucket_cap_mb_list));
  add(lines, "forward_sync_buffers", syncs_buffers_in_forward(options));
  add(lines, "reduce_op", static_cast<int>(options.reduce_op));
  add(lines, "find_unused_parameters", options.find_unused_parameters);
  add(lines, "static_graph", options.static_graph);
  add(lines,
      "skip_all_reduce_unused_params",
      options.skip_all_reduce_unused_params);
  add(lines,
      "delay_all_reduce_named_params",
      join(options.delay_all_reduce_named_params));
  add(lines, "param_to_hook_all_reduce", options.param_to_hook_all_reduce);
  const auto precision = options.mixed_precision.value_or(MixedPrecision());
  add(lines, "mixed_precision.param_dtype", dtype_name(precision.param_dtype));
  add(lines,
      "mixed_precision.reduce_dtype",
      dtype_name(precision.reduce_dtype));
  add(lines,
      "params_and_buffers_to_ignore",
      join(options.params_and_buffers_to_ignore));
  add(lines, "bucket_mode", static_cast<int>(options.bucket_mode));
  add(lines, "parameter_groups", options.parameter_groups.size());
  add(lines, "auto_bucketing", options.auto_bucketing);
  add(lines, "check_for_nan_in_grad", options.check_for_nan_in_grad);
  return lines;
}

} // namespace weft::ddp
