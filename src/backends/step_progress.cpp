#include "backends/step_progress.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/byte_fields.h"
#include "base/errors.h"
#include "comm/comm_call.h"
#include "comm/ledger.h"
#include "comm/meeting.h"
#include "ops/meets_others.h"

namespace braid {
namespace {

/// The call of a task that communicates with other ranks, without addresses.
CommCall call_of(const Program& program, TaskId id) {
  const OpSpec& spec = program.spec(program.tasks[id.index()]);
  const Group& group = program.groups[group_of(program, spec)->index()];
  const std::vector<std::byte*> no_addresses(spec.operands.size(), nullptr);
  return make_comm_call(spec, group, no_addresses, describe_task(program, id));
}

Meeting meeting_of(const CommCall& call, int rank) {
  const auto found = std::ranges::find(call.group->ranks, rank);
  check(found != call.group->ranks.end(), "rank {} is not in group {}", rank, call.group->name);
  return {call, static_cast<size_t>(found - call.group->ranks.begin())};
}

std::string key_of(const std::string& place, const std::vector<int>& ranks) {
  return fmt::format("{} of {}", place, name_ranks(ranks));
}

/// Scans a program once. Tasks of one spec have one place: few specs, perhaps a million tasks.
class ProgressReader {
 public:
  ProgressReader(const Program& program, const StepMarks& marks)
      : program_(program), marks_(marks), of_spec_(program.specs.size()) {}

  RankProgress read() {
    RankProgress progress{.step = marks_.step};
    const std::vector<bool> meets = tasks_that_meet_others(program_);
    std::optional<std::pair<TaskId, int64_t>> last;
    for (size_t i = 0; i < program_.tasks.size(); ++i) {
      if (!meets[i]) {
        continue;
      }
      const TaskId id(i);
      auto& [place, num_calls] = place_of(id);
      ++num_calls;
      const uint32_t mark = marks_.marks[program_.tasks[i].stream.index()];
      if (mark >= begin_mark(id)) {
        progress.num_begun[place] = num_calls;
      }
      if (mark >= end_mark(id)) {
        last = {id, num_calls};
      } else if (mark >= begin_mark(id)) {
        progress.open.push_back(describe(id, num_calls));
      }
    }
    if (last) {
      progress.last = describe(last->first, last->second);
    }
    return progress;
  }

 private:
  using Calls = std::map<std::string, int64_t>;

  Calls::value_type& place_of(TaskId id) {
    Calls::value_type*& place = of_spec_[program_.tasks[id.index()].spec.index()];
    if (place == nullptr) {
      const Meeting meeting = meeting_of(call_of(program_, id), program_.rank);
      place = &*calls_.try_emplace(key_of(meeting.place(), meeting.ranks)).first;
    }
    return *place;
  }

  ProgressCall describe(TaskId id, int64_t number) const {
    const CommCall call = call_of(program_, id);
    const Meeting meeting = meeting_of(call, program_.rank);
    const Stream& stream = program_.streams[program_.tasks[id.index()].stream.index()];
    return {.place = meeting.place(),
            .ranks = meeting.ranks,
            .number = number,
            .call = describe_call(call),
            .task = fmt::format("stream {}, task {} ({})", stream.name, id.value, call.what)};
  }

  const Program& program_;
  const StepMarks& marks_;
  Calls calls_;                              // by key_of: seen so far
  std::vector<Calls::value_type*> of_spec_;  // pointers into calls_
};

std::string in_place(const ProgressCall& call) {
  return fmt::format("{} in {}, call {}", call.call, call.place, call.number);
}

/// Compares the calls that ranks have begun.
class Comparison {
 public:
  explicit Comparison(const ProgressOfRanks& ranks) : ranks_(ranks) {}

  /// The parties of a call of `rank` that have not begun it.
  std::vector<int> missing(int rank, const ProgressCall& call) const {
    std::vector<int> missing;
    for (const int party : call.ranks) {
      if (party != rank && !has_begun(party, ranks_.at(rank).step, call)) {
        missing.push_back(party);
      }
    }
    return missing;
  }

  RankAccount account(int rank) const {
    const auto found = ranks_.find(rank);
    if (found == ranks_.end()) {
      return {"does not answer", {}};
    }
    const RankProgress& progress = found->second;
    if (progress.step < 0) {
      return {"no step yet", {}};
    }
    RankAccount account{.description = fmt::format("in step {}", progress.step), .awaited = {}};
    if (progress.open.empty()) {
      account.description += progress.last
                                 ? fmt::format(", last call {}, finished", in_place(*progress.last))
                                 : ", no call yet";
    }
    for (const ProgressCall& call : progress.open) {
      const std::vector<int> missing = this->missing(rank, call);
      account.description +=
          fmt::format("{} {} with {}", &call == &progress.open.front() ? "," : " and",
                      missing.empty() ? "is busy" : "waits", in_place(call));
      account.description += missing.empty() ? "" : fmt::format(" for {}", name_ranks(missing));
      account.awaited.insert(account.awaited.end(), missing.begin(), missing.end());
    }
    return account;
  }

