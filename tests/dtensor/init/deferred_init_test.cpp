#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/random/random.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/parameter_info.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::fake_line;
using dtensor::test::line;
using dtensor::test::local_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

using Make = std::function<at::Tensor()>;

at::Tensor deferred(const Make& make) {
  const DeferredInit scope;
  return make();
}

// What `make` gives inside the scope, materialized where it is to lie.
at::Tensor materialized(
    const Make& make,
    const mesh::DeviceMesh& mesh,
    Placement placement) {
  const auto tensor = deferred(make);
  set_placements(tensor, mesh, {placement});
  materialize_tensor(tensor, /*seed=*/7, "w");
  EXPECT_FALSE(is_deferred(tensor));
  return tensor;
}

at::Tensor multiplication_table() {
  const auto table = torch::zeros({5, 7});
  auto element = table.accessor<float, 2>();
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t j = 0; j < 7; ++j) {
      element[i][j] = static_cast<float>(i * j);
    }
  }
  return table;
}

at::Tensor rotary_table() {
  const auto frequency =
      1.0 / torch::pow(10000.0, torch::arange(0, 14, 2).to(at::kFloat) / 14);
  return torch::outer(torch::arange(5).to(at::kFloat), frequency).cos();
}

std::vector<std::pair<std::string, Make>> constants() {
  return {
      {"zeros",
       [] {
         return torch::zeros({5, 7});
       }},
      {"ones",
       [] {
         return torch::ones({5, 7});
       }},
      {"full",
       [] {
         return torch::full({5, 7}, 2.5);
       }},
      {"ones scaled",
       [] {
         return torch::ones({5, 7}).mul_(3).add_(1) / 4;
       }},
      {"constant_",
       [] {
         return torch::nn::init::constant_(torch::empty({5, 7}), 0.5);
       }},
      {"tensor of values",
       [] {
         return torch::tensor({{1.f, 2.f, 3.f}, {4.f, 5.f, 6.f}});
       }},
      {"arange",
       [] {
         return torch::arange(35).view({5, 7});
       }},
      {"eye",
       [] {
         return torch::nn::init::eye_(torch::empty({5, 7}));
       }},
      {"accessor", multiplication_table},
      {"rotary", rotary_table},
      {"bool mask",
       [] {
         return torch::ones({5, 7}, at::kBool).tril();
       }},
      {"from values",
       [] {
         const std::vector<double> values{1, 2, 3, 4, 5, 6};
         return torch::tensor(values, at::kDouble).view({2, 3});
       }},
  };
}

std::vector<std::pair<std::string, Make>> randoms() {
  return {
      {"uniform",
       [] {
         return torch::empty({5, 7}).uniform_(-1, 3);
       }},
      {"normal",
       [] {
         return torch::empty({5, 7}).normal_(0.5, 2);
       }},
      {"randn scaled",
       [] {
         return torch::randn({5, 7}) * 0.02;
       }},
      {"rand shifted",
       [] {
         return torch::rand({5, 7}).mul(2).sub(1);
       }},
      {"wide",
       [] {
         return torch::randn({3, 129});
       }},
      {"bfloat16",
       [] {
         return torch::randn({5, 7}, at::kBFloat16);
       }},
      {"double",
       [] {
         return torch::rand({5, 7}, at::kDouble);
       }},
      {"three dims",
       [] {
         return torch::randn({3, 5, 2});
       }},
      {"kaiming",
       [] {
         return torch::nn::init::kaiming_uniform_(torch::empty({5, 7}));
       }},
      {"xavier",
       [] {
         return torch::nn::init::xavier_normal_(torch::empty({5, 7}));
       }},
      {"fewer rows than ranks",
       [] {
         return torch::randn({2, 1});
       }},
  };
}

TEST(DeferredInit, ConstantsAreWhatTheyAreOutsideTheScope) {
  for (const int n : {1, 2, 3, 4}) {
    run_ranks(n, [](RankContext& self) {
      const auto mesh = line(self);
      for (const auto& [name, make] : constants()) {
        SCOPED_TRACE(name);
        const auto expected = make();
        for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
          const auto tensor = materialized(make, mesh, placement);
          EXPECT_EQ(tensor.strides(), expected.strides());
          EXPECT_TRUE(at::equal(full_tensor(tensor), expected))
              << placement.to_string() << "\n"
              << full_tensor(tensor) << expected;
        }
      }
    });
  }
}

