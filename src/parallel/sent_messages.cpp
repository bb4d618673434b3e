#include "parallel/sent_messages.h"

#include <algorithm>

#include "parallel/pipeline_times.h"

namespace braid {
namespace {

/// Key of a forward or of the dgrad of a backward. Weight gradients send no messages.
uint64_t job_key(const Job& job) {
  return uint64_t{static_cast<uint32_t>(job.microbatch)} << 32 |
         uint64_t{static_cast<uint32_t>(job.virtual_stage)} << 1 |
         (job.kind == JobKind::kForward ? 0 : 1);
}

std::unordered_map<uint64_t, int64_t> positions_of(const Schedule& schedule) {
  std::unordered_map<uint64_t, int64_t> positions;
  int64_t position = 0;
  for (const Job& job : schedule) {
    if (job.kind != JobKind::kWgrad) {
      positions.emplace(job_key(job), position);
    }
    ++position;
  }
  return positions;
}

}  // namespace

SentMessages::SentMessages(const ScheduleOptions& options, int rank) {
  check_schedule(options);
  const std::vector<Schedule> schedules = make_schedules(options);
  const PipelineClock clock(options, schedules);
  positions_ = positions_of(schedules[static_cast<size_t>(rank)]);
  for (int stage = 0; stage + 1 < options.num_stages(); ++stage) {
    const int ends[] = {place_of(options, stage).rank, place_of(options, stage + 1).rank};
    for (const int peer : ends) {
      const bool is_beside = peer != rank && (ends[0] == rank || ends[1] == rank);
      if (is_beside && !peers_.contains(peer)) {
        peers_.emplace(peer, Peer{.positions = positions_of(schedules[static_cast<size_t>(peer)]),
                                  .begun = clock.known_begun(rank, peer)});
      }
    }
  }
}

void SentMessages::add(int peer, const Job& job, BufferId buffer) {
  on_the_way_.push_back({peer, peers_.at(peer).positions.at(job_key(job)), buffer});
}

std::vector<BufferId> SentMessages::take_arrived(const Job& job) {
  const auto position = static_cast<size_t>(positions_.at(job_key(job)));
  const auto has_arrived = [&](const Message& message) {
    return message.position < peers_.at(message.peer).begun[position];
  };
  std::vector<BufferId> arrived;
  for (const Message& message : on_the_way_) {
    if (has_arrived(message)) {
      arrived.push_back(message.buffer);
    }
  }
  std::erase_if(on_the_way_, has_arrived);
  return arrived;
}

}  // namespace braid
