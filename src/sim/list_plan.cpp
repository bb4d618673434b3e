#include "sim/list_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "ops/offload.h"
#include "sim/task_prices.h"

namespace braid {
namespace {

constexpr uint32_t kNone = ListPlan::kNone;

/// A union-find structure over numbers.
class Sets {
 public:
  explicit Sets(size_t size) : parent_(size) { std::iota(parent_.begin(), parent_.end(), 0U); }

  uint32_t find(uint32_t it) {
    while (parent_[it] != it) {
      it = parent_[it] = parent_[parent_[it]];
    }
    return it;
  }
  void unite(uint32_t a, uint32_t b) { parent_[find(b)] = find(a); }

 private:
  std::vector<uint32_t> parent_;
};

/// Builds rows from pairs (row, value). Calls `visit_pairs(add)` twice; it must give the same pairs
/// both times.
template <class VisitPairs>
ListRows rows_of(size_t num_rows, VisitPairs&& visit_pairs) {
  ListRows rows{.begin = std::vector<uint32_t>(num_rows + 1), .values = {}};
  visit_pairs([&](uint32_t row, uint32_t) { ++rows.begin[row + 1]; });
  std::partial_sum(rows.begin.begin(), rows.begin.end(), rows.begin.begin());
  rows.values.resize(rows.begin.back());
  std::vector<uint32_t> next(rows.begin.begin(), rows.begin.end() - 1);
  visit_pairs([&](uint32_t row, uint32_t value) { rows.values[next[row]++] = value; });
  return rows;
}

/// Two tasks of the spine with equal keys belong to one job.
struct JobKey {
  bool is_backward = false;
  bool is_optimizer = false;
  int32_t microbatch = -1;
  int32_t virtual_stage = -1;

