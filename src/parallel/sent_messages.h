#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "ir/program.h"
#include "parallel/schedule.h"

namespace braid {

/// Tracks the messages that a pipeline rank has sent, and when it knows that they have arrived. A
/// receiver takes a message before it runs the job that reads it. When a rank receives the result
/// of a job, all jobs that had to run before that job, on any rank, have taken their messages:
/// those of the peer that made it, and those that it learned of in the same way. Waiting for these
/// sends then blocks nothing, under any schedule. In an interleaved schedule a message thus counts
/// as arrived once its microbatch has been through the other ranks.
class SentMessages {
 public:
  /// Of pipeline rank `rank`. Throws ConfigError as `check_schedule`.
  SentMessages(const ScheduleOptions& options, int rank);

  /// Records that the message in `buffer` goes to `job` of pipeline rank `peer`, which has a stage
  /// beside one of this rank's.
  void add(int peer, const Job& job, BufferId buffer);
  /// Call when `job` of this rank has what it reads. Returns the buffers that have arrived by then,
  /// each once, in the order in which they were sent.
  std::vector<BufferId> take_arrived(const Job& job);

 private:
  struct Message {
    int peer = 0;
    int64_t position = 0;  ///< of the job that reads it, in the peer's schedule
    BufferId buffer;
  };
  struct Peer {
    std::unordered_map<uint64_t, int64_t> positions;  // by job, see job_key
    std::vector<int64_t> begun;  // by position of this rank's job: PipelineClock::known_begun
  };

  std::unordered_map<uint64_t, int64_t> positions_;  // by job of this rank
  std::map<int, Peer> peers_;
  std::vector<Message> on_the_way_;
};

}  // namespace braid
