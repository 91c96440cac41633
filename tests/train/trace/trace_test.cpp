#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtensor/nn/clip_grad.h"
#include "tests/config/fixtures.h"
#include "tests/support/run_ranks.h"
#include "train/setup/load_recipe.h"
#include "train/setup/loss.h"
#include "train/setup/train_job.h"
#include "train/setup/validate.h"
#include "train/trace/op_spans.h"
#include "train/trace/step_tracer.h"

namespace weft::train {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;

TEST(TraceSpan, RecordsItsLifetime) {
  TraceRecorder recorder;
  {
    const TraceSpan outer(&recorder, "forward");
    const TraceSpan inner(&recorder, "part", "op");
  }
  const auto events = recorder.take();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].name, "part") << "ends first";
  EXPECT_STREQ(events[1].category, "phase");
  EXPECT_LE(events[1].start_ns, events[0].start_ns);
  EXPECT_LE(events[0].end_ns, events[1].end_ns);
  EXPECT_TRUE(recorder.take().empty());
}

TEST(TraceSpan, IsNothingWithoutARecorder) {
  TraceRecorder recorder;
  {
    const TraceSpan outer(&recorder, "step");
    const TraceSpan span(nullptr, "forward");
  }
  const auto events = recorder.take();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].name, "step");
  EXPECT_EQ(recorder.dropped(), 0);
}

TEST(TraceRecorder, CountsWhatIsTooMuch) {
  TraceRecorder recorder(2);
  for (int i = 0; i < 5; ++i) {
    recorder.add({});
  }
  EXPECT_EQ(recorder.take().size(), 2U);
  EXPECT_EQ(recorder.dropped(), 3);
}

TEST(TraceRecorder, GivesEachThreadATrack) {
  TraceRecorder recorder;
  EXPECT_EQ(recorder.track(), 0);
  int64_t other = -1;
  std::thread([&] { other = recorder.track(); }).join();
  EXPECT_EQ(other, 1);
  EXPECT_EQ(recorder.track(), 0);
}

TEST(OpSpans, HoldForwardAndBackwardOfTheirThreadAlone) {
  auto recorder = std::make_shared<TraceRecorder>();
  {
    const OpSpans ops(recorder);
    std::thread([] { torch::zeros({7}).exp(); }).join();
    const auto x = torch::ones({2, 3}, torch::requires_grad());
    x.sin().sum().backward();
  }
  torch::zeros({7}).tan();
  std::map<std::string, TraceEvent> by_name;
  for (auto& event : recorder->take()) {
    by_name[event.name] = event;
  }
  EXPECT_FALSE(by_name.contains("aten::exp"));
  EXPECT_FALSE(by_name.contains("aten::tan"));
  ASSERT_TRUE(by_name.contains("aten::sin"));
  EXPECT_EQ(by_name["aten::sin"].details, R"({"inputs":"[2, 3]"})");
  EXPECT_STREQ(by_name["aten::sin"].category, "op");
  ASSERT_TRUE(by_name.contains("SinBackward0"));
  EXPECT_STREQ(by_name["SinBackward0"].category, "backward");
}

mesh::FlightRecorderEntry
entry(const char* name, int64_t start_ns, int64_t end_ns) {
  mesh::FlightRecorderEntry entry;
  entry.op = "all_reduce";
  entry.name = name;
  entry.bytes = 16;
  entry.start_ns = start_ns;
  entry.end_ns = end_ns;
  return entry;
}

TEST(RankTrace, CollectivesThatOverlapLieSideBySide) {
  RankTrace trace;
  const std::vector<mesh::FlightRecorderEntry> entries = {
      entry("a", 0, 100),
      entry("b", 10, 50),
      entry("", 60, 70),
      entry("d", 100, 110)};
  add_collectives(trace, "dp/0", 7, entries);
  ASSERT_EQ(trace.events.size(), 4U);
  EXPECT_EQ(trace.events[0].name, "all_reduce a");
  EXPECT_EQ(trace.events[2].name, "all_reduce");
  EXPECT_EQ(trace.events[0].track, 7);
  EXPECT_EQ(trace.events[1].track, 8);
  EXPECT_EQ(trace.events[2].track, 8);
  EXPECT_EQ(trace.events[3].track, 7);
  EXPECT_EQ(trace.tracks.at(7), "dp/0");
  EXPECT_EQ(trace.tracks.at(8), "dp/0 (2)");
}

