#include "mesh/backends/shm/shm_segment.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/error/error.h"

// Note [Who is alive]
// ~~~~~~~~~~~~~~~~~~~
// Every rank locks one byte of the memory through an open file description of
// its own. The kernel releases such a lock when the last descriptor of that
// description is closed, also when the process is killed, and tells every
// process that asks whether the lock is held. This needs no process IDs, which
// differ between containers, and no connection per pair of ranks.

namespace weft::mesh {
namespace {

constexpr const char* kKey = "socket";

std::string coming_key(int64_t rank) {
  return "coming/" + std::to_string(rank);
}
constexpr size_t kPage = 4096;
// The number of doorbell descriptors per message. unix_socket.cpp receives at
// most kMaxDescriptors.
constexpr size_t kBellsAMessage = 200;

size_t round_up(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

struct flock byte_of(int64_t rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

template <class T>
std::string bytes_of_value(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

template <class T>
T value_of_bytes(const std::string& bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), std::min(sizeof(value), bytes.size()));
  return value;
}

struct Hello {
  int64_t rank;
};

} // namespace

ShmDoorbell::ShmDoorbell()
    : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_.get() < 0) {
    throw_system_error("eventfd");
  }
}

void ShmDoorbell::wait(std::chrono::milliseconds at_most) const {
  pollfd poll{descriptor_.get(), POLLIN, 0};
  if (::poll(&poll, 1, static_cast<int>(at_most.count())) == 1) {
    uint64_t rings = 0;
    [[maybe_unused]] const auto read =
        ::read(descriptor_.get(), &rings, sizeof(rings));
  }
}

void ShmDoorbell::ring(int descriptor) {
  const uint64_t once = 1;
  [[maybe_unused]] const auto written =
      ::write(descriptor, &once, sizeof(once));
}

