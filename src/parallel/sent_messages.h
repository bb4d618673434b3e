#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ir/program.h"
#include "parallel/schedule.h"

namespace braid {

/// Tracks the messages that a pipeline rank has sent, and when it knows that they have arrived. A
/// receiver takes a message before it runs the job that reads it. A rank that receives the result
/// of a peer's job therefore knows that the peer has taken all messages for that job and for
/// earlier jobs. Waiting for these sends then blocks nothing, under any schedule.
class SentMessages {
 public:
  /// Throws ConfigError as `check_schedule`.
  explicit SentMessages(const ScheduleOptions& options);

  /// Records that the message in `buffer` goes to `job` of pipeline rank `rank`.
  void add(int rank, const Job& job, BufferId buffer);
  /// Call when the result of `job` of that rank has been received. Returns the buffers that the
  /// peer has taken by then, each once, in the order in which they were sent.
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
