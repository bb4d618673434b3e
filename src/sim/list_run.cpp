#include "sim/list_run.h"

#include <algorithm>
#include <utility>

namespace braid {

ListRun::ListRun(const ListPlan& plan, const ListScheduleOptions& options)
    : plan_(plan),
      options_(options),
      states_(plan.num_nodes(), State::kWaiting),
      num_waits_(plan.num_nodes()),
      end_ns_(plan.num_nodes()),
      num_ready_(plan.meetings().size()),
      uses_left_(plan.num_buffers()),
      ahead_at_(plan.num_nodes()),
      lanes_(plan.num_lanes()),
      ranks_(plan.programs().size()) {
  for (const ListPlan::Job& job : plan.jobs()) {
    next_.push_back(job.begin);
  }
  for (uint32_t buffer = 0; buffer < uses_left_.size(); ++buffer) {
    uses_left_[buffer] = plan.num_uses(buffer);
  }
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank].job = plan.programs()[rank].first_job;
    if (!options.live_bytes_limit.empty()) {
      ranks_[rank].limit_bytes = options.live_bytes_limit[rank];
    }
    result_.orders.emplace_back().reserve(plan.programs()[rank].program->tasks.size());
  }
}

std::optional<ListSchedule> ListRun::run() {
  for (uint32_t node = 0; node < plan_.num_nodes(); ++node) {
    num_waits_[node] = static_cast<uint32_t>(plan_.predecessors()[node].size());
    if (num_waits_[node] == 0) {
      note_ready(node);
    }
  }
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    list_rank(rank);
  }
  settle();
  while (!ends_.empty()) {
    now_ns_ = ends_.top().end_ns;
    while (!ends_.empty() && ends_.top().end_ns == now_ns_) {
      const uint32_t node = ends_.top().node;
      ends_.pop();
      finish(node);
    }
    settle();
  }
  if (num_done_ < plan_.num_nodes()) {
    return std::nullopt;
  }
  result_.step_ns = now_ns_;
  return std::move(result_);
}

// Begin and end of tasks.

void ListRun::note_ready(uint32_t node) {
  states_[node] = State::kReady;
  const uint32_t rank = plan_.program_of(node);
  switch (plan_.role(node)) {
    case ListRole::kSide:
      arrive(node);
      return;
    case ListRole::kFloat:
      ranks_[rank].floats.insert(node);
      break;
    case ListRole::kOrder:
      ranks_[rank].hand_overs.push_back(node);
      break;
    case ListRole::kSpine:
      break;
  }
  list_rank(rank);
}

/// When the last end of a meeting arrives, all of its lanes are tried.
void ListRun::arrive(uint32_t node) {
  const uint32_t meeting = plan_.meeting(node);
  if (meeting == kNone) {
    lanes_[plan_.lane(node)].ready.push({plan_.level(node), node});
    list_lane(plan_.lane(node));
    return;
  }
  ++num_ready_[meeting];
  if (!is_all_ready(meeting)) {
    return;
  }
  for (const uint32_t end : plan_.meetings()[meeting]) {
    if (plan_.role(end) == ListRole::kSide) {
      lanes_[plan_.lane(end)].ready.push({plan_.level(end), end});
      list_lane(plan_.lane(end));
    } else {
      list_rank(plan_.program_of(end));
    }
  }
}

bool ListRun::is_all_ready(uint32_t meeting) const {
  return num_ready_[meeting] == plan_.meetings()[meeting].size();
}

void ListRun::list_lane(uint32_t lane) {
  if (!std::exchange(lanes_[lane].is_listed, true)) {
    lanes_to_try_.push_back(lane);
  }
}

void ListRun::list_rank(uint32_t rank) {
  if (!std::exchange(ranks_[rank].is_listed, true)) {
    ranks_to_try_.push_back(rank);
  }
}

/// Other streams come before compute, so that their work is hidden behind the next compute task.
void ListRun::settle() {
  while (true) {
    if (!over_.empty()) {
      const uint32_t node = over_.back();
      over_.pop_back();
      finish(node);
    } else if (!lanes_to_try_.empty()) {
      const uint32_t lane = lanes_to_try_.back();
      lanes_to_try_.pop_back();
      lanes_[lane].is_listed = false;
      try_lane(lane);
    } else if (!ranks_to_try_.empty()) {
      const uint32_t rank = ranks_to_try_.back();
      ranks_to_try_.pop_back();
      ranks_[rank].is_listed = false;
      try_compute(rank);
    } else {
      return;
    }
  }
}

