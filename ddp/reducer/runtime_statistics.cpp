#include "ddp/reducer/runtime_statistics.h"

#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

constexpr int64_t kAlwaysSampled = 10;

int64_t nanoseconds(RuntimeStatistics::Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

} // namespace

void RuntimeStatistics::set_sample_rate(int64_t every) {
  WEFT_CHECK(
      every >= 1,
      "ddp",
      mesh::ErrorContext{"of the runtime statistics"},
      "sample rate: got ",
      every,
      ", expected at least 1. It is the number of iterations between "
      "measurements.");
  every_ = every;
}

bool RuntimeStatistics::is_sampled() const {
  return is_open_ && (iteration_ <= kAlwaysSampled || iteration_ % every_ == 0);
}

bool RuntimeStatistics::on_forward_begin(Time now) {
  const bool was_sampled = finish_iteration();
  ++iteration_;
  is_open_ = true;
  events_ = {};
  events_[kForwardBegin] = now;
  return was_sampled;
}

void RuntimeStatistics::on_backward_begin(Time now) {
  events_[kBackwardBegin] = now;
}

void RuntimeStatistics::on_backward_compute_end(Time now) {
  events_[kBackwardComputeEnd] = now;
}

void RuntimeStatistics::on_comm_begin(Time now) {
  if (!events_[kCommBegin]) {
    events_[kCommBegin] = now;
  }
}

void RuntimeStatistics::on_comm_end(Time now) {
  events_[kCommEnd] = now;
}

void RuntimeStatistics::on_unused(
    const std::vector<size_t>& unused,
    int64_t bytes) {
  is_graph_the_same_ = is_graph_the_same_ && (!unused_ || *unused_ == unused);
  unused_ = unused;
  unused_bytes_ = bytes;
  ++backwards_;
}

void RuntimeStatistics::on_ready_order(const std::vector<size_t>& order) {
  ready_order_ = order;
}

void RuntimeStatistics::on_buckets_reduced(int64_t buckets) {
  buckets_reduced_ = buckets;
}

bool RuntimeStatistics::finish_iteration() {
  const bool counts = is_sampled();
  is_open_ = false;
  if (!counts) {
    return false;
  }
  sampled_iteration_ = iteration_;
  sampled_ = events_;
  add(forward_, kForwardBegin, kBackwardBegin);
  add(backward_, kBackwardBegin, kBackwardComputeEnd);
  add(comm_, kCommBegin, kCommEnd);
  add(overlap_, kCommBegin, kBackwardComputeEnd);
  return true;
}

void RuntimeStatistics::drop_iteration() {
  is_open_ = false;
}

// Records a time of 0 if an event is missing, e.g. a reduction with one rank,
// or too late, e.g. a reduction that began after all gradients.
void RuntimeStatistics::add(Span& span, Event begin, Event end) {
  span.last = 0;
  if (sampled_[begin] && sampled_[end] && *sampled_[end] >= *sampled_[begin]) {
    span.last = nanoseconds(*sampled_[end] - *sampled_[begin]);
    span.sum += span.last;
    ++span.count;
  }
}

void RuntimeStatistics::write_to(DDPLoggingData& data) const {
  const auto at = [this](Event event) {
    return sampled_[event] ? nanoseconds(sampled_[event]->time_since_epoch())
                           : 0;
  };
  data.iteration = sampled_iteration_;
  data.forward_compute_time = forward_.last;
  data.forward_compute_time_start = at(kForwardBegin);
  data.backward_compute_time = backward_.last;
  data.backward_compute_time_start = at(kBackwardBegin);
  data.backward_compute_time_end = at(kBackwardComputeEnd);
  data.backward_comm_time = comm_.last;
  data.backward_comm_time_start = at(kCommBegin);
  data.backward_comm_time_end = at(kCommEnd);
  data.backward_compute_comm_overlap_time = overlap_.last;
  data.avg_forward_compute_time = forward_.average();
  data.avg_backward_compute_time = backward_.average();
  data.avg_backward_comm_time = comm_.average();
  data.avg_backward_compute_comm_overlap_time = overlap_.average();
  data.unused_parameter_size = unused_bytes_;
  data.num_buckets_reduced = buckets_reduced_;
  data.prev_iteration_grad_ready_order_indices = ready_order_;
  data.can_set_static_graph = is_graph_the_same_ && backwards_ > 1;
}

} // namespace weft::ddp
