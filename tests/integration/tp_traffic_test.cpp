// What every model sends under its tensor-parallel plan, beside what PyTorch
// does with the same plan: oracle/tp_traffic.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "tests/integration/traffic.h"
#include "tests/support/run_ranks.h"
#include "train/setup/loss.h"
#include "train/setup/train_job.h"
#include "train/setup/validate.h"

namespace weft::integration {
namespace {

using nlohmann::json;
using test::RankContext;
using test::run_ranks;

// As in oracle/tp_traffic.py: logits are larger than all else.
constexpr int64_t kTrafficBatch = 2;
constexpr int64_t kTrafficVocabulary = 300;
constexpr int64_t kTrafficClasses = 3000;
constexpr int64_t kTrafficImage = 8;
constexpr int64_t kTrafficDim = 24;
constexpr int64_t kTrafficExpertsPerToken = 2;

/// A model of oracle/tp_traffic.py and how it is trained.
struct TrafficCase {
  std::string model;
  bool tied = false;
  bool sequence_parallel = true;
  bool loss_parallel = true;
  bool recomputed = false;
  /// The sequence length. 0 for images.
  int64_t length = 0;
  int64_t kv_heads = 6;
};

bool has_images(const TrafficCase& each) {
  return each.length == 0;
}

config::Recipe
traffic_recipe(const TrafficCase& each, int64_t layers, int64_t ranks) {
  config::Recipe recipe;
  recipe.name = "traffic";
  recipe.model.type = each.model;
  recipe.model.dim = kTrafficDim;
  recipe.model.layers = layers;
  recipe.model.heads = 6;
  recipe.model.kv_heads = each.kv_heads;
  recipe.model.ffn_dim = 48;
  recipe.model.vocab_size = kTrafficVocabulary;
  recipe.model.max_position_embeddings = each.length;
  recipe.model.tie_embeddings = each.tied && each.model != "gpt2";
  recipe.model.num_experts = 6;
  recipe.model.num_experts_per_tok = kTrafficExpertsPerToken;
  recipe.model.num_classes = kTrafficClasses;
  recipe.data.type =
      has_images(each) ? config::DataType::kDigits : config::DataType::kText;
  recipe.data.paths = {"none"};
  recipe.data.sequence_length = std::max<int64_t>(each.length, 1);
  recipe.train.global_batch_size = kTrafficBatch;
  recipe.train.micro_batch_size = kTrafficBatch;
  recipe.train.activation_checkpoint =
      each.recomputed ? config::ActivationCheckpoint::kFull
                      : config::ActivationCheckpoint::kNone;
  recipe.tp.sequence_parallel = each.sequence_parallel;
  recipe.tp.loss_parallel = each.loss_parallel;
  recipe.mesh = {1, ranks};
  recipe.origins.source = "test";
  train::validate(recipe, ranks);
  return recipe;
}

at::Tensor inputs_of(const TrafficCase& each) {
  if (has_images(each)) {
    return at::linspace(-1, 1, kTrafficBatch * kTrafficImage * kTrafficImage)
        .view({kTrafficBatch, 1, kTrafficImage, kTrafficImage});
  }
  return (at::arange(kTrafficBatch * each.length) * 7919)
      .remainder(kTrafficVocabulary)
      .view({kTrafficBatch, each.length});
}

at::Tensor targets_of(const TrafficCase& each) {
  return has_images(each) ? at::arange(kTrafficBatch)
                          : (inputs_of(each) + 3).remainder(kTrafficVocabulary);
}

/// The collectives of rank 0.
struct StepEntries {
  std::vector<mesh::FlightRecorderEntry> forward;
  std::vector<mesh::FlightRecorderEntry> backward;
};

StepEntries run_step(const TrafficCase& each, int64_t layers, int64_t ranks) {
  StepEntries of_first;
  run_ranks(static_cast<int>(ranks), [&](RankContext& self) {
    const auto recipe = traffic_recipe(each, layers, ranks);
    const auto mesh = self.mesh({1, ranks}, {"dp", "tp"});
    auto job = train::make_train_job(recipe, mesh);
    take_entries(mesh);
    StepEntries entries;
    const auto loss = train::training_loss(
        recipe, *job.model, (*job.ddp)(inputs_of(each)), targets_of(each));
    entries.forward = take_entries(mesh);
    loss.backward();
    entries.backward = take_entries(mesh);
    if (self.rank == 0) {
      of_first = std::move(entries);
    }
  });
  return of_first;
}

StepTraffic our_traffic(const StepEntries& entries, int64_t ranks) {
  StepTraffic traffic;
  const auto add = [&](KindTraffic& to,
                       const mesh::FlightRecorderEntry& entry) {
    const auto kind = kind_of(entry);
    const auto bytes = static_cast<double>(entry.bytes);
    to = to + KindTraffic{{kind, {1, on_the_wire(kind, bytes, ranks)}}};
  };
  for (const auto& entry : entries.forward) {
    const bool is_loss = entry.name == "cross_entropy" ||
                         entry.name == "expert counts" ||
                         entry.name == "auxiliary loss";
    add(is_loss ? traffic.loss : traffic.forward, entry);
  }
  for (const auto& entry : entries.backward) {
    const bool is_pending = entry.name.ends_with("Partial gradients");
    add(is_pending ? traffic.gradients : traffic.backward, entry);
  }
  return traffic;
}

int64_t targets_in(const TrafficCase& each) {
  return kTrafficBatch * std::max<int64_t>(each.length, 1);
}

const json& stored_traffic() {
  static const auto cases = json::parse(
      std::ifstream(WEFT_TEST_INTEGRATION_FOLDER "/oracle/tp_traffic.json"));
  return cases.at("cases");
}

KindTraffic stored_part(const json& part, int64_t ranks) {
  KindTraffic traffic;
  for (const auto& [kind, sent] : part.items()) {
    traffic[kind] = {
        sent.at(0).get<int64_t>(),
        on_the_wire(kind, sent.at(1).get<double>(), ranks)};
  }
  return traffic;
}

/// PyTorch's. Three all_reduces of a number a target are loss_parallel's.
StepTraffic
peer_traffic(const TrafficCase& each, int64_t layers, int64_t ranks) {
  for (const auto& run : stored_traffic()) {
    if (run.at("model") == each.model && run.at("tied") == each.tied &&
        run.at("sequence_parallel") == each.sequence_parallel &&
        run.at("loss_parallel") == each.loss_parallel &&
        run.at("checkpoint") == each.recomputed &&
        run.at("length") == each.length && run.at("layers") == layers &&
        run.at("ranks") == ranks) {
      StepTraffic traffic{
          stored_part(run.at("forward"), ranks),
          stored_part(run.at("backward"), ranks),
          {},
          stored_part(run.at("gradients"), ranks)};
      if (each.loss_parallel) {
        traffic.loss = times(one("all_reduce", targets_in(each), ranks), 3);
        traffic.forward = traffic.forward - traffic.loss;
      }
      return traffic;
    }
  }
  ADD_FAILURE() << "oracle/tp_traffic.json lacks " << each.model;
  return {};
}

/// What a layer's experts send, which PyTorch has not. Where sequences are cut,
/// rows to their experts and back and how many come, in all_to_alls as large as
/// the router has it. Else one sum of the results; backward that of the tokens'
/// gradients, in two steps, and that of their weights'.
StepTraffic expert_traffic(const TrafficCase& each, int64_t ranks) {
  if (each.model != "moe") {
    return {};
  }
  StepTraffic traffic;
  if (each.sequence_parallel) {
    const int64_t again = each.recomputed ? 3 : 0;
    traffic.forward["all_to_all"] = {3, 1e9};
    traffic.backward["all_to_all"] = {2 + again, 1e9};
    return traffic;
  }
  const int64_t rows = targets_in(each) * kTrafficDim;
  traffic.forward = one("all_reduce", rows, ranks);
  traffic.backward =
      one("reduce_scatter", rows, ranks) + one("all_gather", rows, ranks) +
      one("all_reduce", targets_in(each) * kTrafficExpertsPerToken, ranks);
  return traffic;
}

/// More numbers that are pending than PyTorch's. Biases of row-parallel Linears
/// are added to parts of sequences here, and each rank has a term of their
/// gradients; PyTorch has them from the gathered gradient. The MLP's gradients
/// are Partial sums until they pass a row-parallel Linear's bias.
int64_t pending_biases(const TrafficCase& each, int64_t layers) {
  if (each.model == "mlp") {
    return layers / 2 * 48;
  }
  const bool has_biases = each.model == "gpt2" || each.model == "vit";
  return has_biases && each.sequence_parallel ? layers * 2 * kTrafficDim : 0;
}

/// More than PyTorch, a step: GPT-2's positions, whose gradient is cut another
/// way before it is gathered; and where ViT's body ends the gradient of all
/// tokens, of which PyTorch, with plain tensors there, reduces the class
/// token's.
KindTraffic excess_backward(const TrafficCase& each, int64_t ranks) {
  if (each.model == "gpt2" && each.sequence_parallel) {
    return one("all_to_all", each.length * kTrafficDim, ranks);
  }
  if (each.model != "vit") {
    return {};
  }
  const int64_t patches = kTrafficImage * kTrafficImage / 4;
  if (each.sequence_parallel) {
    return one(
        "reduce_scatter", kTrafficBatch * (patches + 1) * kTrafficDim, ranks);
  }
  auto excess = one("all_reduce", kTrafficBatch * patches * kTrafficDim, ranks);
  excess.at("all_reduce").calls = 0;
  return excess;
}

void expect_no_more(
    const KindTraffic& ours,
    const KindTraffic& peer,
    const std::string& what) {
  for (const auto& [kind, sent] : ours) {
    const auto found = peer.find(kind);
    const auto allowed = found == peer.end() ? Sent() : found->second;
    EXPECT_LE(sent.calls, allowed.calls) << what << ": calls of " << kind;
    EXPECT_LE(sent.bytes, allowed.bytes + 1e-6)
        << what << ": bytes of " << kind;
  }
}

int64_t largest_bytes(const StepEntries& entries) {
  int64_t largest = 0;
  for (const auto* part : {&entries.forward, &entries.backward}) {
    for (const auto& entry : *part) {
      largest = std::max(largest, entry.bytes);
    }
  }
  return largest;
}

// Not even a rank's part of the logits is ever sent, forward or backward.
void expect_logits_stay(
    const TrafficCase& each,
    const StepEntries& entries,
    int64_t ranks) {
  const int64_t columns =
      has_images(each) ? kTrafficClasses : kTrafficVocabulary;
  const int64_t logits = 4 * targets_in(each) * columns;
  const bool head_is_told = !each.tied;
  if (each.loss_parallel) {
    EXPECT_LT(largest_bytes(entries), logits / ranks);
  } else if (head_is_told) {
    EXPECT_GE(largest_bytes(entries), logits);
  }
}

std::string describe(const TrafficCase& each) {
  return fmt::format(
      "{}{} sequence_parallel={} loss_parallel={} checkpoint={} length={}",
      each.model,
      each.tied ? " tied" : "",
      each.sequence_parallel,
      each.loss_parallel,
      each.recomputed,
      each.length);
}

// For docs/tensor_parallel.md.
void print_layer(
    const TrafficCase& each,
    const StepTraffic& ours,
    const StepTraffic& peer) {
  const auto row = [](const StepTraffic& layer) {
    std::string text;
    for (const auto& [kind, sent] : layer.all()) {
      if (sent.calls != 0 || sent.bytes != 0) {
        text += fmt::format(" {} {} ({:.0f} B)", sent.calls, kind, sent.bytes);
      }
    }
    return text;
  };
  fmt::print(
      "{}\n  ours:{}\n  peer:{}\n", describe(each), row(ours), row(peer));
}

class TpTraffic
    : public ::testing::TestWithParam<std::tuple<const char*, int64_t>> {
 protected:
  static void check(const TrafficCase& each);
  static void check_loss(const TrafficCase& each, const KindTraffic& loss);
  static void check_gradients(
      const TrafficCase& each,
      const KindTraffic& ours,
      const KindTraffic& peer,
      int64_t layers);
  static int64_t ranks() { return std::get<1>(GetParam()); }
};

// One gather of three numbers a target, of each rank.
void TpTraffic::check_loss(const TrafficCase& each, const KindTraffic& loss) {
  KindTraffic expected;
  if (each.loss_parallel || each.tied) {
    expected = one("all_gather", 3 * ranks() * targets_in(each), ranks());
  }
  // The balance of experts: their counts, and the loss.
  const bool balances = each.model == "moe" && each.sequence_parallel;
  EXPECT_EQ(calls_of(loss), calls_of(expected) + (balances ? 2 : 0));
  expect_no_more(
      {{"all_gather",
        loss.contains("all_gather") ? loss.at("all_gather") : Sent()}},
      expected,
      "loss");
}

// All in one message.
void TpTraffic::check_gradients(
    const TrafficCase& each,
    const KindTraffic& ours,
    const KindTraffic& peer,
    int64_t layers) {
  EXPECT_LE(calls_of(ours), 1);
  double allowed =
      peer.contains("all_reduce") ? peer.at("all_reduce").bytes : 0;
  const int64_t biases = pending_biases(each, layers);
  allowed += one("all_reduce", biases, ranks()).at("all_reduce").bytes;
  expect_no_more(ours, {{"all_reduce", {1, allowed}}}, "pending gradients");
}

void TpTraffic::check(const TrafficCase& each) {
  SCOPED_TRACE(describe(each));
  // Layers of the MLP come in pairs.
  const int64_t more = each.model == "mlp" ? 4 : 3;
  const auto entries = run_step(each, 2, ranks());
  const auto ours = our_traffic(entries, ranks());
  const auto peer = peer_traffic(each, 2, ranks());
  const auto our_layer =
      our_traffic(run_step(each, more, ranks()), ranks()) - ours;
  const auto peer_layer = peer_traffic(each, more, ranks()) - peer;
  const auto experts = expert_traffic(each, ranks());

  expect_no_more(
      our_layer.forward,
      peer_layer.forward + experts.forward,
      "layer, forward");
  expect_no_more(
      our_layer.backward,
      peer_layer.backward + experts.backward,
      "layer, backward");
  expect_no_more(
      ours.forward, peer.forward + times(experts.forward, 2), "forward");
  expect_no_more(
      ours.backward,
      peer.backward + times(experts.backward, 2) +
          excess_backward(each, ranks()),
      "backward");
  check_loss(each, ours.loss);
  check_gradients(each, ours.gradients, peer.gradients, 2);
  // The message with the MLP's biases takes the place of one for the loss.
  const bool one_more = each.model == "mlp" && !each.loss_parallel;
  EXPECT_LE(
      calls_of(ours.all()),
      calls_of(peer.all()) + 2 * calls_of(experts.all()) + (one_more ? 1 : 0));
  expect_logits_stay(each, entries, ranks());
  if (ranks() == 2 && each.loss_parallel && each.length % 2 == 0) {
    print_layer(each, our_layer, peer_layer);
  }
}

TEST_P(TpTraffic, IsNoMoreThanPyTorchs) {
  const std::string name = std::get<0>(GetParam());
  TrafficCase each;
  each.tied = name == "gpt2" || name.ends_with("_tied");
  each.model = name.substr(0, name.find('_'));
  const bool images = each.model == "vit" || each.model == "mlp";
  for (const auto& run : stored_traffic()) {
    if (run.at("model") != each.model || run.at("tied") != each.tied ||
        run.at("ranks") != ranks() || run.at("layers") != 2) {
      continue;
    }
    each.sequence_parallel = run.at("sequence_parallel");
    each.loss_parallel = run.at("loss_parallel");
    each.recomputed = run.at("checkpoint");
    each.length = run.at("length");
    ASSERT_EQ(has_images(each), images);
    check(each);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    TpTraffic,
    ::testing::Combine(
        ::testing::Values(
            "llama",
            "llama_tied",
            "gpt2",
            "moe",
            "moe_tied",
            "vit",
            "mlp"),
        ::testing::Values(2, 3)),
    [](const auto& info) {
      return fmt::format(
          "{}On{}", std::get<0>(info.param), std::get<1>(info.param));
    });

// Keys that ranks share cost nothing on the way: only the gradients of their
// weights are pending.
TEST(TpTrafficOfSharedHeads, IsThatOfWholeHeads) {
  for (const int64_t ranks : {2, 3}) {
    for (const bool sequence : {false, true}) {
      TrafficCase each{
          .model = "llama",
          .sequence_parallel = sequence,
          .length = 6,
          .kv_heads = 1};
      SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, describe(each)));
      const auto ours = our_traffic(run_step(each, 2, ranks), ranks);
      const auto peer = peer_traffic(each, 2, ranks);
      expect_no_more(ours.forward, peer.forward, "forward");
      expect_no_more(ours.backward, peer.backward, "backward");
      EXPECT_EQ(calls_of(ours.gradients), 1);
      EXPECT_LE(calls_of(ours.all()), calls_of(peer.all()));
    }
  }
}

std::string order_of(const TrafficCase& each) {
  const auto entries = run_step(each, each.model == "mlp" ? 2 : 1, 2);
  std::string text = describe(each) + "\n";
  for (const auto& entry : entries.forward) {
    text += fmt::format("  forward {} {}\n", entry.op, entry.name);
  }
  for (const auto& entry : entries.backward) {
    text += fmt::format("  backward {} {}\n", entry.op, entry.name);
  }
  return text;
}

// Which collective comes first follows from a model's text: the one that
// compiled it, programs of one run send the same in the same order.
TEST(TpTrafficOrder, MatchesTheStoredOrderForEveryCompiler) {
  std::string order;
  for (const char* model : {"llama", "gpt2", "moe", "vit", "mlp"}) {
    const bool has_tokens =
        model != std::string_view("vit") && model != std::string_view("mlp");
    for (const bool sequence : {true, false}) {
      order += order_of(
          {.model = model,
           .sequence_parallel = sequence,
           .length = has_tokens ? 6 : 0});
    }
  }
  std::ifstream file(WEFT_TEST_INTEGRATION_FOLDER "/oracle/step_order.txt");
  const std::string stored(
      (std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(order, stored);
}

} // namespace
} // namespace weft::integration