  friend bool operator==(const JobKey&, const JobKey&) = default;
};

JobKey job_of(const Label& label) {
  return {.is_backward = label.phase == Phase::kDgrad || label.phase == Phase::kWgrad,
          .is_optimizer = label.phase == Phase::kOptimizer,
          .microbatch = label.microbatch,
          .virtual_stage = label.virtual_stage};
}

/// By sequence of calls of each program, program by program: the representative of its partners.
/// Classes of ranks that share a program make their calls in one order, so a partner of one of
/// them is a partner of all.
std::vector<uint32_t> joined_sequences(const RankCalls& calls,
                                       std::span<const uint32_t> first_sequence) {
  Sets sets(first_sequence.back());
  std::vector<uint32_t> met(calls.meetings().size(), kNone);  // a sequence of each meeting
  for (uint32_t rank_class = 0; rank_class < calls.classes().size(); ++rank_class) {
    const uint32_t program = calls.classes()[rank_class].program;
    for (uint32_t i = 0; i < calls.programs()[program].sequences.size(); ++i) {
      const uint32_t sequence = first_sequence[program] + i;
      uint32_t& other = met[calls.meeting_of(rank_class, i)];
      if (other == kNone) {
        other = sequence;
      } else {
        sets.unite(other, sequence);
      }
    }
  }
  std::vector<uint32_t> joined(first_sequence.back());
  for (uint32_t sequence = 0; sequence < joined.size(); ++sequence) {
    joined[sequence] = sets.find(sequence);
  }
  return joined;
}

}  // namespace

bool takes_step_memory(const Buffer& buffer) {
  return buffer.lifetime == Lifetime::kStep && buffer.placement != Placement::kHost;
}

std::vector<int64_t> live_bytes_in_order(const Program& program) {
  std::vector<uint32_t> last(program.buffers.size(), kNone);
  for (uint32_t i = 0; i < program.tasks.size(); ++i) {
    for (const BufferRange& range : program.operands_of(program.tasks[i])) {
      last[range.buffer.index()] = i;
    }
  }
  enum class Use : uint8_t { kBefore, kLive, kOver };
  std::vector<Use> uses(program.buffers.size(), Use::kBefore);
  std::vector<int64_t> live_bytes;
  live_bytes.reserve(program.tasks.size());
  int64_t live = 0;
  const auto change = [&](uint32_t task, Use from, Use to, int64_t sign) {
    for (const BufferRange& range : program.operands_of(program.tasks[task])) {
      const Buffer& buffer = program.buffers[range.buffer.index()];
      const bool is_due = from == Use::kBefore || last[range.buffer.index()] == task;
      if (is_due && uses[range.buffer.index()] == from && takes_step_memory(buffer)) {
        uses[range.buffer.index()] = to;
        live += sign * buffer.size_bytes();
      }
    }
  };
  for (uint32_t i = 0; i < program.tasks.size(); ++i) {
    change(i, Use::kBefore, Use::kLive, 1);
    live_bytes.push_back(live);
    change(i, Use::kLive, Use::kOver, -1);
  }
  return live_bytes;
}

ListPlan::ListPlan(const RankCalls& calls, const CostModel& model,
                   const std::vector<std::vector<int64_t>>& spec_ns) {
  predecessors_.begin.push_back(0);
  for (uint32_t program = 0; program < calls.programs().size(); ++program) {
    add_program(calls, program);
  }
  price(calls, model, spec_ns);
  find_meetings(calls);
  for (ProgramFacts& facts : programs_) {
    const DependencyGraph graph = build_dependencies(*facts.program);
    find_uses(facts);
    find_roles(facts);
    float_hand_overs(facts, graph);
    find_spine(facts);
    find_job_peaks(facts);
    add_edges(facts, graph);
  }
  successors_ = rows_of(num_nodes(), [&](auto&& add) {
    for (uint32_t node = 0; node < num_nodes(); ++node) {
      for (const uint32_t before : predecessors_[node]) {
        add(before, node);
      }
    }
  });
  find_levels();
}

void ListPlan::add_program(const RankCalls& calls, uint32_t program) {
  const Program& it = *calls.programs()[program].program;
  ProgramFacts facts{.program = &it,
                     .first_node = static_cast<uint32_t>(program_of_.size()),
                     .first_lane = static_cast<uint32_t>(num_lanes_),
                     .first_buffer = static_cast<uint32_t>(buffer_bytes_.size())};
  for (uint32_t stream = 0; stream < it.streams.size() && facts.compute_lane == kNone; ++stream) {
    if (it.streams[stream].kind == StreamKind::kCompute) {
      facts.compute_lane = facts.first_lane + stream;
    }
  }
  for (const Buffer& buffer : it.buffers) {
    buffer_bytes_.push_back(takes_step_memory(buffer) ? buffer.size_bytes() : 0);
  }
  program_of_.resize(program_of_.size() + it.tasks.size(), program);
  num_lanes_ += it.streams.size();
  programs_.push_back(facts);
}

/// Ranks that share a program get one price: the highest of theirs.
void ListPlan::price(const RankCalls& calls, const CostModel& model,
                     const std::vector<std::vector<int64_t>>& spec_ns) {
  std::vector<std::vector<TaskPrice>> prices(programs_.size());
  TaskPricer pricer(calls, model);
  for (uint32_t rank_class = 0; rank_class < calls.classes().size(); ++rank_class) {
    std::vector<TaskPrice>& all = prices[calls.classes()[rank_class].program];
    const std::vector<TaskPrice> of_class = pricer.prices_of(rank_class);
    all.resize(of_class.size());
    for (size_t spec = 0; spec < of_class.size(); ++spec) {
      const int64_t most_ns = std::max(all[spec].work_ns, of_class[spec].work_ns);
      all[spec] = of_class[spec];
      all[spec].work_ns = most_ns;
    }
  }
  for (uint32_t program = 0; program < programs_.size(); ++program) {
    for (size_t spec = 0; program < spec_ns.size() && spec < spec_ns[program].size(); ++spec) {
      if (spec_ns[program][spec] >= 0) {
        prices[program][spec].work_ns = std::min(spec_ns[program][spec], kMaxWorkNs);
      }
    }
    for (const Task& task : programs_[program].program->tasks) {
      ns_.push_back(prices[program][task.spec.index()].work_ns);
      units_.push_back(prices[program][task.spec.index()].unit);
    }
  }
}

void ListPlan::find_meetings(const RankCalls& calls) {
  std::vector<uint32_t> first_sequence = {0};
  for (const ProgramCalls& program : calls.programs()) {
    first_sequence.push_back(first_sequence.back() +
                             static_cast<uint32_t>(program.sequences.size()));
  }
  const std::vector<uint32_t> joined = joined_sequences(calls, first_sequence);
  meeting_of_.resize(num_nodes(), kNone);
  std::vector<uint32_t> first_meeting(joined.size(), kNone);
  uint32_t num_meetings = 0;
  for (uint32_t program = 0; program < programs_.size(); ++program) {
    const ProgramCalls& its_calls = calls.programs()[program];
    for (uint32_t i = 0; i < its_calls.sequences.size(); ++i) {
      uint32_t& first = first_meeting[joined[first_sequence[program] + i]];
      if (first == kNone) {
        first = num_meetings;
        num_meetings += static_cast<uint32_t>(its_calls.sequences[i].calls.size());
      }
      note_calls(programs_[program], its_calls, its_calls.sequences[i], first);
    }
  }
  meetings_ = rows_of(num_meetings, [&](auto&& add) {
    for (uint32_t node = 0; node < num_nodes(); ++node) {
      if (meeting_of_[node] != kNone) {
        add(meeting_of_[node], node);
      }
    }
  });
  price_meetings();
}

void ListPlan::price_meetings() {
  for (uint32_t meeting = 0; meeting < meetings_.size(); ++meeting) {
    int64_t most_ns = 0;
    for (const uint32_t end : meetings_[meeting]) {
      most_ns = std::max(most_ns, ns_[end]);
    }
    for (const uint32_t end : meetings_[meeting]) {
      ns_[end] = most_ns;
    }
  }
}

/// Calls that are matched with others by order run on one stream, or else keep their order.
void ListPlan::note_calls(const ProgramFacts& facts, const ProgramCalls& calls,
                          const ProgramCalls::Sequence& sequence, uint32_t first_meeting) {
  uint32_t before = kNone;
  bool is_one_stream = true;
  for (uint32_t k = 0; k < sequence.calls.size(); ++k) {
    const uint32_t node = facts.first_node + calls.calls[sequence.calls[k]].task.value;
    meeting_of_[node] = first_meeting + k;
    is_one_stream &= before == kNone || lane(before) == lane(node);
    before = node;
  }
  for (uint32_t k = 1; k < sequence.calls.size() && !is_one_stream; ++k) {
    call_before_[facts.first_node + calls.calls[sequence.calls[k]].task.value] =
        facts.first_node + calls.calls[sequence.calls[k - 1]].task.value;
  }
}

void ListPlan::find_uses(const ProgramFacts& facts) {
  num_uses_.resize(buffer_bytes_.size());
  first_task_.resize(buffer_bytes_.size(), kNone);
  for (uint32_t i = 0; i < facts.program->tasks.size(); ++i) {
    for (const BufferRange& range : facts.program->operands_of(facts.program->tasks[i])) {
      const uint32_t buffer = facts.first_buffer + range.buffer.value;
      ++num_uses_[buffer];
      first_task_[buffer] = std::min(first_task_[buffer], i);
    }
  }
}

void ListPlan::find_roles(const ProgramFacts& facts) {
  const Program& program = *facts.program;
  std::vector<uint32_t> last(program.buffers.size(), kNone);
  for (uint32_t i = 0; i < program.tasks.size(); ++i) {
    for (const BufferRange& range : program.operands_of(program.tasks[i])) {
      last[range.buffer.index()] = i;
    }
  }
  for (uint32_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    const uint32_t node = facts.first_node + i;
    if (lane(node) != facts.compute_lane) {
      roles_.push_back(ListRole::kSide);
    } else if (undefines(program.spec(task))) {
      const BufferId buffer = program.operands_of(task).front().buffer;
      const bool takes_back = program.operands_of(task).size() == 1 && last[buffer.index()] == i &&
                              first_task_[facts.first_buffer + buffer.value] != i;
      roles_.push_back(takes_back ? ListRole::kOrder : ListRole::kSpine);
    } else {
      const bool floats = task.label.phase == Phase::kWgrad && meeting_of_[node] == kNone;
      roles_.push_back(floats ? ListRole::kFloat : ListRole::kSpine);
    }
  }
}

/// If a task takes memory for a task of another stream that itself waits for a weight gradient, it
/// floats with that gradient: it waits for everything that the task waits for.
void ListPlan::float_hand_overs(const ProgramFacts& facts, const DependencyGraph& graph) {
  const Program& program = *facts.program;
  std::vector<uint32_t> first(program.buffers.size(), kNone);
  std::vector<uint32_t> second(program.buffers.size(), kNone);
  for (uint32_t i = 0; i < program.tasks.size(); ++i) {
    for (const BufferRange& range : program.operands_of(program.tasks[i])) {
      uint32_t& its_first = first[range.buffer.index()];
      uint32_t& its_second = second[range.buffer.index()];
      its_second = its_first != kNone && its_first != i && its_second == kNone ? i : its_second;
      its_first = its_first == kNone ? i : its_first;
    }
  }
  for (uint32_t buffer = 0; buffer < first.size(); ++buffer) {
    const uint32_t user = second[buffer];
    if (user == kNone || !undefines(program.spec(program.tasks[first[buffer]])) ||
        roles_[facts.first_node + first[buffer]] != ListRole::kSpine ||
        roles_[facts.first_node + user] != ListRole::kSide) {
      continue;
    }
    const auto before = graph.of(TaskId(size_t{user}));
    if (std::ranges::any_of(before, [&](TaskId it) {
          return roles_[facts.first_node + it.value] == ListRole::kFloat;
        })) {
      roles_[facts.first_node + first[buffer]] = ListRole::kOrder;
      floats_with_[facts.first_node + first[buffer]] = user;
    }
  }
}

namespace {

/// A sum over ranks of figures like the norm of the gradients. It depends on the gradients that its
/// rank counts; other ranks may count the results of any call before it.
bool sums_figures(const Program& program, const Task& task) {
  const auto ranges = program.operands_of(task);
  return communicates_as(program.spec(task), CommOp::kAllReduce) && !ranges.empty() &&
         program.buffers[ranges[0].buffer.index()].role == BufferRole::kScratch;
}

}  // namespace

void ListPlan::add_edges(const ProgramFacts& facts, const DependencyGraph& graph) {
  const Program& program = *facts.program;
  std::vector<uint32_t> calls;
  for (uint32_t i = 0; i < program.tasks.size(); ++i) {
    for (const TaskId before : graph.of(TaskId(size_t{i}))) {
      predecessors_.values.push_back(facts.first_node + before.value);
    }
    const auto floats = floats_with_.find(facts.first_node + i);
    if (floats != floats_with_.end()) {
      for (const TaskId before : graph.of(TaskId(size_t{floats->second}))) {
        if (!does_nothing(program.spec(program.tasks[before.index()]))) {
          predecessors_.values.push_back(facts.first_node + before.value);
        }
      }
    }
    if (meeting_of_[facts.first_node + i] != kNone) {
      if (sums_figures(program, program.tasks[i])) {
        predecessors_.values.insert(predecessors_.values.end(), calls.begin(), calls.end());
      }
      calls.push_back(facts.first_node + i);
    }
    const auto call = call_before_.find(facts.first_node + i);
    if (call != call_before_.end()) {
      predecessors_.values.push_back(call->second);
    }
    predecessors_.begin.push_back(static_cast<uint32_t>(predecessors_.values.size()));
  }
}

void ListPlan::find_spine(ProgramFacts& facts) {
  facts.spine_begin = static_cast<uint32_t>(spine_.size());
  facts.first_job = static_cast<uint32_t>(jobs_.size());
  JobKey key;
  for (uint32_t i = 0; i < facts.program->tasks.size(); ++i) {
    const uint32_t node = facts.first_node + i;
    if (roles_[node] != ListRole::kSpine) {
      continue;
    }
    const Label& label = facts.program->tasks[i].label;
    const JobKey its_key = job_of(label);
    const bool is_new =
        jobs_.size() == facts.first_job || (label.phase != Phase::kComm && !(its_key == key));
    if (is_new) {
      jobs_.push_back({.begin = static_cast<uint32_t>(spine_.size())});
      key = its_key;
    }
    spine_.push_back(node);
    jobs_.back().end = static_cast<uint32_t>(spine_.size());
  }
  facts.spine_end = static_cast<uint32_t>(spine_.size());
  facts.num_jobs = static_cast<uint32_t>(jobs_.size()) - facts.first_job;
}

void ListPlan::find_job_peaks(const ProgramFacts& facts) {
  const std::vector<int64_t> live = live_bytes_in_order(*facts.program);
  uint32_t task = 0;
  for (uint32_t job = facts.first_job; job < facts.first_job + facts.num_jobs; ++job) {
    const uint32_t last = spine_[jobs_[job].end - 1] - facts.first_node;
    for (; task <= last; ++task) {
      jobs_[job].peak_bytes = std::max(jobs_[job].peak_bytes, live[task]);
    }
  }
}

/// Chains calls of data ranks on a stream in program order. False if no call follows another.
bool ListPlan::chain_data_calls(const ProgramFacts& facts, Chains& chains) const {
  const Program& program = *facts.program;
  std::vector<uint32_t> last(program.streams.size(), kNone);
  bool found = false;
  for (uint32_t i = 0; i < program.tasks.size(); ++i) {
    const uint32_t node = facts.first_node + i;
    const Task& task = program.tasks[i];
    if (roles_[node] != ListRole::kSide || meeting_of_[node] == kNone) {
      continue;
    }
    const std::optional<GroupId> group = group_of(program, program.spec(task));
    if (!group || program.groups[group->index()].kind != GroupKind::kData) {
      continue;
    }
    uint32_t& its_last = last[task.stream.index()];
    if (its_last != kNone) {
      chains.link(its_last, node);
      found = true;
    }
    its_last = node;
  }
  return found;
}

void ListPlan::find_levels() {
  Chains spine{.next = std::vector<uint32_t>(num_nodes(), kNone),
               .before = std::vector<uint32_t>(num_nodes(), kNone)};
  for (const ProgramFacts& facts : programs_) {
    for (uint32_t i = facts.spine_begin; i + 1 < facts.spine_end; ++i) {
      spine.link(spine_[i], spine_[i + 1]);
    }
  }
  level_ = levels_with(spine);
  bool has_chains = false;
  for (const ProgramFacts& facts : programs_) {
    has_chains |= chain_data_calls(facts, spine);
  }
  chained_level_ = has_chains ? levels_with(spine) : level_;
}

/// From the end of the step to its beginning; the ends of a meeting get one level.
std::vector<int64_t> ListPlan::levels_with(const Chains& chains) const {
  std::vector<uint32_t> num_left(num_nodes());
  std::vector<uint32_t> ready;
  for (uint32_t node = 0; node < num_nodes(); ++node) {
    num_left[node] =
        static_cast<uint32_t>(successors_[node].size()) + (chains.next[node] == kNone ? 0 : 1);
    if (num_left[node] == 0) {
      ready.push_back(node);
    }
  }
  std::vector<int64_t> levels(num_nodes());  // until a node is finished: the level of its
                                             // successors
  std::vector<uint32_t> num_ready_ends(meetings_.size());
  const auto finish = [&](uint32_t node, int64_t level) {
    levels[node] = level;
    const auto reach = [&](uint32_t before) {
      levels[before] = std::max(levels[before], level);
      if (--num_left[before] == 0) {
        ready.push_back(before);
      }
    };
    std::ranges::for_each(predecessors_[node], reach);
    if (chains.before[node] != kNone) {
      reach(chains.before[node]);
    }
  };
  while (!ready.empty()) {
    const uint32_t node = ready.back();
    ready.pop_back();
    const uint32_t meeting = meeting_of_[node];
    if (meeting == kNone) {
      finish(node, levels[node] + ns_[node]);
    } else if (++num_ready_ends[meeting] == meetings_[meeting].size()) {
      int64_t level = 0;
      for (const uint32_t end : meetings_[meeting]) {
        level = std::max(level, levels[end] + ns_[end]);
      }
      for (const uint32_t end : meetings_[meeting]) {
        finish(end, level);
      }
    }
  }
  return levels;
}

}  // namespace braid