bool ListRun::can_start(uint32_t node) const {
  const uint32_t meeting = plan_.meeting(node);
  if (meeting != kNone) {
    return std::ranges::all_of(plan_.meetings()[meeting],
                               [&](uint32_t end) { return is_free(plan_.lane(end)); });
  }
  const SimUnit unit = plan_.unit(node);
  return is_free(plan_.lane(node)) &&
         (static_cast<size_t>(unit) >= kNumOwnUnits ||
          !ranks_[plan_.program_of(node)].is_taken[static_cast<size_t>(unit)]);
}

void ListRun::try_lane(uint32_t lane) {
  std::vector<Ready> later;
  std::priority_queue<Ready>& ready = lanes_[lane].ready;
  while (!ready.empty() && is_free(lane)) {
    const Ready best = ready.top();
    ready.pop();
    if (states_[best.node] != State::kReady) {
      continue;  // its meeting has begun
    }
    if (can_start(best.node)) {
      start(best.node);
    } else {
      later.push_back(best);
    }
  }
  for (const Ready& it : later) {
    ready.push(it);
  }
}

void ListRun::try_compute(uint32_t rank) {
  const uint32_t lane = plan_.programs()[rank].compute_lane;
  if (lane == kNone || !is_free(lane)) {
    return;
  }
  for (const uint32_t node : std::exchange(ranks_[rank].hand_overs, {})) {
    start(node);
  }
  while (is_free(lane) && over_.empty()) {
    const uint32_t node = choose(rank);
    if (node == kNone) {
      return;
    }
    start(node);
  }
}

void ListRun::start(uint32_t node) {
  const uint32_t meeting = plan_.meeting(node);
  if (meeting == kNone) {
    start_one(node);
  } else {
    std::ranges::for_each(plan_.meetings()[meeting], [&](uint32_t end) { start_one(end); });
  }
  if (plan_.ns(node) == 0) {
    over_.push_back(node);
  } else {
    ends_.push({now_ns_ + plan_.ns(node), num_begun_++, node});
  }
}

void ListRun::start_one(uint32_t node) {
  const uint32_t rank = plan_.program_of(node);
  states_[node] = State::kRunning;
  end_ns_[node] = now_ns_ + plan_.ns(node);
  result_.orders[rank].emplace_back(size_t{plan_.task_of(node)});
  use_buffers(node);
  ranks_[rank].floats.erase(node);
  // Transferring memory takes no time.
  if (plan_.role(node) != ListRole::kOrder) {
    lanes_[plan_.lane(node)].busy_until_ns = end_ns_[node];
  }
  const auto unit = static_cast<size_t>(plan_.unit(node));
  if (unit < kNumOwnUnits) {
    ranks_[rank].is_taken[unit] = true;
  }
  list_rank(rank);  // the end of the begun task is known now
}

void ListRun::finish(uint32_t node) {
  const uint32_t meeting = plan_.meeting(node);
  if (meeting == kNone) {
    finish_one(node);
  } else {
    std::ranges::for_each(plan_.meetings()[meeting], [&](uint32_t end) { finish_one(end); });
  }
}

void ListRun::finish_one(uint32_t node) {
  const uint32_t rank = plan_.program_of(node);
  const ListPlan::ProgramFacts& facts = plan_.programs()[rank];
  states_[node] = State::kDone;
  ++num_done_;
  release_buffers(node);
  const auto unit = static_cast<size_t>(plan_.unit(node));
  if (unit < kNumOwnUnits) {
    ranks_[rank].is_taken[unit] = false;
  }
  if (plan_.role(node) != ListRole::kOrder) {
    lanes_[plan_.lane(node)].busy_until_ns = -1;
  }
  for (uint32_t i = 0; i < facts.program->streams.size(); ++i) {
    if (!lanes_[facts.first_lane + i].ready.empty()) {
      list_lane(facts.first_lane + i);
    }
  }
  list_rank(rank);
  for (const uint32_t successor : plan_.successors()[node]) {
    if (--num_waits_[successor] == 0) {
      note_ready(successor);
    }
  }
}

// Memory.

int64_t ListRun::new_bytes(uint32_t node) const {
  const ListPlan::ProgramFacts& facts = plan_.programs()[plan_.program_of(node)];
  int64_t bytes = 0;
  for (const BufferRange& range : facts.program->operands_of(plan_.task(node))) {
    const uint32_t buffer = facts.first_buffer + range.buffer.value;
    bytes += uses_left_[buffer] == plan_.num_uses(buffer) ? plan_.buffer_bytes(buffer) : 0;
  }
  return bytes;
}