TEST(ChromeJson, IsWhatTheFormatAsksFor) {
  RankTrace trace;
  trace.rank = 3;
  trace.title = "rank 3 (dp=1)";
  trace.tracks = {{0, "compute"}};
  trace.events = {
      {"inner \"x\"\n\xff", "op", 1'000'002'000, 1'000'002'001, 0, ""},
      {"outer", "phase", 1'000'001'007, 1'000'009'000, 0, R"({"a":1})"}};
  const auto data = json::parse(to_chrome_json(trace));
  const auto& events = data["traceEvents"];
  ASSERT_EQ(events.size(), 6U);
  EXPECT_EQ(events[0]["args"]["name"], "rank 3 (dp=1)");
  EXPECT_EQ(events[2]["args"]["name"], "compute");
  EXPECT_EQ(events[4]["name"], "outer") << "parents come first";
  EXPECT_EQ(events[4]["ts"], 1'000'001.007);
  EXPECT_EQ(events[4]["dur"], 7.993);
  EXPECT_EQ(events[4]["args"]["a"], 1);
  EXPECT_EQ(events[5]["name"], "inner \"x\"\n\xef\xbf\xbd");
  EXPECT_EQ(events[5]["pid"], 3);
  EXPECT_EQ(events[5]["ph"], "X");
}

TEST(MergeChromeJson, LeavesOutWhatCannotBeRead) {
  const fixtures::TempFolder folder;
  RankTrace trace;
  trace.events = {{"a", "op", 1000, 2000, 0, ""}};
  const auto text = to_chrome_json(trace);
  trace.rank = 1;
  const std::vector<std::string> paths = {
      folder.write("rank0.json", text),
      folder / "rank1.json",
      folder.write("rank2.json", text.substr(0, text.size() - 4)),
      folder.write("rank3.json", to_chrome_json(trace))};
  std::vector<std::string> problems;
  const auto data = json::parse(merge_chrome_json(paths, problems));
  EXPECT_EQ(data["traceEvents"].size(), 6U);
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_THAT(problems[0], HasSubstr("rank1.json: No such file"));
  EXPECT_THAT(problems[1], HasSubstr("rank2.json: is not a complete trace"));
  EXPECT_EQ(data["otherData"]["notes"].size(), 2U);
}

