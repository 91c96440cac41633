#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::cli::bench {

/// The flags of bench/peer/train_step.py, with its defaults.
struct StepOptions {
  int64_t dp = 2;
  int64_t tp = 2;
  int64_t dim = 256;
  int64_t layers = 4;
  int64_t heads = 8;
  int64_t kv_heads = 0;
  int64_t ffn_dim = 0;
  int64_t seq = 128;
  int64_t batch = 4;
  int64_t vocab = 256;
  int64_t steps = 30;
  int64_t warmup = 5;
  int64_t sequence_parallel = 1;
  int64_t threads = 1;
  double bucket_mb = 25;
  /// "ddp" or "fsdp". With "fsdp" the dp ranks are those of mesh.dp_shard.
  std::string engine = "ddp";
  /// Runs groups of this many steps inside and outside a Join, alternately. 0
  /// means no Join.
  int64_t join = 0;
  /// Runs groups of this many steps with tp.async off, on and auto, in
  /// rotation. 0 means auto for all steps.
  int64_t async_tp = 0;
  std::string comm = "auto";
  std::string device = "cpu";
  std::string dtype = "float32";
  /// The value of the recipe key: "auto", "libtorch" or "onednn".
  std::string products = "auto";
  /// The file to which rank 0 writes libtorch's profile of three steps after
  /// the timed ones. Empty means none.
  std::string profile;
};

/// Does the work of the peer script: random tokens, mean loss, backward, AdamW
/// without clipping, with the loss read in each step. On rank 0 returns one
/// line of JSON with the peer's keys and the time of each phase of the start;
/// nothing on the other ranks.
/// Collective: dp * tp ranks.
/// Throws: mesh::UsageError if the device cannot be used.
std::optional<std::string> run_step(const StepOptions& options);

/// Runs one training step and returns the time of each phase from the launch to
/// the end of that step (`start_s` of rank 0) and their sum (`first_step_s`,
/// the peer's name). A process starts only once, so a median needs several
/// launches. One line of JSON on rank 0, nothing on the others.
/// Collective: dp * tp ranks.
/// Throws: mesh::UsageError if the device cannot be used.
std::optional<std::string> run_startup(StepOptions options);

/// The arguments of bench/peer/checkpoint.py, and its constants.
struct CheckpointOptions {
  /// The scratch folder. It must not exist and is deleted afterwards.
  std::string folder;
  int64_t mb = 768;
  int64_t threads = 1;
};

/// Saves a state of `mb` MiB (parameters and two moments, sharded over half of
/// the ranks and replicated over the rest), loads it as it lies, loads it cut
/// along both mesh dims, and saves it in the background. On rank 0 returns one
/// line of JSON with the peer's keys and more; nothing on the others:
///   mb: of the state.
///   save_s, save_nosync_s; load_same_s, load_same_all_or_nothing_s,
///     load_reshard_s: from a barrier to the next, the best of two.
///   async_block_first_s, async_block_s: the same of save_async(), which copies
///     into new memory once and then into what it has.
///   async_blocked_s: what save_async() itself says, of the slowest rank.
///   async_total_s: from the call to the commit, the ranks computing meanwhile.
///   step_s, async_step_s: a product of matrices, with nothing else to do and
///     while a save is in flight.
///   save_mb, load_mb, load_reshard_mb: written and read by all ranks together.
///   save_peak_mb, load_peak_mb, load_all_or_nothing_peak_mb,
///     load_reshard_peak_mb, async_peak_mb: resident memory beyond the state's,
///     of the rank with most; async_staging_mb: of that, kept.
///   raw_write_s, memcpy_s: the disk and memory on one rank, without Weft: the
///     whole state.
/// Units: MiB, seconds. Collective: an even number of ranks, or 1.
std::optional<std::string> run_checkpoint(const CheckpointOptions& options);

struct CollectiveOptions {
  /// Names of Communicator's methods. Empty means all that are measured.
  std::vector<std::string> ops;
  /// The bytes of a rank's largest tensor: the output of all_gather, the input
  /// of reduce_scatter. Empty means 1 KiB to 64 MiB in steps of four.
  std::vector<uint64_t> sizes;
  /// "auto" (every transport in turn), "gloo" or "shm".
  std::string backend = "auto";
  /// "float32", "float64", "bfloat16", "float16", "int32" or "int64".
  std::string dtype = "float32";
  int64_t rounds = 11;
};

/// The collectives that are measured.
const std::vector<std::string>& collective_names();

/// Times collectives over all ranks of the job, on each transport in turn in
/// the same processes. On rank 0 returns one line of JSON: for each op and size
/// the median, minimum and maximum of the time of a call in microseconds over
/// the rounds, each that of the slowest rank, and, with both transports, the
/// ratio of gloo's time to shm's. Nothing on the other ranks.
/// Collective: all ranks of the job, at least two, on one host.
/// Throws: mesh::UsageError for one rank, several hosts, or a transport that is
/// not available.
std::optional<std::string> run_collective(const CollectiveOptions& options);

/// A model of `layers` square linear layers without bias.
struct DeferredMemoryOptions {
  int64_t layers = 8;
  int64_t dim = 8192;
  int64_t threads = 1;
};

