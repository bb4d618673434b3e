#include "trace/call_sequences.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/op.h"

namespace braid {
namespace {

std::string list_of(const std::vector<int>& ranks) {
  std::vector<std::string> texts;
  for (const int rank : ranks) {
    texts.push_back(std::to_string(rank));
  }
  return join(texts, ", ");
}

TimelineSequence messages_of(const Program& program, const OpSpec& spec, const Group& group) {
  const auto attributes = attributes_of<MessageAttributes>(spec);
  const auto peer = static_cast<size_t>(attributes.peer);
  check(peer < group.ranks.size(), "op {} has peer {} in a group of {}", spec.op, peer,
        group.ranks.size());
  std::vector<int> ends{program.rank, group.ranks[peer]};
  if (communicates_as(spec, CommOp::kRecv)) {
    std::swap(ends[0], ends[1]);
  }
  std::string name = fmt::format("{} messages of ranks {}, channel {}", group.name, list_of(ends),
                                 attributes.channel);
  return {.name = std::move(name), .ranks = std::move(ends), .messages = true};
}

std::optional<TimelineSequence> sequence_of(const Program& program, const OpSpec& spec) {
  if (find_op(spec.op).op_class != OpClass::kCommunication) {
    return std::nullopt;
  }
  const std::optional<GroupId> id = group_of(program, spec);
  check(id.has_value(), "{} communicates in none of the {} groups", spec.op, program.groups.size());
  const Group& group = program.groups[id->index()];
  if (group.ranks.size() < 2) {
    return std::nullopt;
  }
  if (is_message(spec)) {
    return messages_of(program, spec, group);
  }
  return TimelineSequence{.name = fmt::format("{} of ranks {}", group.name, list_of(group.ranks)),
                          .ranks = group.ranks};
}

}  // namespace

CallSequences::CallSequences(const Program& program) : places_(program.tasks.size()) {
  constexpr uint32_t kNone = TimelineTask::kNoSequence;
  std::vector<std::optional<uint32_t>> of_spec(program.specs.size());
  std::map<std::string, uint32_t> by_name;
  std::vector<uint32_t> num_calls;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    std::optional<uint32_t>& sequence = of_spec[task.spec.index()];
    if (!sequence) {
      sequence = kNone;
      if (std::optional<TimelineSequence> found = sequence_of(program, program.spec(task))) {
        const auto next = static_cast<uint32_t>(sequences_.size());
        const auto [entry, is_new] = by_name.emplace(found->name, next);
        if (is_new) {
          sequences_.push_back(*std::move(found));
          num_calls.push_back(0);
        }
        sequence = entry->second;
      }
    }
    if (*sequence != kNone) {
      places_[i] = {*sequence, num_calls[*sequence]++};
    }
  }
}

}  // namespace braid