TEST(DeferredInit, RandomValuesAreTheSameOnEveryMesh) {
  for (const int n : {1, 2, 3, 4}) {
    run_ranks(n, [](RankContext& self) {
      const auto mesh = line(self);
      const auto one = fake_line(0, 1);
      for (const auto& [name, make] : randoms()) {
        SCOPED_TRACE(name);
        const auto expected = full_tensor(materialized(make, one, Replicate()));
        EXPECT_GT(expected.to(at::kFloat).abs().sum().item<float>(), 0);
        for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
          EXPECT_TRUE(at::equal(
              full_tensor(materialized(make, mesh, placement)), expected))
              << placement.to_string();
        }
      }
    });
  }
}

TEST(DeferredInit, EachRankHoldsItsPartAlone) {
  for (const auto& placement : {Shard(0), Shard(1)}) {
    const auto tensor = materialized(
        [] {
          return torch::randn({8, 8});
        },
        fake_line(1, 4),
        placement);
    EXPECT_EQ(local_of(tensor).storage().nbytes(), 2 * 8 * sizeof(float));
    EXPECT_TRUE(local_of(tensor).is_contiguous());
  }
}

TEST(DeferredInit, SeedAndNameMakeTheValues) {
  const auto values = [](uint64_t seed, const std::string& name) {
    const auto tensor = deferred([] { return torch::randn({16}); });
    set_placements(tensor, fake_line(0, 1), {Replicate()});
    materialize_tensor(tensor, seed, name);
    return local_of(tensor);
  };
  EXPECT_TRUE(at::equal(values(1, "a"), values(1, "a")));
  EXPECT_FALSE(at::equal(values(1, "a"), values(2, "a")));
  EXPECT_FALSE(at::equal(values(1, "a"), values(1, "b")));
}

TEST(DeferredInit, ValuesHaveTheirDistribution) {
  const int64_t n = 1 << 20;
  const auto uniform = local_of(materialized(
      [&] { return torch::empty({n}).uniform_(-1, 3); },
      fake_line(0, 1),
      Replicate()));
  EXPECT_GE(uniform.min().item<float>(), -1);
  EXPECT_LE(uniform.max().item<float>(), 3);
  // Six standard errors.
  const double error = 6.0 / std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(uniform.mean().item<double>(), 1, 4 / std::sqrt(12.0) * error);
  EXPECT_NEAR(uniform.std().item<double>(), 4 / std::sqrt(12.0), error);
  const auto normal = local_of(materialized(
      [&] { return torch::empty({n}).normal_(0.5, 2); },
      fake_line(0, 1),
      Replicate()));
  EXPECT_NEAR(normal.mean().item<double>(), 0.5, 2 * error);
  EXPECT_NEAR(normal.std().item<double>(), 2, 2 * error);
  const auto standard = (normal - 0.5) / 2;
  EXPECT_NEAR(standard.pow(3).mean().item<double>(), 0, 4 * error);
  EXPECT_NEAR(standard.pow(4).mean().item<double>(), 3, 10 * error);
  const auto shifted = (standard.slice(0, 1) * standard.slice(0, 0, -1)).mean();
  EXPECT_NEAR(shifted.item<double>(), 0, error);
}

// ---- modules ----------------------------------------------------------------

struct ModelImpl : torch::nn::Module {
  ModelImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(10, 6))),
        padded(register_module(
            "padded",
            torch::nn::Embedding(
                torch::nn::EmbeddingOptions(9, 4).padding_idx(5)))),
        linear(register_module("linear", torch::nn::Linear(6, 10))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(
                torch::nn::LayerNormOptions(std::vector<int64_t>{6})))),
        scale(register_parameter("scale", torch::randn({3, 4}) * 0.02)),
        table(register_buffer("table", rotary_table())) {}

  torch::nn::Embedding embedding, padded;
  torch::nn::Linear linear;
  torch::nn::LayerNorm norm;
  at::Tensor scale, table;
};

