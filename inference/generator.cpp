#include "inference/generator.h"

#include <algorithm>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "dtensor/spec/dim_shards.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/communicator/exchange.h"
#include "mesh/world.h"
#include "train/setup/job_mesh.h"

namespace weft::inference {
namespace {

// The number of tokens between two messages of Replicas.
constexpr int64_t kTokensATick = 16;

// The progress of the replicas, which generate different numbers of samples of
// different lengths. All replicas exchange regularly whether they still work,
// so that a replica that is done does not exceed the communicator's timeout
// while it waits. If the model is sharded over the replicas, they must compute
// each token together. They then exchange this before each token, and a replica
// that is done computes a token that it discards.
class Replicas {
 public:
  Replicas(
      const mesh::DeviceMesh& batch,
      bool computes_together,
      std::function<void()> idle_pass)
      : batch_(batch),
        computes_together_(computes_together),
        idle_pass_(std::move(idle_pass)) {}

  void before_pass() {
    if (computes_together_) {
      tick(/*works=*/true);
    }
  }

  void token_done() {
    if (++tokens_ % kTokensATick == 0 && !computes_together_) {
      tick(/*works=*/true);
    }
  }

  void finish() {
    while (tick(/*works=*/false)) {
      if (computes_together_) {
        idle_pass_();
      }
    }
  }

 private:
  bool tick(bool works) {
    if (batch_.size() == 1) {
      return false;
    }
    const auto flag = at::full({1}, works ? 1 : 0, at::kLong);
    batch_.group(0)
        .all_reduce(flag, mesh::ReduceOp::kMax, "replicas that generate")
        .wait();
    return flag.item<int64_t>() != 0;
  }

  const mesh::DeviceMesh& batch_;
  bool computes_together_;
  std::function<void()> idle_pass_;
  int64_t tokens_ = 0;
};

// Returns the full logits [rows, V] as float on the CPU, equal on all ranks of
// "tp".
at::Tensor whole_logits(const at::Tensor& logits_B1V) {
  const auto whole = dtensor::is_dtensor(logits_B1V)
                         ? dtensor::full_tensor(logits_B1V)
                         : logits_B1V;
  return whole.select(1, 0).to(at::kCPU, at::kFloat);
}

at::Tensor logits_after(
    models::Model& model,
    const at::Tensor& tokens_BT,
    models::KvCache& cache,
    bool use_cache) {
  return use_cache ? model.forward_cached(tokens_BT, cache)
                   : model.Model::forward_cached(tokens_BT, cache);
}

class PromptRun {
 public:
  PromptRun(
      models::Model& model,
      c10::Device device,
      std::span<const int64_t> prompt,
      const GenerationOptions& options)
      : model_(model),
        device_(device),
        prompt_(prompt),
        options_(options),
        cache_(static_cast<int64_t>(prompt.size()) + options.max_new_tokens) {}

  void run(
      std::span<Continuation> samples,
      const OnToken& on_token,
      Replicas& replicas) {
    const auto forward = [&](const at::Tensor& tokens_BT) {
      replicas.before_pass();
      return whole_logits(logits_after(
          model_, tokens_BT.to(device_), cache_, options_.use_cache));
    };
    auto logits_BV = forward(at::tensor(prompt_, at::kLong).unsqueeze(0));
    const auto rows = static_cast<int64_t>(samples.size());
    logits_BV = logits_BV.expand({rows, logits_BV.size(1)});
    cache_.repeat_rows(rows);
    for (int64_t i = 0; i < options_.max_new_tokens; ++i) {
      const auto next = choose(samples, logits_BV, on_token);
      replicas.token_done();
      const bool done = std::ranges::all_of(samples, &Continuation::ended);
      if (done || i + 1 == options_.max_new_tokens) {
        return;
      }
      logits_BV = forward(at::tensor(next, at::kLong).unsqueeze(1));
    }
  }

 private:
  // Returns one token per row. A row that has ended repeats its last token,
  // whose output is ignored.
  std::vector<int64_t> choose(
      std::span<Continuation> samples,
      const at::Tensor& logits_BV,
      const OnToken& on_token) {
    std::vector<int64_t> next;
    for (size_t row = 0; row < samples.size(); ++row) {
      auto& sample = samples[row];
      if (!sample.ended) {
        const auto position = prompt_.size() + sample.tokens.size();
        sample.tokens.push_back(choose_token(
            logits_BV[static_cast<int64_t>(row)],
            options_.sampling,
            sample.sample,
            static_cast<int64_t>(position)));
        sample.ended =
            std::ranges::count(options_.eos, sample.tokens.back()) > 0;
        on_token(sample);
      }
      next.push_back(sample.tokens.back());
    }
    return next;
  }

  models::Model& model_;
  c10::Device device_;
  std::span<const int64_t> prompt_;
  const GenerationOptions& options_;
  models::KvCache cache_;
};

} // namespace

std::vector<Continuation> generate(
    models::Model& model,
    const mesh::DeviceMesh& mesh,
    std::span<const std::vector<int64_t>> prompts,
    int64_t num_samples,
    const GenerationOptions& options,
    const OnToken& on_token) {
  const at::NoGradGuard no_grad;
  const auto batch = train::batch_mesh(mesh);
  const auto own = dtensor::shard_range(
      static_cast<int64_t>(prompts.size()) * num_samples,
      batch.size(),
      batch.coordinate(0));
  std::vector<Continuation> samples;
  for (int64_t i = own.begin; i < own.begin + own.length; ++i) {
    samples.push_back(
        {.prompt = static_cast<size_t>(i / num_samples),
         .sample = i,
         .tokens = {}});
  }
  const auto device = mesh.world().device();
  Replicas replicas(batch, mesh.has_mesh_dim("dp_shard"), [&] {
    models::KvCache cache(1);
    logits_after(
        model,
        at::zeros({1, 1}, at::device(device).dtype(at::kLong)),
        cache,
        options.use_cache);
  });
  for (auto first = samples.begin(); first != samples.end();) {
    const auto last = std::find_if(first, samples.end(), [&](const auto& s) {
      return s.prompt != first->prompt;
    });
    PromptRun(model, device, prompts[first->prompt], options)
        .run({first, last}, on_token, replicas);
    first = last;
  }
  replicas.finish();
  mesh.world().check();
  return samples;
}

std::vector<Continuation> gather_continuations(
    const mesh::DeviceMesh& mesh,
    const std::vector<Continuation>& own) {
  auto list = nlohmann::json::array();
  if (mesh.coordinate("tp") == 0) {
    for (const auto& each : own) {
      list.push_back({each.prompt, each.sample, each.ended, each.tokens});
    }
  }
  auto group = mesh.world().group();
  std::vector<Continuation> all;
  for (const auto& text : mesh::all_gather_text(
           group, base::strict_json_text(list), "generated tokens")) {
    for (const auto& each : base::parse_json(text)) {
      all.push_back(
          {.prompt = each.at(0),
           .sample = each.at(1),
           .tokens = each.at(3),
           .ended = each.at(2)});
    }
  }
  std::ranges::sort(all, {}, &Continuation::sample);
  return all;
}

} // namespace weft::inference
