#include "parallel/sent_messages.h"

#include <algorithm>

namespace braid {
namespace {

/// Key of a forward or of the dgrad of a backward. Weight gradients send no messages.
uint64_t job_key(const Job& job) {
  return uint64_t{static_cast<uint32_t>(job.microbatch)} << 32 |
         uint64_t{static_cast<uint32_t>(job.virtual_stage)} << 1 |
         (job.kind == JobKind::kForward ? 0 : 1);
}

}  // namespace

SentMessages::SentMessages(const ScheduleOptions& options) : options_(options) {
  check_schedule(options);
}

SentMessages::Peer& SentMessages::peer(int rank) {
  const auto [found, is_new] = peers_.try_emplace(rank);
  if (is_new) {
    uint32_t position = 0;
    for (const Job& job : make_schedule(options_, rank)) {
      if (job.kind != JobKind::kWgrad) {
        found->second.positions.emplace(job_key(job), position);
      }
      ++position;
    }
  }
  return found->second;
}

void SentMessages::add(int rank, const Job& job, BufferId buffer) {
  Peer& to = peer(rank);
  to.on_the_way.push_back({to.positions.at(job_key(job)), buffer});
}

std::vector<BufferId> SentMessages::take_arrived(int rank, const Job& job) {
  Peer& from = peer(rank);
  const uint32_t position = from.positions.at(job_key(job));
  std::vector<BufferId> arrived;
  for (const Message& message : from.on_the_way) {
    if (message.position <= position) {
      arrived.push_back(message.buffer);
    }
  }
  std::erase_if(from.on_the_way,
                [&](const Message& message) { return message.position <= position; });
  return arrived;
}

}  // namespace braid
