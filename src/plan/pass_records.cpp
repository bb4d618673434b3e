#include "plan/pass_records.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

/// Summaries of one pass that differ, each with the first rank that has it.
using Kinds = std::vector<std::pair<int, std::string>>;

void note(int rank, const std::string& summary, Kinds& kinds) {
  const bool is_known =
      std::ranges::any_of(kinds, [&](const auto& kind) { return kind.second == summary; });
  if (!is_known) {
    kinds.emplace_back(rank, summary);
  }
}

std::string joined(const Kinds& kinds) {
  constexpr size_t kMostKinds = 3;
  if (kinds.size() == 1) {
    return kinds.front().second;
  }
  const size_t num_named = std::min(kinds.size(), kMostKinds);
  std::string text;
  for (size_t i = 0; i < num_named; ++i) {
    text += fmt::format("{}rank {}: {}", i == 0 ? "" : "; ", kinds[i].first, kinds[i].second);
  }
  return kinds.size() == num_named ? text
                                   : fmt::format("{}; not shown: {} of {} kinds of ranks", text,
                                                 kinds.size() - num_named, kinds.size());
}

}  // namespace

std::vector<PassRecord> pass_records(std::span<const RankPlan> ranks) {
  std::vector<PassRecord> records = ranks.front().passes;
  for (size_t pass = 0; pass < records.size(); ++pass) {
    PassRecord& record = records[pass];
    Kinds kinds;
    for (const RankPlan& rank : ranks) {
      check(rank.passes.size() == records.size(), "rank {} ran {} passes, others ran {}",
            rank.programs[kTrainProgram].rank, rank.passes.size(), records.size());
      const PassRecord& its = rank.passes[pass];
      note(rank.programs[kTrainProgram].rank, its.report.summary, kinds);
      record.skipped = record.skipped && its.skipped;
      record.duration_ns = std::max(record.duration_ns, its.duration_ns);
      record.report.changed = record.report.changed || its.report.changed;
      record.report.num_changes = std::max(record.report.num_changes, its.report.num_changes);
    }
    record.report.summary = joined(kinds);
  }
  return records;
}

}  // namespace braid