TEST(MergeChromeJson, MovesTheClocksOfOtherHosts) {
  const fixtures::TempFolder folder;
  const auto write = [&](const char* name, const char* host, int64_t offset) {
    return folder.write(
        name,
        fmt::format(
            R"({{"otherData":{{"host":"{}","clock_offset_ns":{}}},)"
            "\"traceEvents\":[\n"
            R"({{"ph":"X","name":"x","ts":5.0,"dur":1.0}})"
            "\n]}}\n",
            host,
            offset));
  };
  const std::vector<std::string> paths = {
      write("0", "a", 100'000),
      write("1", "a", 900'000),
      write("2", "b", 107'000)};
  std::vector<std::string> problems;
  const auto data = json::parse(merge_chrome_json(paths, problems));
  EXPECT_EQ(data["traceEvents"][1]["ts"], 5.0) << "the same clock";
  EXPECT_EQ(data["traceEvents"][2]["ts"], 12.0) << "7 us later";
}

config::Recipe tiny_recipe(const std::string& folder) {
  auto recipe = parse_recipe(
      "mesh: {dp: 2, tp: 2}\n"
      "model: {dim: 16, layers: 2, heads: 2, ffn_dim: 24}\n"
      "data: {paths: [text.txt], sequence_length: 8}\n"
      "trace: {first_step: 2, steps: 2}\n",
      "test");
  recipe.output_dir = folder;
  validate(recipe, 4);
  return recipe;
}

// What the trainer does, with a tracer; gives what rank 0 is told.
std::string
train(test::RankContext& self, const config::Recipe& recipe, int steps) {
  auto job = make_train_job(recipe, self.mesh({2, 2}, {"dp", "tp"}));
  StepTracer tracer(
      recipe.trace, recipe.output_dir, self.world, job.mesh, *job.model);
  const auto tokens = torch::arange(16).view({2, 8});
  std::string message;
  for (int step = 1; step <= steps; ++step) {
    tracer.begin_step(step);
    at::Tensor loss;
    {
      const auto span = tracer.span("forward");
      loss = token_loss((*job.ddp)(tokens), tokens, 32);
    }
    {
      const auto span = tracer.span("backward");
      loss.backward();
    }
    {
      const auto span = tracer.span("optimizer");
      dtensor::clip_grad_norm_(job.model->parameters(), 1.0);
      job.optimizer->step();
      job.optimizer->zero_grad();
    }
    message += tracer.end_step(step);
  }
  return message + tracer.finish();
}

struct Span {
  std::string name;
  std::string category;
  double start;
  double end;
  std::string parameter;
};

// The spans of each track, which must nest.
using Tracks = std::map<std::pair<int64_t, int64_t>, std::vector<Span>>;

Tracks tracks_of(const json& data) {
  Tracks tracks;
  for (const auto& event : data["traceEvents"]) {
    if (event["ph"] == "X") {
      const double start = event["ts"];
      tracks[{event["pid"], event["tid"]}].push_back(
          {event["name"],
           event["cat"],
           start,
           start + event["dur"].get<double>(),
           event.value("args", json::object()).value("parameter", "")});
    }
  }
  return tracks;
}

void expect_nested(const std::vector<Span>& spans) {
  constexpr double kRounding = 1e-2; // of a sum of doubles; unit: us
  std::vector<const Span*> open;
  for (const auto& span : spans) {
    while (!open.empty() && open.back()->end <= span.start + kRounding) {
      open.pop_back();
    }
    if (!open.empty()) {
      ASSERT_GE(span.start + kRounding, open.back()->start) << span.name;
      ASSERT_LE(span.end, open.back()->end + kRounding)
          << span.name << " in " << open.back()->name;
    }
    open.push_back(&span);
  }
}

TEST(StepTracer, TracesTheChosenStepsOfEveryRank) {
  const fixtures::TempFolder folder;
  const auto recipe = tiny_recipe(folder.path());
  std::mutex mutex;
  std::map<int64_t, std::string> messages;
  test::run_ranks(4, [&](test::RankContext& self) {
    const auto message = train(self, recipe, 4);
    const std::lock_guard lock(mutex);
    messages[self.rank] = message;
  });
  EXPECT_THAT(messages[0], HasSubstr("trace of steps 2 to 3: "));
  EXPECT_THAT(messages[0], Not(HasSubstr("missing")));
  EXPECT_EQ(messages[1] + messages[2] + messages[3], "");

  const auto data = json::parse(fixtures::read_text(folder / "trace.json"));
  std::map<int64_t, std::set<std::string>> names;
  std::map<int64_t, std::map<std::string, int>> categories;
  for (const auto& [track, spans] : tracks_of(data)) {
    expect_nested(spans);
    for (const auto& span : spans) {
      names[track.first].insert(span.name);
      names[track.first].insert(span.name + " " + span.parameter);
      ++categories[track.first][span.category];
    }
  }
  ASSERT_EQ(names.size(), 4U);
  for (const auto& [rank, own] : names) {
    for (const auto* name :
         {"step 2",
          "step 3",
          "forward",
          "backward",
          "optimizer",
          "model",
          "model.layers.0",
          "model.layers.1.self_attn",
          "model.layers.1.mlp",
          "LlamaForCausalLM",
          "aten::matmul model.layers.1.self_attn.q_proj.weight",
          "aten::rms_norm model.norm.weight",
          "autograd::engine::evaluate_function: LinearBackward"}) {
      EXPECT_THAT(own, Contains(name)) << rank;
    }
    EXPECT_FALSE(own.contains("step 1") || own.contains("step 4"));
    EXPECT_EQ(categories[rank]["step"], 2);
    EXPECT_EQ(categories[rank]["module"], 2 * 8)
        << "the whole, model, twice a block with attention and MLP";
    EXPECT_GT(categories[rank]["collective"], 8);
    EXPECT_GT(categories[rank]["backward"], 20);
    EXPECT_EQ(
        json::parse(fixtures::read_text(
            folder /
            fmt::format(
                "trace/rank{}.json", rank)))["traceEvents"][0]["args"]["name"],
        fmt::format("rank {} (dp={} tp={})", rank, rank / 2, rank % 2));
  }
}

TEST(StepTracer, ARunThatEndsEarlyLeavesWhatThereIs) {
  const fixtures::TempFolder folder;
  const auto recipe = tiny_recipe(folder.path());
  std::mutex mutex;
  std::string said;
  test::run_ranks(4, [&](test::RankContext& self) {
    const auto message = train(self, recipe, 2);
    const std::lock_guard lock(mutex);
    said += message;
  });
  EXPECT_THAT(said, HasSubstr("trace of steps 2 to 2: "));
}

TEST(StepTracer, SaysThatNothingWasTraced) {
  const fixtures::TempFolder folder;
  auto recipe = tiny_recipe(folder.path());
  recipe.trace.first_step = 9;
  test::run_ranks(4, [&](test::RankContext& self) {
    EXPECT_THAT(train(self, recipe, 1), HasSubstr("no step was traced: "));
  });
  EXPECT_FALSE(std::filesystem::exists(folder / "trace.json"));
}

TEST(StepTracer, OffLeavesNoMark) {
  const fixtures::TempFolder folder;
  auto recipe = tiny_recipe(folder.path());
  recipe.trace.steps = 0;
  test::run_ranks(4, [&](test::RankContext& self) {
    EXPECT_EQ(train(self, recipe, 2), "");
    EXPECT_FALSE(at::hasThreadLocalCallbacks());
  });
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(StepTracer, AFolderThatCannotBeWrittenDoesNotEndTheRun) {
  const fixtures::TempFolder folder;
  const auto recipe = tiny_recipe(folder.write("file", "x"));
  test::run_ranks(4, [&](test::RankContext& self) {
    const auto message = train(self, recipe, 3);
    if (self.rank == 0) {
      EXPECT_THAT(message, HasSubstr("Not a directory"));
    }
  });
}

} // namespace
} // namespace weft::train