std::map<std::string, at::Tensor> full_tensors(
    const mesh::DeviceMesh& mesh,
    Placement placement) {
  std::shared_ptr<ModelImpl> model;
  {
    const DeferredInit scope;
    model = std::make_shared<ModelImpl>();
  }
  std::map<std::string, at::Tensor> values;
  const auto place = [&](const auto& items) {
    for (const auto& item : items) {
      EXPECT_TRUE(is_dtensor(item.value())) << item.key();
      const bool fits =
          !placement.is_shard() || placement.tensor_dim() < item.value().dim();
      set_placements(item.value(), mesh, {fits ? placement : Replicate()});
    }
  };
  place(model->named_parameters());
  place(model->named_buffers());
  materialize(*model, /*seed=*/3);
  for (const auto& item : model->named_parameters()) {
    EXPECT_EQ(parameter_name(item.value()), item.key());
    EXPECT_TRUE(item.value().requires_grad());
    values[item.key()] = full_tensor(item.value()).detach();
  }
  values["table"] = full_tensor(model->table);
  return values;
}

TEST(DeferredInit, ModulesAreBornTheSameOnEveryMesh) {
  const auto expected = full_tensors(fake_line(0, 1), Replicate());
  EXPECT_TRUE(at::equal(expected.at("norm.weight"), at::ones({6})));
  EXPECT_TRUE(at::equal(expected.at("norm.bias"), at::zeros({6})));
  EXPECT_TRUE(at::equal(expected.at("table"), rotary_table()));
  EXPECT_TRUE(at::equal(expected.at("padded.weight")[5], at::zeros({4})));
  EXPECT_GT(expected.at("padded.weight")[4].abs().sum().item<float>(), 0);
  const auto bound = 1 / std::sqrt(6.0f);
  EXPECT_LE(expected.at("linear.weight").abs().max().item<float>(), bound);
  for (const int n : {2, 3, 4}) {
    run_ranks(n, [&](RankContext& self) {
      const auto mesh = line(self);
      for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
        for (const auto& [name, value] : full_tensors(mesh, placement)) {
          EXPECT_TRUE(at::equal(value, expected.at(name)))
              << name << " " << placement.to_string();
        }
      }
    });
  }
}

