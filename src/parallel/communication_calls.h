#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/program.h"

namespace braid {

enum class CallKind : uint8_t { kCollective, kSend, kRecv };

/// Maps strings to dense integer ids.
class StringTable {
 public:
  uint32_t intern(const std::string& text);
  const std::string& operator[](uint32_t id) const { return texts_[id]; }

 private:
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<std::string> texts_;
};

/// Everything about a program that affects other ranks.
struct ProgramCalls {
  static constexpr uint32_t kNone = UINT32_MAX;

  /// Calls that match calls of other ranks in order: the collectives of one group, or the messages
  /// of one group, direction, peer and channel.
  struct Sequence {
    uint32_t group = 0;  ///< index into `groups`
    CallKind kind = CallKind::kCollective;
    int64_t peer = -1;            ///< messages: group member at the other end
    int64_t channel = -1;         ///< messages: the channel; -1: all channels
    std::vector<uint32_t> calls;  ///< indices into `calls`, in program order
  };
  /// A task that communicates. `form` is the id of op, attributes, dtypes and shapes. Matching
  /// calls must have equal forms.
  struct Call {
    TaskId task;
    uint32_t sequence = 0;
    uint32_t form = 0;
  };
  /// A task that communicates, records or waits.
  struct Step {
    uint32_t task = 0;
    uint32_t call = kNone;
  };
  /// A group in which the program communicates.
  struct UsedGroup {
    GroupId group;
    bool has_messages = false;
  };

  const Program* program = nullptr;
  std::vector<UsedGroup> groups;
  std::vector<Sequence> sequences;
  std::vector<Call> calls;                 ///< in program order
  std::vector<std::vector<Step>> streams;  ///< by stream, in program order
  std::vector<uint32_t> sites;  ///< by site of the program: id in the table shared by all programs
  std::vector<uint32_t> recorder;  ///< by event: the task that records it, or kNone

  const Group& group_of(const Sequence& sequence) const {
    return program->groups[groups[sequence.group].group.index()];
  }
  const Sequence& sequence_of(const Call& call) const { return sequences[call.sequence]; }
};

/// Which messages from one rank to another form a sequence.
enum class MessageOrder : uint8_t {
  kPerChannel,  ///< the messages of one channel; this is how messages are matched
  kPerPair,     ///< all messages, for transports without channels; the channel is then part of a
                ///< call's form
};

/// Finds the communication calls of a program. All programs of a step share `forms` and `sites`.
/// Appends one line per fault to `faults`: a group or member does not exist, a shape does not fit
/// the group size, or no task records an event.
ProgramCalls find_calls(const Program& program, MessageOrder order, StringTable& forms,
                        StringTable& sites, std::vector<std::string>& faults);

/// Appends one line to `faults` per sequence whose calls are not ordered by streams and events.
void check_call_order(const ProgramCalls& calls, std::vector<std::string>& faults);

/// Names a call in messages: "task 7 (all_reduce layers.3 mb=0)".
std::string describe_call(const Program& program, TaskId task);

}  // namespace braid
