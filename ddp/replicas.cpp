#include "ddp/replicas.h"

#include <algorithm>
#include <sstream>
#include <string>

#include <torch/torch.h>

#include "dtensor/dtensor_impl.h"
#include "mesh/error.h"
#include "mesh/exchange.h"

namespace weft::ddp {
namespace {

/// How much a broadcast packs into one message. Unit: bytes.
constexpr int64_t kBroadcastBytes = int64_t{250} << 20;

std::string describe(const char* kind, const NamedTensor& item) {
  std::ostringstream out;
  out << kind << ' ' << item.name << ' ' << item.tensor.sizes() << ' '
      << c10::toString(item.tensor.scalar_type());
  const auto local = local_part(item.tensor);
  if (!local.is_contiguous()) {
    out << " strides " << local.strides();
  }
  if (const auto* impl = dtensor::dtensor_impl(item.tensor)) {
    if (impl->spec().mesh_ndim() > 0) {
      out << ' ' << impl->spec().to_string() << " local " << local.sizes();
    }
  }
  out << " on " << c10::DeviceTypeName(local.device().type(), true)
      << (item.tensor.requires_grad() ? "" : " frozen");
  return out.str();
}

/// A line a parameter and buffer.
std::vector<std::string> describe_all(
    const std::vector<NamedTensor>& parameters,
    const std::vector<NamedTensor>& buffers) {
  std::vector<std::string> lines;
  for (const auto& item : parameters) {
    lines.push_back(describe("parameter", item));
  }
  for (const auto& item : buffers) {
    lines.push_back(describe("buffer", item));
  }
  return lines;
}

// FNV-1a: the same on every host, which std::hash need not be.
int64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return static_cast<int64_t>(hash);
}

std::string join(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) {
    text += line + '\n';
  }
  return text;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

at::Tensor
gather_number(int64_t number, const mesh::DeviceMesh& dp, c10::Device device) {
  const auto input = at::full({1}, number, at::kLong).to(device);
  const auto output = at::empty({dp.size()}, input.options());
  dp.group(int64_t{0}).all_gather(output, input, "ddp replicas").wait();
  return output.cpu();
}

std::string line_or_nothing(
    const std::vector<std::string>& lines,
    size_t index) {
  return index < lines.size()
             ? lines[index]
             : "nothing (it has " + std::to_string(lines.size()) +
                   " parameters and buffers)";
}

[[noreturn]] void throw_difference(
    const std::vector<std::string>& texts,
    const mesh::DeviceMesh& dp) {
  const auto& ranks = dp.group(int64_t{0}).ranks();
  const auto first = split(texts[0]);
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) {
      continue;
    }
    const auto other = split(texts[rank]);
    size_t i = 0;
    while (i < first.size() && i < other.size() && first[i] == other[i]) {
      ++i;
    }
    mesh::throw_error<mesh::DisagreementError>(mesh::detail::concat(
        "[ddp] the model differs between replicas. Entry ",
        i,
        ": rank ",
        ranks[0],
        " has ",
        line_or_nothing(first, i),
        ", rank ",
        ranks[rank],
        " has ",
        line_or_nothing(other, i),
        ". Build the same model on every rank. (",
        dp.describe_rank(),
        ")"));
  }
  TORCH_INTERNAL_ASSERT(false, "hashes differ and texts do not");
}

} // namespace

void check_replicas_agree(
    const std::vector<NamedTensor>& parameters,
    const std::vector<NamedTensor>& buffers,
    const mesh::DeviceMesh& dp) {
  // In an imagined world there is nobody to compare with.
  if (dp.size() == 1 || dp.group(int64_t{0}).backend() == "fake") {
    return;
  }
  const auto device = local_part(parameters.at(0).tensor).device();
  const auto text = join(describe_all(parameters, buffers));
  const auto hashes = gather_number(hash_of(text), dp, device);
  if (!at::equal(hashes, hashes[0].expand_as(hashes))) {
    throw_difference(
        mesh::all_gather_text(
            dp.group(int64_t{0}), text, "ddp replicas", device),
        dp);
  }
}

void broadcast_from_first(
    const std::vector<NamedTensor>& tensors,
    const mesh::DeviceMesh& dp,
    std::string_view name) {
  if (dp.size() == 1) {
    return;
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> message;
  int64_t bytes = 0;
  const auto send = [&] {
    if (!message.empty()) {
      dp.group(int64_t{0}).broadcast_coalesced(message, 0, name).wait();
    }
    message.clear();
    bytes = 0;
  };
  for (const auto& item : tensors) {
    auto local = local_part(item.tensor);
    if (bytes > 0 &&
        bytes + static_cast<int64_t>(local.nbytes()) > kBroadcastBytes) {
      send();
    }
    bytes += static_cast<int64_t>(local.nbytes());
    message.push_back(std::move(local));
    // What a DTensor remembers of its old values must not be used again.
    if (auto* impl = dtensor::dtensor_impl(item.tensor)) {
      impl->bump_version();
    }
  }
  send();
}

} // namespace weft::ddp