TEST(DeferredInit, ModulesChangeDtypeBeforeTheyHaveValues) {
  const auto make = [](at::ScalarType dtype, int64_t rank) {
    std::shared_ptr<torch::nn::LinearImpl> layer;
    {
      const DeferredInit scope;
      layer = std::make_shared<torch::nn::LinearImpl>(8, 6);
      layer->to(dtype);
    }
    set_placements(layer->weight, fake_line(rank, 2), {Shard(0)});
    set_placements(layer->bias, fake_line(rank, 2), {Replicate()});
    materialize(*layer, 3);
    return layer;
  };
  for (const int64_t rank : {0, 1}) {
    const auto single = make(at::kFloat, rank);
    const auto half = make(at::kBFloat16, rank);
    ASSERT_EQ(half->weight.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(half->weight.requires_grad());
    EXPECT_GT(local_of(half->weight).std().item<double>(), 0.05);
    for (const auto& [a, b] :
         {std::pair(half->weight, single->weight),
          std::pair(half->bias, single->bias)}) {
      EXPECT_TRUE(
          at::allclose(local_of(a).to(at::kFloat), local_of(b), 1e-2, 1e-3));
    }
  }
}

// Weights of a LayerNorm are constants, which are small, and so is a bias of
// zeros; a large one is not written before it is needed.
TEST(DeferredInit, ConstantsStayDeferredInAnotherDtype) {
  constexpr int64_t kLarge = int64_t{5} << 20;
  struct Constants : torch::nn::Module {
    explicit Constants(int64_t size)
        : ones(register_parameter("ones", torch::ones({size}))),
          zeros(register_parameter("zeros", at::zeros({4, 3}))),
          table(register_buffer("table", torch::arange(6, at::kFloat))) {}
    at::Tensor ones, zeros, table;
  };
  for (const int64_t size : {int64_t{6}, kLarge}) {
    std::shared_ptr<Constants> module;
    {
      const DeferredInit scope;
      module = std::make_shared<Constants>(size);
      // As torch::nn::Transformer makes its layers.
      module->zeros.set_data(module->zeros.clone());
      module->to(at::kDouble);
    }
    for (const auto& parameter : module->parameters()) {
      EXPECT_TRUE(is_deferred(parameter));
    }
    materialize(*module, 1);
    EXPECT_TRUE(
        at::equal(local_of(module->ones), at::ones({size}, at::kDouble)));
    EXPECT_TRUE(
        at::equal(local_of(module->zeros), at::zeros({4, 3}, at::kDouble)));
    EXPECT_TRUE(at::equal(local_of(module->table), at::arange(6, at::kDouble)));
  }
}

// Meta stands for a device: it has constants, but no random numbers.
TEST(DeferredInit, ValuesAreBornOnTheDeviceThatIsAskedFor) {
  std::shared_ptr<torch::nn::LayerNormImpl> norm;
  {
    const DeferredInit scope;
    norm = std::make_shared<torch::nn::LayerNormImpl>(
        torch::nn::LayerNormOptions({6}));
    norm->register_buffer("table", torch::arange(6, torch::kFloat));
  }
  set_placements(norm->weight, fake_line(1, 2), {Shard(0)});
  const c10::Device there(at::kMeta);
  materialize(*norm, 3, there);
  for (const auto& tensor :
       {norm->weight, norm->bias, norm->named_buffers()["table"]}) {
    EXPECT_EQ(tensor.device(), there);
    EXPECT_EQ(local_of(tensor).device(), there);
    EXPECT_FALSE(tensor.key_set().has(c10::DispatchKey::AutocastCPU));
    EXPECT_FALSE(is_deferred(tensor));
  }
  EXPECT_TRUE(norm->weight.requires_grad());
  EXPECT_EQ(local_of(norm->weight).sizes(), c10::IntArrayRef({3}));
}

TEST(DeferredInit, TiedParametersStayOneTensor) {
  torch::nn::Linear a{nullptr};
  torch::nn::Linear b{nullptr};
  {
    const DeferredInit scope;
    a = torch::nn::Linear(torch::nn::LinearOptions(4, 6).bias(false));
    b = torch::nn::Linear(torch::nn::LinearOptions(4, 6).bias(false));
    b->weight = a->weight;
  }
  torch::nn::Sequential both(a);
  set_placements(a->weight, fake_line(1, 2), {Shard(0)});
  materialize(*both, 1);
  EXPECT_TRUE(b->weight.is_same(a->weight));
  EXPECT_FALSE(is_deferred(b->weight));
  EXPECT_EQ(local_of(b->weight).size(0), 3);
}

// ---- every module of libtorch's ---------------------------------------------

using MakeModule = std::function<std::shared_ptr<torch::nn::Module>()>;

template <class M, class... Arguments>
std::pair<std::string, MakeModule> module(
    std::string name,
    Arguments... arguments) {
  return {std::move(name), [arguments...] { return M(arguments...).ptr(); }};
}

// Constants made in the ways that constructors have to make them.
struct TablesImpl : torch::nn::Module {
  TablesImpl() {
    const float values[] = {1, 2, 3, 4, 5, 6};
    add("blob", torch::from_blob(const_cast<float*>(values), {2, 3}).clone());
    add("vector", torch::tensor(std::vector<float>{1, 2, 3}));
    add("nested", torch::tensor({{1., 2.}, {3., 4.}}));
    add("scalar", torch::tensor(1.5));
    add("accessor", multiplication_table());
    auto rates = torch::linspace(0, 0.1, 5);
    std::vector<double> read;
    for (int64_t i = 0; i < 5; ++i) {
      read.push_back(rates[i].item<double>());
    }
    add("read", torch::tensor(read));
    auto written = torch::zeros({4, 3});
    written.index_put_({1}, torch::ones({3}));
    written.slice(0, 2).fill_(7);
    add("written", written);
    register_buffer("tied", written);
    add("positions", torch::arange(6).expand({1, -1}));
  }

  void add(const std::string& name, const at::Tensor& tensor) {
    register_buffer(name, tensor);
  }
};
TORCH_MODULE(Tables);

std::vector<std::pair<std::string, MakeModule>> every_module() {
  using namespace torch::nn; // NOLINT
  return {
      module<Linear>("Linear", 6, 5),
      module<Bilinear>("Bilinear", 5, 4, 3),
      module<LayerNorm>("LayerNorm", LayerNormOptions({6})),
      module<GroupNorm>("GroupNorm", GroupNormOptions(2, 6)),
      module<InstanceNorm2d>(
          "InstanceNorm2d",
          InstanceNorm2dOptions(4).affine(true).track_running_stats(true)),
      module<BatchNorm1d>("BatchNorm1d", 5),
      module<BatchNorm2d>("BatchNorm2d", 5),
      module<BatchNorm3d>("BatchNorm3d", 5),
      module<Conv1d>("Conv1d", Conv1dOptions(4, 5, 3)),
      module<Conv2d>("Conv2d", Conv2dOptions(4, 6, 3).groups(2)),
      module<Conv3d>("Conv3d", Conv3dOptions(2, 3, 2)),
      module<ConvTranspose1d>(
          "ConvTranspose1d", ConvTranspose1dOptions(4, 5, 3)),
      module<ConvTranspose2d>(
          "ConvTranspose2d", ConvTranspose2dOptions(4, 5, 3)),
      module<ConvTranspose3d>(
          "ConvTranspose3d", ConvTranspose3dOptions(2, 3, 2)),
      module<Embedding>("Embedding", EmbeddingOptions(7, 5).padding_idx(2)),
      module<EmbeddingBag>("EmbeddingBag", 7, 5),
      module<LSTM>("LSTM", LSTMOptions(6, 5).num_layers(2).bidirectional(true)),
      module<LSTM>("ProjectedLSTM", LSTMOptions(6, 5).proj_size(3)),
      module<GRU>("GRU", 6, 5),
      module<RNN>("RNN", 6, 5),
      module<LSTMCell>("LSTMCell", 6, 5),
      module<GRUCell>("GRUCell", 6, 5),
      module<RNNCell>("RNNCell", 6, 5),
      module<MultiheadAttention>(
          "MultiheadAttention",
          MultiheadAttentionOptions(8, 2).add_bias_kv(true).kdim(5).vdim(6)),
      module<TransformerEncoderLayer>("TransformerEncoderLayer", 8, 2),
      module<TransformerDecoderLayer>("TransformerDecoderLayer", 8, 2),
      module<Transformer>(
          "Transformer", TransformerOptions(8, 2, 2, 2).dim_feedforward(9)),
      module<PReLU>("PReLU", PReLUOptions().num_parameters(5)),
      module<AdaptiveLogSoftmaxWithLoss>(
          "AdaptiveLogSoftmaxWithLoss",
          AdaptiveLogSoftmaxWithLossOptions(8, 20, {5, 10})),
      module<CrossEntropyLoss>("CrossEntropyLoss"),
      module<Tables>("Tables"),
  };
}

// Rank `rank`'s parts of all parameters and buffers.
std::map<std::string, at::Tensor>
parts_of(const MakeModule& make, int64_t rank, int64_t size) {
  std::shared_ptr<torch::nn::Module> module;
  {
    const DeferredInit scope;
    module = make();
  }
  std::map<std::string, at::Tensor> all;
  for (const auto& items :
       {module->named_parameters(), module->named_buffers()}) {
    for (const auto& item : items) {
      EXPECT_TRUE(is_dtensor(item.value())) << item.key();
      all[item.key()] = item.value();
    }
  }
  const auto mesh = fake_line(rank, size);
  for (const auto& [name, tensor] : all) {
    set_placements(
        tensor,
        mesh,
        {tensor.dim() > 0 ? Shard(tensor.dim() - 1) : Replicate()});
  }
  materialize(*module, 3);
  for (auto& [name, tensor] : all) {
    EXPECT_FALSE(is_deferred(tensor)) << name;
    tensor = local_of(tensor);
  }
  return all;
}

TEST(DeferredInit, EveryModuleOfLibtorchsIsBornTheSameInParts) {
  for (const auto& [module_name, make] : every_module()) {
    SCOPED_TRACE(module_name);
    const auto whole = parts_of(make, 0, 1);
    const auto first = parts_of(make, 0, 2);
    const auto second = parts_of(make, 1, 2);
    for (const auto& [name, expected] : whole) {
      const auto actual = expected.dim() == 0
                              ? first.at(name)
                              : at::cat({first.at(name), second.at(name)}, -1);
      EXPECT_TRUE(at::equal(actual, expected)) << name;
      EXPECT_FALSE(
          expected.is_floating_point() && expected.isnan().any().item<bool>())
          << name;
    }
  }
}

TEST(DeferredInit, BuffersHaveTheValuesThatTheyHaveOutsideTheScope) {
  const auto parts = parts_of([] { return Tables().ptr(); }, 0, 1);
  for (const auto& item : Tables()->named_buffers()) {
    EXPECT_TRUE(at::equal(parts.at(item.key()), item.value())) << item.key();
  }
}

TEST(DeferredInit, ClonesHaveTheSameValues) {
  at::Tensor x;
  at::Tensor clone;
  at::Tensor other;
  {
    const DeferredInit scope;
    x = torch::randn({4, 3});
    clone = x.clone() * 2;
    other = x.clone().uniform_(0, 1);
  }
  const auto mesh = fake_line(0, 1);
  for (const auto& [tensor, name] :
       {std::pair(x, "x"), std::pair(clone, "clone"), std::pair(other, "o")}) {
    set_placements(tensor, mesh, {Replicate()});
    materialize_tensor(tensor, 1, name);
  }
  EXPECT_TRUE(at::equal(local_of(clone), local_of(x) * 2));
  EXPECT_GE(local_of(other).min().item<float>(), 0);
}

// ---- what cannot be done before materialize ---------------------------------

TEST(DeferredInit, UseBeforeMaterializeIsAnErrorThatNamesTheTensor) {
  const auto mesh = fake_line(0, 2);
  const auto weight = deferred([] { return torch::randn({4, 6}); });
  const auto plain_use = [&] {
    return message_of_thrown<c10::ValueError>([&] { weight.exp(); });
  };
  EXPECT_THAT(
      plain_use(), AllOf(HasSubstr("[4, 6]"), HasSubstr("materialize()")));
  set_placements(weight, mesh, {Shard(0)});
  parameter_info(weight).fqn = "layers.0.weight";
  const auto x = test::distributed(at::ones({2, 6}), mesh, {Replicate()});
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { weight.exp(); },
           [&] { torch::linear(x, weight); },
           [&] { to_local(weight); },
           [&] { full_tensor(weight); },
           [&] { redistribute(weight, {Replicate()}); }}) {
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(use),
        AllOf(
            HasSubstr("\"layers.0.weight\""),
            HasSubstr("[4, 6]"),
            HasSubstr("weft::dtensor::materialize")));
  }
}

