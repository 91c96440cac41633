// The precompiled header of the library, its programs and its tests: what many
// sources include, and what each of them would otherwise instantiate again.
//
// With -fpch-instantiate-templates, clang instantiates in a precompiled header
// the templates that the headers use. Virtual members of class templates are
// the exception: they count as used at the end of each source, which then
// instantiates a hundred of libtorch's in 1.4 s. Those of a local class count
// as used at once, inherited ones too (Sema::MarkVTableUsed in clang).
// Therefore each class below is the base of a local class. None of these
// functions is called, and none gets into an object file. GCC's precompiled
// header keeps no instantiations.
#pragma once

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#ifdef __clang__
namespace weft::precompiled {

template <class Base>
void use_virtual_members_of() {
  struct Local : Base {
    explicit Local(const Base& other) : Base(other) {}
  };
  static_cast<void>(sizeof(Local));
}

template <class... Bases>
void use_virtual_members() {
  (use_virtual_members_of<Bases>(), ...);
}

// These cannot be copied, and have a pure virtual member.
template <class Type>
void use_virtual_members_of_jit_type() {
  struct Local : Type {
    Local() : Type(nullptr) {}
    std::string str() const override { return {}; }
  };
  static_cast<void>(sizeof(Local));
}

template <c10::TypeKind Kind, class Type>
using JitType = c10::SingleElementType<Kind, Type>;

inline void use_libtorch() {
  namespace nn = torch::nn;
  use_virtual_members<
      nn::AdaptiveLogSoftmaxWithLossImpl,
      nn::BilinearImpl,
      nn::Cloneable<nn::ModuleDictImpl>,
      nn::Cloneable<nn::SequentialImpl>,
      nn::Conv1dImpl,
      nn::Conv2dImpl,
      nn::Conv3dImpl,
      nn::ConvNdImpl<1, nn::ConvTranspose1dImpl>,
      nn::ConvNdImpl<2, nn::ConvTranspose2dImpl>,
      nn::ConvNdImpl<3, nn::ConvTranspose3dImpl>,
      nn::ConvTranspose1dImpl,
      nn::ConvTranspose2dImpl,
      nn::ConvTranspose3dImpl,
      nn::CrossMapLRN2dImpl,
      nn::EmbeddingBagImpl,
      nn::EmbeddingImpl,
      nn::FoldImpl,
      nn::FractionalMaxPool2dImpl,
      nn::FractionalMaxPool3dImpl,
      nn::GRUCellImpl,
      nn::GRUImpl,
      nn::GroupNormImpl,
      nn::LSTMCellImpl,
      nn::LSTMImpl,
      nn::LayerNormImpl,
      nn::LinearImpl,
      nn::LocalResponseNormImpl,
      nn::LogSoftmaxImpl,
      nn::ModuleDictImpl,
      nn::MultiheadAttentionImpl,
      nn::ParameterDictImpl,
      nn::RNNCellImpl,
      nn::RNNImpl,
      nn::SequentialImpl,
      nn::SoftmaxImpl,
      nn::SoftminImpl,
      nn::ThresholdImpl,
      nn::TransformerDecoderImpl,
      nn::TransformerDecoderLayerImpl,
      nn::TransformerEncoderImpl,
      nn::TransformerEncoderLayerImpl,
      nn::UnflattenImpl,
      nn::UnfoldImpl>();
  namespace optim = torch::optim;
  use_virtual_members<
      optim::AdagradOptions,
      optim::AdagradParamState,
      optim::AdamOptions,
      optim::AdamParamState,
      optim::AdamWOptions,
      optim::AdamWParamState,
      optim::LBFGSOptions,
      optim::LBFGSParamState,
      optim::RMSpropOptions,
      optim::RMSpropParamState,
      optim::SGDOptions,
      optim::SGDParamState>();
  namespace datasets = torch::data::datasets;
  use_virtual_members<datasets::MNIST, datasets::TensorDataset>();
  namespace jit = torch::jit;
  use_virtual_members<
      jit::ComplexAttr,
      jit::ComplexValsAttr,
      jit::FloatAttr,
      jit::FloatsAttr,
      jit::IntAttr,
      jit::IntsAttr,
      jit::StringAttr,
      jit::StringsAttr,
      jit::TensorsAttr,
      jit::TypesAttr>();
  use_virtual_members_of_jit_type<
      JitType<c10::TypeKind::AwaitType, c10::AwaitType>>();
  use_virtual_members_of_jit_type<
      JitType<c10::TypeKind::FutureType, c10::FutureType>>();
  use_virtual_members_of_jit_type<
      JitType<c10::TypeKind::ListType, c10::ListType>>();
  use_virtual_members_of_jit_type<
      JitType<c10::TypeKind::RRefType, c10::RRefType>>();
}

template <class Json>
void use_json(Json& json) {
  json = Json::parse(std::string());
  json = Json::parse(std::string_view());
  json = {
      {"string", std::string()},
      {"integer", 1},
      {"signed", std::int64_t{1}},
      {"unsigned", std::uint64_t{1}},
      {"float", 1.0},
      {"bool", true},
      {"null", nullptr},
      {"value", json}};
  json[std::string()] = json["string"];
  json.push_back(json.dump());
  static_cast<void>(json.contains("string"));
  static_cast<void>(json.at("string").template get<std::string>());
  static_cast<void>(json.value("string", std::string()));
  static_cast<void>(json.at("integer").template get<int>());
  static_cast<void>(json.at("signed").template get<std::int64_t>());
  static_cast<void>(json.at("float").template get<double>());
  static_cast<void>(json.at("bool").template get<bool>());
  for (const auto& [key, value] : json.items()) {
    static_cast<void>(key.size() == value.size());
  }
  static_cast<void>(json.find("string") == json.end());
  static_cast<void>(json == Json::array());
}

inline void use_json_texts(
    nlohmann::json& sorted,
    nlohmann::ordered_json& ordered) {
  use_json(sorted);
  use_json(ordered);
}

} // namespace weft::precompiled
#endif