void ListRun::use_buffers(uint32_t node) {
  const uint32_t rank = plan_.program_of(node);
  const ListPlan::ProgramFacts& facts = plan_.programs()[rank];
  for (const BufferRange& range : facts.program->operands_of(plan_.task(node))) {
    const uint32_t buffer = facts.first_buffer + range.buffer.value;
    if (uses_left_[buffer]-- != plan_.num_uses(buffer)) {
      continue;
    }
    const int64_t bytes = plan_.buffer_bytes(buffer);
    ranks_[rank].live_bytes += bytes;
    if (plan_.first_task(buffer) > ranks_[rank].passed) {
      ranks_[rank].ahead_bytes += bytes;
      ahead_at_[facts.first_node + plan_.first_task(buffer)] += bytes;
    }
  }
}

void ListRun::release_buffers(uint32_t node) {
  const uint32_t rank = plan_.program_of(node);
  const ListPlan::ProgramFacts& facts = plan_.programs()[rank];
  for (const BufferRange& range : facts.program->operands_of(plan_.task(node))) {
    const uint32_t buffer = facts.first_buffer + range.buffer.value;
    if (uses_left_[buffer] != 0) {
      continue;
    }
    uses_left_[buffer] = kNone;  // a task may have two operands in a buffer
    const int64_t bytes = plan_.buffer_bytes(buffer);
    ranks_[rank].live_bytes -= bytes;
    if (plan_.first_task(buffer) > ranks_[rank].passed) {
      ranks_[rank].ahead_bytes -= bytes;
      ahead_at_[facts.first_node + plan_.first_task(buffer)] -= bytes;
    }
  }
}

void ListRun::pass_to(uint32_t rank, uint32_t task) {
  Rank& it = ranks_[rank];
  const uint32_t first_node = plan_.programs()[rank].first_node;
  while (it.passed < task) {
    it.ahead_bytes -= std::exchange(ahead_at_[first_node + ++it.passed], 0);
  }
}

// Choice of the next compute task.

uint32_t ListRun::first_undone(uint32_t job) {
  uint32_t& next = next_[job];
  while (next < plan_.jobs()[job].end && states_[plan_.spine()[next]] >= State::kRunning) {
    ++next;
  }
  return next < plan_.jobs()[job].end ? plan_.spine()[next] : kNone;
}

uint32_t ListRun::spine_next(uint32_t rank) {
  const ListPlan::ProgramFacts& facts = plan_.programs()[rank];
  uint32_t& job = ranks_[rank].job;
  for (; job < facts.first_job + facts.num_jobs; ++job) {
    const uint32_t node = first_undone(job);
    if (node != kNone) {
      pass_to(rank, plan_.task_of(node));
      return node;
    }
  }
  return kNone;
}

uint32_t ListRun::choose(uint32_t rank) {
  const uint32_t next = spine_next(rank);
  const uint32_t urgent = urgent_float(rank, next);
  if (urgent != kNone) {
    return urgent;
  }
  int64_t wait = kForever;
  bool has_memory = true;
  if (next != kNone && num_waits_[next] > 0) {
    const uint32_t blocking = float_in_the_way(next);
    if (blocking != kNone) {
      return blocking;
    }
    wait = wait_ns(next);
  } else if (next != kNone && plan_.meeting(next) != kNone) {
    if (std::exchange(states_[next], State::kArrived) == State::kReady) {
      arrive(next);
    }
    if (is_all_ready(plan_.meeting(next))) {
      if (can_start(next)) {
        return next;
      }
      wait = 0;
      for (const uint32_t end : plan_.meetings()[plan_.meeting(next)]) {
        wait = std::max(wait, lanes_[plan_.lane(end)].busy_until_ns - now_ns_);
      }
    }
  } else if (next != kNone) {
    has_memory = has_room(next, rank);
    if (has_memory) {
      return can_start(next) ? next : kNone;
    }
  }
  if (ranks_[rank].is_taken[static_cast<size_t>(SimUnit::kCompute)]) {
    return kNone;  // a task of another stream takes it
  }
  if (options_.wgrads_first || !has_memory) {
    const uint32_t wgrad = choose_float(rank, wait);
    return wgrad != kNone || !has_memory ? wgrad : choose_ahead(rank, next, wait);
  }
  const uint32_t ahead = choose_ahead(rank, next, wait);
  return ahead != kNone ? ahead : choose_float(rank, wait);
}

/// One of the oldest weight gradients with a longer following path than the spine's next task,
/// because of sums over data ranks that run one after the other.
uint32_t ListRun::urgent_float(uint32_t rank, uint32_t next) const {
  constexpr int kMaxTried = 4;
  if (next == kNone) {
    return kNone;
  }
  int num_tried = 0;
  for (const uint32_t node : ranks_[rank].floats) {
    if (num_tried++ == kMaxTried) {
      break;
    }
    const bool is_chained = plan_.chained_level(node) > plan_.level(node);
    if (is_chained && plan_.chained_level(node) > plan_.chained_level(next) && can_start(node) &&
        has_room(node, rank)) {
      return node;
    }
  }
  return kNone;
}