class ShmSegment::Mapping {
 public:
  static std::shared_ptr<Mapping> make(size_t bytes) {
    base::UniqueFd memory(
        static_cast<int>(::syscall(SYS_memfd_create, "weft", MFD_CLOEXEC)));
    if (memory.get() < 0) {
      throw_system_error("memfd_create");
    }
    if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) {
      throw_system_error("ftruncate");
    }
    return std::make_shared<Mapping>(std::move(memory), bytes);
  }

  Mapping(base::UniqueFd memory, size_t bytes)
      : memory_(std::move(memory)), bytes_(bytes) {
    void* at = ::mmap(
        nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
    if (at == MAP_FAILED) {
      throw_system_error("mmap");
    }
    begin_ = static_cast<std::byte*>(at);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(begin_, bytes_); }

  std::byte* begin() const { return begin_; }
  int descriptor() const { return memory_.get(); }

  /// Opens the memory again. The result is a new open file description with
  /// locks of its own.
  base::UniqueFd open_again() const {
    const auto path = "/proc/self/fd/" + std::to_string(memory_.get());
    base::UniqueFd result(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (result.get() < 0) {
      throw_system_error("opening the memory again");
    }
    return result;
  }

 private:
  base::UniqueFd memory_;
  size_t bytes_;
  std::byte* begin_ = nullptr;
};

namespace {

/// The mappings of groups that are connecting, by the name of their socket.
/// Ranks that are threads of the creating process take the mapping from here.
class ConnectingMappings {
 public:
  void add(
      const std::string& name,
      const std::shared_ptr<ShmSegment::Mapping>& mapping) {
    const std::lock_guard lock(mutex_);
    std::erase_if(
        mappings_, [](const auto& entry) { return entry.second.expired(); });
    mappings_[name] = mapping;
  }
  /// Returns null in other processes, and if the rank that created the mapping
  /// gave up.
  std::shared_ptr<ShmSegment::Mapping> find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = mappings_.find(name);
    return found == mappings_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<ShmSegment::Mapping>> mappings_;
};
ConnectingMappings connecting_mappings;

} // namespace

bool ShmSegment::is_supported() noexcept {
  try {
    const auto mapping = Mapping::make(kPage);
    mapping->begin()[0] = std::byte{1};
    const auto again = mapping->open_again();
    auto lock = byte_of(0);
    const ShmDoorbell doorbell;
    listen_unix(1);
    return ::fcntl(again.get(), F_OFD_SETLK, &lock) == 0;
  } catch (const std::exception&) {
    return false;
  }
}

ShmSegment::ShmSegment(
    const GroupMembers& members,
    const GroupRendezvous& rendezvous,
    size_t slot_bytes,
    const ShmDoorbell& own_doorbell)
    : own_(members.rank),
      size_(static_cast<int64_t>(members.ranks.size())),
      slot_bytes_(slot_bytes) {
  const auto ranks = static_cast<size_t>(size_);
  layout_.rank_bytes = round_up(ranks * sizeof(ShmRank));
  layout_.header_bytes =
      round_up(sizeof(ShmRoundHeader) + ranks * sizeof(uint64_t));
  layout_.slot_bytes = round_up(slot_bytes);
  layout_.total =
      layout_.rank_bytes +
      ranks * kShmSlots * (layout_.header_bytes + layout_.slot_bytes);
  if (own_ == 0) {
    create_segment(members, rendezvous, own_doorbell);
  } else {
    attach_segment(members, rendezvous, own_doorbell);
  }
}

ShmSegment::~ShmSegment() {
  if (memory_ != nullptr) {
    leave();
  }
}

// Runs on rank 0. Every other rank connects, sends its rank and its doorbell,
// receives the memory and all doorbells, and joins. Rank 0 releases the ranks
// when all have joined: then every rank holds its lock.
void ShmSegment::create_segment(
    const GroupMembers& members,
    const GroupRendezvous& rendezvous,
    const ShmDoorbell& own_doorbell) {
  const SocketLimit limit{
      std::chrono::steady_clock::now() + members.timeout,
      rendezvous.cancellation};
  mapping_ = Mapping::make(layout_.total);
  const auto listener = listen_unix(static_cast<int>(size_));
  connecting_mappings.add(listener.name, mapping_);
  rendezvous.store->set(
      kKey, std::vector<uint8_t>(listener.name.begin(), listener.name.end()));
  std::vector<base::UniqueFd> others;
  doorbells_.resize(static_cast<size_t>(size_));
  // Waits in the store until every rank has connected to the socket.
  std::vector<std::string> coming;
  for (int64_t i = 1; i < size_; ++i) {
    coming.push_back(coming_key(i));
  }
  rendezvous.store->wait(coming, members.timeout);
  for (int64_t i = 1; i < size_; ++i) {
    auto socket = accept_unix(listener, limit);
    auto message = receive_message(socket, limit);
    const auto hello = value_of_bytes<Hello>(message.bytes);
    if (hello.rank <= 0 || hello.rank >= size_ ||
        message.descriptors.size() != 1) {
      throw_error<CommError>(
          "[shared memory] a process that is not a rank of this group "
          "connected to its Unix socket. Start the run again.");
    }
    doorbells_[static_cast<size_t>(hello.rank)] =
        std::move(message.descriptors[0]);
    others.push_back(std::move(socket));
  }
  doorbells_[0] =
      base::UniqueFd(::fcntl(own_doorbell.descriptor(), F_DUPFD_CLOEXEC, 0));
  join();
  for (const auto& socket : others) {
    send_message(socket, "memory", {mapping_->descriptor()});
    for (size_t begin = 0; begin < doorbells_.size(); begin += kBellsAMessage) {
      std::vector<int> bells;
      const auto end = std::min(begin + kBellsAMessage, doorbells_.size());
      for (size_t r = begin; r < end; ++r) {
        bells.push_back(doorbells_[r].get());
      }
      send_message(socket, "bells", bells);
    }
  }
  for (const auto& socket : others) {
    receive_message(socket, limit);
  }
  for (const auto& socket : others) {
    send_message(socket, "go");
  }
}

void ShmSegment::attach_segment(
    const GroupMembers& members,
    const GroupRendezvous& rendezvous,
    const ShmDoorbell& own_doorbell) {
  const SocketLimit limit{
      std::chrono::steady_clock::now() + members.timeout,
      rendezvous.cancellation};
  rendezvous.store->wait({kKey}, members.timeout);
  const auto name = rendezvous.store->get_to_str(kKey);
  const auto socket = connect_unix(name);
  rendezvous.store->set(coming_key(own_), std::vector<uint8_t>{1});
  send_message(
      socket, bytes_of_value(Hello{own_}), {own_doorbell.descriptor()});
  auto message = receive_message(socket, limit);
  mapping_ = connecting_mappings.find(name);
  if (!mapping_) {
    mapping_ = std::make_shared<Mapping>(
        std::move(message.descriptors.at(0)), layout_.total);
  }
  while (doorbells_.size() < static_cast<size_t>(size_)) {
    auto bells = receive_message(socket, limit);
    std::ranges::move(bells.descriptors, std::back_inserter(doorbells_));
  }
  join();
  send_message(socket, "joined");
  receive_message(socket, limit);
}

void ShmSegment::join() {
  memory_ = mapping_->begin();
  lock_ = mapping_->open_again();
  auto lock = byte_of(own_);
  if (::fcntl(lock_.get(), F_OFD_SETLK, &lock) != 0) {
    throw_system_error("locking the own byte");
  }
}

ShmRank& ShmSegment::rank(int64_t r) const {
  // No constructor runs: new pages are zero, which is the initial value of the
  // control words.
  return *std::launder(reinterpret_cast<ShmRank*>(
      memory_ + static_cast<size_t>(r) * sizeof(ShmRank)));
}

ShmRoundHeader& ShmSegment::header(int64_t r, uint64_t round) const {
  return *std::launder(
      reinterpret_cast<ShmRoundHeader*>(slot(r, round) - layout_.header_bytes));
}

uint64_t* ShmSegment::bytes_for(int64_t r, uint64_t round) const {
  return std::launder(reinterpret_cast<uint64_t*>(
      slot(r, round) - layout_.header_bytes + sizeof(ShmRoundHeader)));
}

std::byte* ShmSegment::slot(int64_t r, uint64_t round) const {
  const auto index = static_cast<size_t>(r) * kShmSlots + round % kShmSlots;
  return memory_ + layout_.rank_bytes +
         index * (layout_.header_bytes + layout_.slot_bytes) +
         layout_.header_bytes;
}

void ShmSegment::ring_others() const {
  for (int64_t r = 0; r < size_; ++r) {
    if (r != own_ && rank(r).asleep.load() != 0) {
      ShmDoorbell::ring(doorbells_[static_cast<size_t>(r)].get());
    }
  }
}

int64_t ShmSegment::lost_rank() const {
  for (int64_t r = 0; r < size_; ++r) {
    if (r == own_) {
      continue;
    }
    auto lock = byte_of(r);
    if (rank(r).left.load() != 0 ||
        ::fcntl(lock_.get(), F_OFD_GETLK, &lock) != 0 ||
        lock.l_type == F_UNLCK) {
      return r;
    }
  }
  return -1;
}

bool ShmSegment::has_left_rank() const {
  for (int64_t r = 0; r < size_; ++r) {
    if (r != own_ && rank(r).left.load() != 0) {
      return true;
    }
  }
  return false;
}

void ShmSegment::leave() const {
  own().left.store(1);
  ring_others();
}

} // namespace weft::mesh
