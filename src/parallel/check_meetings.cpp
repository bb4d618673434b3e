#include <algorithm>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "base/errors.h"
#include "ops/op.h"
#include "parallel/rank_calls.h"

namespace braid {
namespace {

using End = RankCalls::End;
using Meeting = RankCalls::Meeting;

/// What matching calls have in common besides their form. For messages this is only the microbatch:
/// stage and place in the model differ between sender and receiver.
struct Place {
  int phase = -1;
  int32_t microbatch = -1;
  int32_t virtual_stage = -1;
  int32_t layer = -1;
  uint32_t site = UINT32_MAX;
  int64_t first_elem = 0;  // tells the pieces of a call apart that has been cut

  friend bool operator==(const Place&, const Place&) = default;
};

struct PlaceHash {
  size_t operator()(const Place& place) const {
    size_t hash = 0;
    for (const int64_t part :
         {int64_t{place.phase}, int64_t{place.microbatch}, int64_t{place.virtual_stage},
          int64_t{place.layer}, int64_t{place.site}, place.first_elem}) {
      hash = (hash ^ static_cast<size_t>(part)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

/// The first element of the data of all ranks. 0 for a shift, where ranks pass on different blocks.
int64_t first_elem_of(const Program& program, const Task& task) {
  const Communication* const communication = communication_of(program.spec(task));
  const auto ranges = program.operands_of(task);
  if (communication == nullptr || communication->op == CommOp::kRingShift || ranges.empty()) {
    return 0;
  }
  return (communication->shape == CommShape::kGather ? ranges.back() : ranges.front()).begin;
}

class MeetingChecker {
 public:
  MeetingChecker(const RankCalls& calls, const Meeting& meeting, const StringTable& forms)
      : calls_(calls), meeting_(meeting), forms_(forms) {}

  /// Returns what differs between the first end and another one; nullopt if they match.
  std::optional<std::string> fault(size_t other) const {
    const End& a = meeting_.ends.front();
    const End& b = meeting_.ends[other];
    if (calls_.calls_at(a).size() != calls_.calls_at(b).size()) {
      return missing_call(a, b);
    }
    const size_t num_calls = calls_.calls_at(a).size();
    for (size_t i = 0; i < num_calls; ++i) {
      if (form(a, i) != form(b, i)) {
        return fmt::format("{}: {} has {}, but {} has {}", where(i), name(a, i), forms_[form(a, i)],
                           name(b, i), forms_[form(b, i)]);
      }
    }
    return swapped_calls(a, b);
  }

 private:
  const ProgramCalls::Call& call(const End& end, size_t i) const {
    return calls_.calls_of(end.rank_class).calls[calls_.calls_at(end)[i]];
  }
  uint32_t form(const End& end, size_t i) const { return call(end, i).form; }

  Place place(const End& end, size_t i) const {
    const ProgramCalls& program = calls_.calls_of(end.rank_class);
    const Task& task = program.program->tasks[call(end, i).task.index()];
    const Label& label = task.label;
    if (meeting_.is_message) {
      return {.microbatch = label.microbatch};
    }
    return {.phase = static_cast<int>(label.phase),
            .microbatch = label.microbatch,
            .virtual_stage = label.virtual_stage,
            .layer = label.layer,
            .site = label.site.valid() ? program.sites[label.site.index()] : UINT32_MAX,
            .first_elem = first_elem_of(*program.program, task)};
  }

  /// A rank of the end's class that is in the meeting's group.
  int rank_of(const End& end) const {
    if (meeting_.is_message) {
      return meeting_.ranks[&end == meeting_.ends.data() ? 0 : 1];
    }
    return *std::ranges::find_if(meeting_.ranks,
                                 [&](int rank) { return calls_.class_of(rank) == end.rank_class; });
  }

  std::string name(const End& end, size_t i) const {
    return fmt::format("rank {} {}", rank_of(end),
                       describe_call(*calls_.calls_of(end.rank_class).program, call(end, i).task));
  }

  std::string where() const {
    if (!meeting_.is_message) {
      return fmt::format("group {}", meeting_.group);
    }
    return fmt::format("group {}, messages from rank {} to rank {}{}", meeting_.group,
                       meeting_.ranks[0], meeting_.ranks[1],
                       meeting_.channel < 0 ? "" : fmt::format(" on channel {}", meeting_.channel));
  }
  std::string where(size_t i) const {
    return fmt::format("{}, {} {}", where(), meeting_.is_message ? "message" : "call", i + 1);
  }

  /// The call without a counterpart is the first one that differs between both ends, or the one
  /// after the shorter sequence.
  std::string missing_call(const End& a, const End& b) const {
    const size_t num_a = calls_.calls_at(a).size();
    const size_t num_b = calls_.calls_at(b).size();
    const size_t num_both = std::min(num_a, num_b);
    size_t i = 0;
    while (i < num_both && form(a, i) == form(b, i) && place(a, i) == place(b, i)) {
      ++i;
    }
    const std::string counts = meeting_.is_message
                                   ? fmt::format("{} sends, {} recvs", num_a, num_b)
                                   : fmt::format("rank {} makes {} calls, rank {} {}", rank_of(a),
                                                 num_a, rank_of(b), num_b);
    const End& longer = num_a > num_b ? a : b;
    const End& shorter = num_a > num_b ? b : a;
    return i < num_both
               ? fmt::format("{}: {}; {} has no counterpart: rank {} continues with {}", where(),
                             counts, name(longer, i), rank_of(shorter), name(shorter, i))
               : fmt::format("{}: {}; {} has no counterpart", where(), counts, name(longer, i));
  }

  /// Finds calls of equal form in a different order. Members may label matching calls differently,
  /// but a label that occurs at both ends means the same at both.
  std::optional<std::string> swapped_calls(const End& a, const End& b) const {
    const size_t num_calls = calls_.calls_at(a).size();
    size_t first = 0;
    while (first < num_calls && place(a, first) == place(b, first)) {
      ++first;
    }
    if (first == num_calls) {
      return std::nullopt;
    }
    std::unordered_map<Place, size_t, PlaceHash> in_a;
    std::unordered_map<Place, size_t, PlaceHash> in_b;
    for (size_t i = first; i < num_calls; ++i) {
      in_a.try_emplace(place(a, i), i);
      in_b.try_emplace(place(b, i), i);
    }
    for (size_t i = first; i < num_calls; ++i) {
      const auto partner_of_a = in_b.find(place(a, i));
      const bool differ = !(place(a, i) == place(b, i));
      if (differ && partner_of_a != in_b.end() && in_a.contains(place(b, i))) {
        return fmt::format("{}: {} meets {}, but its counterpart is {}, {} {}", where(i),
                           name(a, i), name(b, i), name(b, partner_of_a->second),
                           meeting_.is_message ? "message" : "call", partner_of_a->second + 1);
      }
    }
    return std::nullopt;
  }

  const RankCalls& calls_;
  const Meeting& meeting_;
  const StringTable& forms_;
};

}  // namespace

void check_meetings(const RankCalls& calls, const StringTable& forms,
                    std::vector<std::string>& faults) {
  for (const Meeting& meeting : calls.meetings()) {
    if (meeting.ranks.size() < 2) {
      continue;  // no other rank takes part
    }
    const MeetingChecker checker(calls, meeting, forms);
    for (size_t other = 1; other < meeting.ends.size(); ++other) {
      if (const auto fault = checker.fault(other)) {
        faults.push_back(*fault);
        break;
      }
    }
  }
}

}  // namespace braid
