#include "mesh/communicator/exchange.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "base/fnv.h"
#include "base/string_streams.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

std::vector<int64_t> all_gather_sizes(
    Communicator& group,
    size_t size,
    std::string_view name,
    c10::Device device) {
  const auto input =
      at::full({1}, static_cast<int64_t>(size), at::kLong).to(device);
  const auto output = at::empty({group.size()}, input.options());
  group.all_gather(output, input, name).wait();
  const auto sizes = output.cpu();
  const auto* data = sizes.const_data_ptr<int64_t>();
  return {data, data + sizes.numel()};
}

std::string hash_of(const std::string& text) {
  return std::to_string(base::fnv1a(text));
}

std::string join(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) {
    text.append(line).append("\n");
  }
  return text;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  base::StringReader in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::string line_or_nothing(
    const std::vector<std::string>& lines,
    size_t index) {
  return index < lines.size()
             ? lines[index]
             : detail::concat("nothing (it has ", lines.size(), " entries)");
}

std::string difference_between(
    const std::vector<std::string>& texts,
    const std::vector<int64_t>& ranks,
    const MismatchMessage& message) {
  const auto first = split(texts[0]);
  size_t rank = 1;
  while (rank + 1 < texts.size() && texts[rank] == texts[0]) {
    ++rank;
  }
  const auto other = split(texts[rank]);
  size_t i = 0;
  while (i < first.size() && i < other.size() && first[i] == other[i]) {
    ++i;
  }
  return detail::concat(
      "[",
      message.op,
      "] ",
      message.what,
      " differs between ranks. Entry ",
      i,
      ": rank ",
      ranks[0],
      " has ",
      line_or_nothing(first, i),
      ", rank ",
      ranks[rank],
      " has ",
      line_or_nothing(other, i),
      ". ",
      message.hint,
      " (",
      message.where,
      ")");
}

} // namespace

std::string describe_difference(
    const std::vector<std::string>& texts,
    const MismatchMessage& message) {
  std::vector<int64_t> ranks(texts.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return difference_between(texts, ranks, message);
}

void check_lines_match(
    Communicator& group,
    const std::vector<std::string>& lines,
    const MismatchMessage& message,
    c10::Device device) {
  const auto text = join(lines);
  const auto hashes = all_gather_text(group, hash_of(text), message.op, device);
  for (const auto& hash : hashes) {
    if (hash != hashes.front()) {
      throw_error<DisagreementError>(difference_between(
          all_gather_text(group, text, message.op, device),
          group.ranks(),
          message));
    }
  }
}

std::vector<std::string> all_gather_text(
    Communicator& group,
    const std::string& text,
    std::string_view name,
    c10::Device device) {
  if (group.size() == 1 || group.backend() == "fake") {
    return std::vector<std::string>(group.size(), text);
  }
  const auto bytes = at::TensorOptions(at::kByte).device(device);
  std::vector<at::Tensor> outputs;
  for (const int64_t size :
       all_gather_sizes(group, text.size(), name, device)) {
    outputs.push_back(at::empty({size}, bytes));
  }
  const auto input = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), input.mutable_data_ptr<uint8_t>());
  group.all_gather_uneven(outputs, input.to(device), name).wait();
  std::vector<std::string> texts;
  for (const auto& output : outputs) {
    const auto local = output.cpu();
    const auto* data = local.const_data_ptr<uint8_t>();
    texts.emplace_back(data, data + local.numel());
  }
  return texts;
}

at::Tensor gather_numbers(
    Communicator& group,
    const std::vector<int64_t>& own,
    c10::Device device,
    std::string_view name) {
  const auto row = at::tensor(own, at::kLong);
  if (group.size() == 1 || group.backend() == "fake") {
    return row.unsqueeze(0);
  }
  const auto input = row.to(device);
  const auto output = at::empty({group.size(), input.numel()}, input.options());
  group.all_gather(output, input, name).wait();
  return output.cpu();
}

} // namespace weft::mesh
