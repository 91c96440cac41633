#include "cli/explain/memory_meter.h"

#include <algorithm>
#include <atomic>

namespace weft::cli {
namespace {

struct Counter {
  std::atomic<int64_t> live = 0;
  std::atomic<int64_t> peak = 0;

  void add(int64_t bytes) {
    const int64_t now = live += bytes;
    int64_t seen = peak;
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
  }
};

struct Allocation {
  std::shared_ptr<Counter> counter;
  int64_t bytes;
};

void release(void* context) {
  auto* allocation = static_cast<Allocation*>(context);
  allocation->counter->add(-allocation->bytes);
  delete allocation;
}

} // namespace

class MemoryMeter::CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const auto count = static_cast<int64_t>(bytes);
    counter->add(count);
    return {
        nullptr,
        new Allocation{counter, count},
        &release,
        c10::Device(c10::DeviceType::Meta)};
  }

  void copy_data(void* /*to*/, const void* /*from*/, size_t /*bytes*/)
      const override {}

  std::shared_ptr<Counter> counter = std::make_shared<Counter>();
};

MemoryMeter::MemoryMeter()
    : allocator_(std::make_unique<CountingAllocator>()),
      before_(c10::GetAllocator(c10::DeviceType::Meta)) {
  c10::SetAllocator(c10::DeviceType::Meta, allocator_.get());
}

MemoryMeter::~MemoryMeter() {
  c10::SetAllocator(c10::DeviceType::Meta, before_);
}

int64_t MemoryMeter::live_bytes() const {
  return allocator_->counter->live;
}

int64_t MemoryMeter::peak_bytes() const {
  return allocator_->counter->peak;
}

void MemoryMeter::reset_peak() {
  allocator_->counter->peak = allocator_->counter->live.load();
}

} // namespace weft::cli