/// kForever: unknown.
int64_t ListRun::wait_ns(uint32_t node) const {
  int64_t wait = 0;
  for (const uint32_t before : plan_.predecessors()[node]) {
    if (states_[before] == State::kRunning) {
      wait = std::max(wait, end_ns_[before] - now_ns_);
    } else if (states_[before] != State::kDone) {
      return kForever;
    }
  }
  return wait;
}

/// A ready weight gradient for which the node waits.
uint32_t ListRun::float_in_the_way(uint32_t node) const {
  for (const uint32_t before : plan_.predecessors()[node]) {
    if (plan_.role(before) == ListRole::kFloat && states_[before] == State::kReady) {
      return before;
    }
  }
  return kNone;
}

/// Other streams, which nothing throttles, may have exceeded the limit: tasks that add no bytes
/// continue anyway, since only they free memory.
bool ListRun::has_room(uint32_t node, uint32_t rank) const {
  const int64_t bytes = new_bytes(node);
  return bytes == 0 || ranks_[rank].live_bytes + bytes <= ranks_[rank].limit_bytes;
}

bool ListRun::fills(uint32_t node, int64_t wait_ns) const {
  return wait_ns >= plan_.ns(node) ||
         static_cast<double>(wait_ns) >=
             options_.least_hidden_part * static_cast<double>(plan_.ns(node));
}

/// Among the oldest, which free memory first, the one that hides most: all of itself if it fits
/// into the wait, otherwise the one that exceeds it least.
uint32_t ListRun::choose_float(uint32_t rank, int64_t wait_ns) const {
  constexpr int kMaxTried = 24;
  uint32_t best = kNone;
  double best_gain = -1;
  int num_tried = 0;
  for (const uint32_t node : ranks_[rank].floats) {
    if (num_tried++ == kMaxTried) {
      break;
    }
    if (!fills(node, wait_ns) || !has_room(node, rank)) {
      continue;
    }
    if (wait_ns == kForever) {
      return node;
    }
    const auto ns = static_cast<double>(plan_.ns(node));
    const auto wait = static_cast<double>(wait_ns);
    const double gain = ns <= wait ? ns : wait * wait / ns;
    if (gain > best_gain) {
      best = node;
      best_gain = gain;
    }
  }
  return best;
}

/// First the tasks after the spine's next task in its own job, then later jobs.
uint32_t ListRun::choose_ahead(uint32_t rank, uint32_t next, int64_t wait_ns) {
  constexpr uint32_t kMaxTried = 12;
  if (options_.lookahead_jobs == 0 || next == kNone) {
    return kNone;
  }
  const ListPlan::ProgramFacts& facts = plan_.programs()[rank];
  const uint32_t end_job = facts.first_job + facts.num_jobs;
  uint32_t job = ranks_[rank].job;
  int64_t peak_bytes = plan_.jobs()[job].peak_bytes;
  const uint32_t end = std::min(plan_.jobs()[job].end, next_[job] + 1 + kMaxTried);
  for (uint32_t i = next_[job] + 1; i < end; ++i) {
    if (may_run_ahead(plan_.spine()[i], rank, peak_bytes, wait_ns)) {
      return plan_.spine()[i];
    }
  }
  for (int64_t left = options_.lookahead_jobs; left > 0 && ++job < end_job;) {
    peak_bytes = std::max(peak_bytes, plan_.jobs()[job].peak_bytes);
    const uint32_t node = first_undone(job);
    if (node == kNone) {
      continue;
    }
    --left;
    if (may_run_ahead(node, rank, peak_bytes, wait_ns)) {
      return node;
    }
  }
  return kNone;
}

/// The peak of its job up to the end of it in program order must fit in addition to the bytes that
/// it adds.
bool ListRun::may_run_ahead(uint32_t node, uint32_t rank, int64_t peak_bytes,
                            int64_t wait_ns) const {
  if (states_[node] != State::kReady || plan_.meeting(node) != kNone || !fills(node, wait_ns)) {
    return false;
  }
  const Rank& it = ranks_[rank];
  const int64_t bytes = new_bytes(node);
  return it.limit_bytes == kForever || (it.live_bytes + bytes <= it.limit_bytes &&
                                        peak_bytes + it.ahead_bytes + bytes <= it.limit_bytes);
}

}  // namespace braid