 private:
  bool has_begun(int rank, int64_t step, const ProgressCall& call) const {
    const auto found = ranks_.find(rank);
    if (found == ranks_.end() || found->second.step != step) {
      return found != ranks_.end() && found->second.step > step;
    }
    const auto count = found->second.num_begun.find(key_of(call.place, call.ranks));
    return count != found->second.num_begun.end() && count->second >= call.number;
  }

  const ProgressOfRanks& ranks_;
};

void write(const ProgressCall& call, ByteWriter& bytes) {
  bytes.text(call.place).number(static_cast<uint64_t>(call.ranks.size()));
  for (const int rank : call.ranks) {
    bytes.number(static_cast<int32_t>(rank));
  }
  bytes.number(call.number).text(call.call).text(call.task);
}

void write(const std::vector<ProgressCall>& calls, ByteWriter& bytes) {
  bytes.number(static_cast<uint64_t>(calls.size()));
  for (const ProgressCall& call : calls) {
    write(call, bytes);
  }
}

ProgressCall read_call(ByteReader& bytes) {
  ProgressCall call{.place = bytes.text()};
  for (size_t left = bytes.count(sizeof(int32_t)); left > 0; --left) {
    call.ranks.push_back(bytes.number<int32_t>());
  }
  call.number = bytes.number<int64_t>();
  call.call = bytes.text();
  call.task = bytes.text();
  return call;
}

std::vector<ProgressCall> read_calls(ByteReader& bytes) {
  std::vector<ProgressCall> calls;
  for (size_t left = bytes.count(sizeof(uint64_t)); left > 0; --left) {
    calls.push_back(read_call(bytes));
  }
  return calls;
}

}  // namespace

RankProgress progress_of(const Program& program, const StepMarks& marks) {
  check(marks.marks.size() == program.streams.size(), "marks of {} streams, and there are {}",
        marks.marks.size(), program.streams.size());
  return ProgressReader(program, marks).read();
}

std::string describe_last(const RankProgress& progress) {
  return progress.last ? fmt::format("{} in {}", progress.last->task, progress.last->place) : "";
}

std::string to_bytes(const RankProgress& progress) {
  ByteWriter bytes;
  bytes.number(progress.step);
  write(progress.open, bytes);
  write(progress.last ? std::vector{*progress.last} : std::vector<ProgressCall>(), bytes);
  bytes.number(static_cast<uint64_t>(progress.num_begun.size()));
  for (const auto& [place, number] : progress.num_begun) {
    bytes.text(place).number(number);
  }
  return bytes.take();
}

RankProgress progress_from_bytes(std::string_view bytes) {
  ByteReader reader(bytes);
  RankProgress progress{.step = reader.number<int64_t>()};
  progress.open = read_calls(reader);
  const std::vector<ProgressCall> last = read_calls(reader);
  if (!last.empty()) {
    progress.last = last.front();
  }
  for (size_t left = reader.count(sizeof(uint64_t)); left > 0; --left) {
    const std::string place = reader.text();
    progress.num_begun[place] = reader.number<int64_t>();
  }
  return progress;
}

std::string wait_clause(int rank, const ProgressOfRanks& ranks) {
  const Comparison comparison(ranks);
  const RankProgress& own = ranks.at(rank);
  const auto account = [&](int other) { return comparison.account(other); };
  if (own.open.empty()) {
    return fmt::format(": waits for no other rank, {}", account(rank).description);
  }
  const auto has_missing = [&](const ProgressCall& call) {
    return !comparison.missing(rank, call).empty();
  };
  const auto found = std::ranges::find_if(own.open, has_missing);
  const ProgressCall& call = found == own.open.end() ? own.open.front() : *found;
  const std::vector<int> missing = comparison.missing(rank, call);
  return fmt::format(", {}: waits with {}, {}", call.task, in_place(call),
                     missing.empty() ? "which all of its ranks have begun"
                                     : describe_missing(rank, missing, account));
}

std::string wait_clause(const RankProgress& progress, std::string_view reason) {
  if (progress.open.empty()) {
    return fmt::format(": {}", reason);
  }
  const ProgressCall& call = progress.open.front();
  return fmt::format(", {}: in {}: {}", call.task, call.place, reason);
}

}  // namespace braid
