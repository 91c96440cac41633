#include "data/text_corpus.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace weft::data {
namespace {

int open_unchanged(const DataFile& file, int64_t offset) {
  const int fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    refuse_data(file.path, offset, std::strerror(errno));
  }
  struct stat status {};
  const bool known = ::fstat(fd, &status) == 0;
  const int64_t modified_ns =
      status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec;
  if (known && status.st_size == file.size_bytes &&
      modified_ns == file.modified_ns) {
    return fd;
  }
  ::close(fd);
  refuse_data(
      file.path,
      offset,
      fmt::format(
          "the file changed after the run started: it had {} bytes then and "
          "has {} now",
          file.size_bytes,
          status.st_size));
}

} // namespace

// A cache of file descriptors, which closes the least recently used one.
class TextCorpus::OpenFiles {
 public:
  OpenFiles() = default;
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;

  ~OpenFiles() {
    for (const Slot& slot : slots_) {
      if (slot.fd >= 0) {
        ::close(slot.fd);
      }
    }
  }

  int get(size_t index, const DataFile& file, int64_t offset) {
    ++clock_;
    const auto found =
        std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
          return slot.fd >= 0 && slot.index == index;
        });
    if (found != slots_.end()) {
      found->used = clock_;
      return found->fd;
    }
    const int fd = open_unchanged(file, offset);
    const auto oldest = std::min_element(
        slots_.begin(), slots_.end(), [](const Slot& a, const Slot& b) {
          return a.used < b.used;
        });
    if (oldest->fd >= 0) {
      ::close(oldest->fd);
    }
    *oldest = {.index = index, .fd = fd, .used = clock_};
    return fd;
  }

 private:
  struct Slot {
    size_t index = 0;
    int fd = -1;
    int64_t used = 0;
  };

  std::array<Slot, 32> slots_;
  int64_t clock_ = 0;
};

TextCorpus::TextCorpus(
    const std::vector<std::string>& paths,
    const std::string& where)
    : files_(find_files(paths, where)),
      open_files_(std::make_unique<OpenFiles>()) {
  int64_t end = 0;
  ends_.reserve(files_.size());
  for (const DataFile& file : files_) {
    end += file.size_bytes;
    ends_.push_back(end);
  }
  if (files_.empty()) {
    mesh::throw_error<mesh::UsageError>(where + ": all files are empty");
  }
}

TextCorpus::TextCorpus(TextCorpus&&) noexcept = default;
TextCorpus& TextCorpus::operator=(TextCorpus&&) noexcept = default;
TextCorpus::~TextCorpus() = default;

int64_t TextCorpus::size() const {
  return ends_.back();
}

std::span<const DataFile> TextCorpus::files() const {
  return files_;
}

void TextCorpus::read(int64_t offset, std::span<uint8_t> out) {
  const auto length = static_cast<int64_t>(out.size());
  if (offset < 0 || offset > size() - length) {
    mesh::throw_error<c10::ValueError>(fmt::format(
        "[read] got offset {} and length {}, expected a range within the {} "
        "bytes of the data.",
        offset,
        length,
        size()));
  }
  auto index = static_cast<size_t>(
      std::upper_bound(ends_.begin(), ends_.end(), offset) - ends_.begin());
  while (!out.empty()) {
    const int64_t in_file = offset - (ends_[index] - files_[index].size_bytes);
    const auto part = static_cast<size_t>(std::min<int64_t>(
        static_cast<int64_t>(out.size()), files_[index].size_bytes - in_file));
    read_file(index, in_file, out.first(part));
    out = out.subspan(part);
    offset += static_cast<int64_t>(part);
    ++index;
  }
}

void TextCorpus::read_file(
    size_t index,
    int64_t offset,
    std::span<uint8_t> out) {
  const DataFile& file = files_[index];
  const int fd = open_files_->get(index, file, offset);
  while (!out.empty()) {
    const ssize_t count = ::pread(fd, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      refuse_data(file.path, offset, std::strerror(errno));
    }
    if (count == 0) {
      refuse_data(
          file.path,
          offset,
          fmt::format(
              "the file ends here, but it had {} bytes when the run started",
              file.size_bytes));
    }
    out = out.subspan(static_cast<size_t>(count));
    offset += count;
  }
}

uint64_t TextCorpus::fingerprint() const {
  return data::fingerprint(files_);
}

std::string TextCorpus::fingerprint_text() const {
  return fmt::format("{:016x}", fingerprint());
}

} // namespace weft::data