TEST(DeferredInit, OtherRandomInitialisationsAreRefused) {
  for (const auto& make : std::vector<Make>{
           [] { return torch::empty({4}).bernoulli_(0.5); },
           [] { return torch::randint(0, 5, {4}); },
           [] { return torch::randperm(4); },
           [] { return torch::empty({4}).exponential_(); }}) {
    EXPECT_THAT(
        message_of_thrown<c10::Error>([&] { deferred(make); }),
        HasSubstr("uniform_"));
  }
}

TEST(DeferredInit, AnotherMeshIsRefused) {
  const auto tensor = deferred([] { return torch::randn({4}); });
  set_placements(tensor, fake_line(0, 2), {Shard(0)});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { set_placements(tensor, fake_line(0, 4), {Shard(0)}); }),
      HasSubstr("is on another mesh than tp=4"));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { set_placements(at::ones({4}), fake_line(0, 4), {Shard(0)}); }),
      HasSubstr("DeferredInit"));
}

TEST(DeferredInit, TensorsOutsideTheScopeAreOrdinary) {
  deferred([] { return torch::ones({2}); });
  EXPECT_FALSE(is_dtensor(torch::ones({2})));
}

// ---- memory -----------------------------------------------------------------

int64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("VmRSS:")) {
      return std::stoll(line.substr(6)) * 1024;
    }
  }
  return 0;
}

TEST(DeferredInit, NoRankHoldsTheWhole) {
  const int64_t rows = 1 << 15; // 8 GiB.
  const int64_t before = resident_bytes();
  ASSERT_GT(before, 0);
  const auto weight = deferred([&] {
    return torch::randn({rows, 1 << 16}).mul_(0.5);
  });
  const auto zeros = deferred([&] { return torch::zeros({rows, 1 << 16}); });
  EXPECT_LT(resident_bytes() - before, 64 << 20);
  for (const auto& tensor : {weight, zeros}) {
    set_placements(tensor, fake_line(1023, 1024), {Shard(0)});
    materialize_tensor(tensor, 1, "w");
  }
  EXPECT_LT(resident_bytes() - before, 128 << 20);
  EXPECT_EQ(local_of(weight).size(0), 32);
  EXPECT_EQ(local_of(weight).storage().nbytes(), 32 * (1 << 16) * 4);
  EXPECT_NEAR(local_of(weight).std().item<double>(), 0.5, 0.01);
  EXPECT_EQ(local_of(zeros).abs().sum().item<float>(), 0);
}

} // namespace
} // namespace weft::dtensor
