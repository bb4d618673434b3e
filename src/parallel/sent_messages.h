#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ir/program.h"
#include "parallel/schedule.h"

namespace braid {

/// What a pipeline rank has sent to others, and when it knows that it has arrived. The receiver
/// takes a message before it does the job that reads it; so whoever receives what a job of that
/// rank has made knows that all messages to that job and to those in front of it have been taken.
/// To wait for these then holds up nobody, under any schedule.
class SentMessages {
 public:
  /// Throws ConfigError as `check_schedule`.
  explicit SentMessages(const ScheduleOptions& options);

  /// A message goes to `job` of rank `rank` of the pipeline.
  void add(int rank, const Job& job, BufferId buffer);
  /// The result of `job` of that rank has been received: buffers that it has taken by then, each
  /// returned once, in the order in which they were sent.
  std::vector<BufferId> take_arrived(int rank, const Job& job);

 private:
  struct Message {
    uint32_t position = 0;  ///< of the job that reads it, in the peer's schedule
    BufferId buffer;
  };
  struct Peer {
    std::unordered_map<uint64_t, uint32_t> positions;  // by job, see job_key
    std::vector<Message> on_the_way;
  };

  Peer& peer(int rank);

  ScheduleOptions options_;
  std::unordered_map<int, Peer> peers_;
};

}  // namespace braid
