#include "parallel/verify_ranks.h"

#include <optional>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "parallel/rank_calls.h"
#include "parallel/rendezvous_run.h"

namespace braid {
namespace {

std::vector<std::string> find_faults(const RankPrograms& ranks, const VerifyRanksOptions& options) {
  std::vector<std::string> faults;
  const std::optional<RankCalls> calls = match_calls(
      ranks, faults, {},
      options.one_order_of_messages ? MessageOrder::kPerPair : MessageOrder::kPerChannel);
  if (!calls) {
    return faults;
  }
  if (auto deadlock = find_deadlock(*calls, RunOrder::kStreams)) {
    faults.push_back(std::move(*deadlock));
  } else if (options.one_order_of_collectives) {
    if (auto order = find_deadlock(*calls, RunOrder::kCollectives)) {
      faults.push_back(std::move(*order));
    }
  }
  return faults;
}

void check_programs(const RankPrograms& ranks) {
  for (size_t rank = 0; rank < ranks.program_of.size(); ++rank) {
    const uint32_t program = ranks.program_of[rank];
    check(program < ranks.programs.size() && ranks.programs[program] != nullptr,
          "rank {} has no program", rank);
    check(ranks.programs[program]->num_ranks == ranks.num_ranks(),
          "the program of rank {} is one of {} ranks, but there are {}", rank,
          ranks.programs[program]->num_ranks, ranks.num_ranks());
  }
}

}  // namespace

RankPrograms one_program_per_rank(std::span<const Program> programs) {
  RankPrograms ranks;
  for (const Program& program : programs) {
    check(program.rank == ranks.num_ranks(), "the program of rank {} is in the place of rank {}",
          program.rank, ranks.num_ranks());
    ranks.program_of.push_back(static_cast<uint32_t>(ranks.programs.size()));
    ranks.programs.push_back(&program);
  }
  return ranks;
}

std::optional<RankCalls> match_calls(const RankPrograms& ranks, std::vector<std::string>& faults,
                                     const GroupColor& color, MessageOrder order) {
  check_programs(ranks);
  StringTable forms;
  StringTable sites;
  std::vector<ProgramCalls> programs;
  for (const Program* program : ranks.programs) {
    programs.push_back(find_calls(*program, order, forms, sites, faults));
  }
  if (!faults.empty()) {
    return std::nullopt;
  }
  for (const ProgramCalls& program : programs) {
    check_call_order(program, faults);
  }
  RankClasses classes = classify_ranks(ranks, programs, faults, color);
  if (!faults.empty()) {
    return std::nullopt;
  }
  RankCalls calls(ranks, std::move(programs), std::move(classes));
  check_meetings(calls, forms, faults);
  return faults.empty() ? std::optional(std::move(calls)) : std::nullopt;
}

std::vector<Violation> verify_ranks(const RankPrograms& ranks, const VerifyRanksOptions& options) {
  std::vector<Violation> violations;
  for (std::string& fault : find_faults(ranks, options)) {
    if (violations.size() == options.max_violations) {
      break;
    }
    violations.push_back({std::move(fault)});
  }
  return violations;
}

void verify_ranks_or_throw(const RankPrograms& ranks, std::string_view after,
                           const VerifyRanksOptions& options) {
  constexpr size_t kMaxShown = 4;
  VerifyRanksOptions few = options;
  few.max_violations = kMaxShown;
  std::vector<std::string> messages;
  for (Violation& violation : verify_ranks(ranks, few)) {
    messages.push_back(std::move(violation.message));
  }
  if (!messages.empty()) {
    throw_internal_error("the programs of {} ranks do not fit together after {}: {}",
                         ranks.num_ranks(), after, join(messages, "; "));
  }
}

}  // namespace braid