/// The memory of the rank with the largest growth.
struct DeferredMemory {
  int64_t rank = 0;
  int64_t world_size = 0;
  int64_t model_bytes = 0;
  /// The size of one rank's part of the model.
  int64_t shard_bytes = 0;
  /// The growth of the process's peak resident memory.
  int64_t growth_bytes = 0;

  double ratio() const {
    return static_cast<double>(growth_bytes) / static_cast<double>(shard_bytes);
  }
};

/// Builds the model in DeferredInit, shards every weight over all ranks,
/// materializes it, and measures how far the peak resident memory rose.
/// Collective: all ranks of the launched world.
DeferredMemory measure_deferred_memory(const DeferredMemoryOptions& options);

/// Returns measure_deferred_memory() as one line of JSON on rank 0, nothing on
/// the others.
/// Collective: all ranks of the launched world.
std::optional<std::string> run_deferred_memory(
    const DeferredMemoryOptions& options);

/// Times ops on small DTensors and on plain tensors, alternately, on one
/// thread: `<op>_local_us` and `<op>_dtensor_us`, medians in microseconds, with
/// the names of bench/peer/dispatch.py. Returns one line of JSON. `only`
/// selects one op, e.g. "mm_grad", for a profiler.
std::string run_dispatch(const std::string& only = {});

/// Times the matrix products of a training step of run_step()'s model on one
/// rank, one shape after the other, with each library that can multiply here,
/// in turn. One line of JSON:
///   auto: the library that the rule chooses.
///   gflop: floating-point operations of these products in a step, 1e9.
///   ms: all of them, by library; peak_gflops: of a product of 1,024 x 1,024 x
///     1,024 alone, 1e9 operations a second.
///   products: m, k, n, form (which operand is a transposed view), batch,
///     count (in a step; the half of attention that the mask hides is left
///     out), us by library.
std::string run_matmul(const StepOptions& options);

/// Times random ops on DTensors, whose numbers do not depend on the mesh, and
/// libtorch's generator filling as many elements of a plain tensor,
/// alternately, on one thread: `<op>_local_us` and `<op>_dtensor_us`, medians
/// in microseconds. Returns one line of JSON.
std::string run_random();

/// Times redistributions of 1 MB and 64 MB over all ranks of the job:
/// `<from>_to_<to>_<size>mb_us`, medians in microseconds, with the names of
/// bench/peer/redistribute.py. One line of JSON on rank 0, nothing on the
/// others.
/// Collective: all ranks of the job.
std::optional<std::string> run_redistribute();

/// The flags of bench/peer/reducer.py, with its defaults.
struct ReducerOptions {
  /// The widths of the square linear layers, each with a weight and a bias.
  std::vector<int64_t> widths{64, 256};
  int64_t layers = 100;
  int64_t batch = 32;
  int64_t rounds = 60;
  int64_t warmup = 10;
  int64_t threads = 1;
  double bucket_mb = 25;
  /// Makes zero_grad() keep the gradients' memory. By default it frees it.
  bool keep_gradients = false;
};

/// Times backward of a stack of linear layers with DDP over all ranks and plain
/// backward of the same model, alternately: `w<width>_plain_ms` and
/// `w<width>_ddp_ms`, medians, and `w<width>_ratio`, the median of the rounds'
/// ratios. One line of JSON on rank 0, nothing on the others.
/// Collective: all ranks of the job.
std::optional<std::string> run_reducer(const ReducerOptions& options);

/// The shape of a Llama and its mesh. The default has 405 billion parameters on
/// 16,384 ranks.
struct SavePlanOptions {
  int64_t ranks = 16384;
  int64_t dp = 2048;
  int64_t tp = 8;
  /// The number of data-parallel ranks over which the moments are sharded. 1
  /// means not sharded.
  int64_t zero = 1;
  int64_t layers = 126;
  int64_t dim = 16384;
  int64_t ffn_dim = 53248;
  int64_t heads = 128;
  int64_t kv_heads = 8;
  int64_t vocab = 128256;
  /// The folder of the manifest. Empty means the system's temporary folder.
  std::string folder = {};
};

/// Plans the save of a Llama's parameters, both moments and step counts on
/// simulated ranks, and merges the reports of all ranks into a manifest, in one
/// process. Returns one line of JSON:
///   tensors, state_gb.
///   plan_first_s: the time in which one rank computes the plan, selects its
///     own part, and computes the hash that ranks compare; plan_cached_s: the
///     same time at the next save.
///   rank_bytes_max, rank_bytes_mean: the bytes of tensors that a rank writes.
///   report_bytes_max, report_bytes_sum: the bytes that ranks send to rank 0.
///   merge_s: the time to merge the reports; manifest_s: the time to check and
///     write the manifest; manifest_mb, chunks.
///   peak_mb: the peak memory of this process. It holds all reports, as rank 0
///     does in a run.
/// Throws: mesh::UsageError if the options are inconsistent.
std::optional<std::string> run_save_plan(const SavePlanOptions& options);

} // namespace weft::cli::bench
