#include "sim/sim_run.h"

#include <algorithm>
#include <utility>

namespace braid {
namespace {

/// The maximum of simulated time.
constexpr int64_t kMaxTimeNs = int64_t{1} << 62;

constexpr size_t kOut = 0;
constexpr size_t kIn = 1;

int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b > 0 ? 1 : 0);
}

int64_t scaled(int64_t rate, int64_t by) {
  return std::max<int64_t>(1, rate * by / kFullRate);
}

}  // namespace

SimRun::SimRun(const SimPlan& plan)
    : plan_(plan),
      lanes_(plan.lanes().size()),
      devices_(plan.classes().size()),
      is_recorded_(plan.num_events()),
      first_waiter_(plan.num_events()),
      arrived_(plan.first_arrival().back()),
      num_arrived_(plan.num_meetings()),
      running_(plan.num_running()),
      work_(num_units() + plan.num_meetings()),
      is_stale_(plan.num_meetings()) {
  ready_.reserve(lanes_.size());
  free_units_.reserve(num_units());
  taking_.reserve(num_units());
  exchanges_.reserve(lanes_.size());
  transfers_.reserve(plan.num_meetings());
  changed_.reserve(devices_.size());
  stale_.reserve(plan.num_meetings());
  loads_.reserve(plan.num_running());
}

void SimRun::reset() {
  std::fill(lanes_.begin(), lanes_.end(), Lane());
  std::fill(devices_.begin(), devices_.end(), Device());
  std::fill(is_recorded_.begin(), is_recorded_.end(), uint8_t{0});
  std::fill(first_waiter_.begin(), first_waiter_.end(), kNone);
  std::fill(num_arrived_.begin(), num_arrived_.end(), 0U);
  ends_.reset(work_.size());
  now_ns_ = 0;
}

bool SimRun::run(const SimOptions& options, SimResult& result) {
  options_ = options;
  result_ = &result;
  reset();
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    ready_.push_back(lane);
  }
  settle();
  while (!ends_.empty()) {
    now_ns_ = ends_.next_end_ns();
    while (!ends_.empty() && ends_.next_end_ns() == now_ns_) {
      const uint32_t work = ends_.pop();
      if (work < num_units()) {
        release_unit(work);
      } else if (work_[work].until > 0) {
        flow(work - num_units());
      } else {
        end_meeting(work - num_units());
      }
    }
    settle();
  }
  result.step_ns = now_ns_;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].next < facts(lane).num_tasks) {
      return false;
    }
  }
  return true;
}

void SimRun::settle() {
  while (!ready_.empty() || !free_units_.empty()) {
    while (!ready_.empty()) {
      const uint32_t lane = ready_.back();
      ready_.pop_back();
      advance(lane);
    }
    take_units();
  }
  begin_transfers();
  hold_exchanges();
  update_rates();
}

// Lanes.

void SimRun::advance(uint32_t lane) {
  while (lanes_[lane].next < facts(lane).num_tasks) {
    const Task& task = class_of(lane).program->tasks[task_of(lane)];
    if (!waits_are_over(lane, task)) {
      return;
    }
    const TaskPrice& price = price_of(lane);
    if (price.unit == SimUnit::kLinks) {
      arrive(lane, price.meeting);
      return;
    }
    if (price.unit != SimUnit::kNothing) {
      queue(lane, price.unit);
      return;
    }
    lanes_[lane].start_ns = now_ns_;
    finish_task(lane);
  }
}

bool SimRun::waits_are_over(uint32_t lane, const Task& task) {
  const SimPlan::Class& its_class = class_of(lane);
  const std::span<const EventId> waits = its_class.program->waits_of(task);
  Lane& state = lanes_[lane];
  for (; state.num_over < waits.size(); ++state.num_over) {
    const uint32_t event = its_class.first_event + waits[state.num_over].value;
    if (is_recorded_[event] == 0) {
      state.next_waiter = std::exchange(first_waiter_[event], lane);
      return false;
    }
  }
  return true;
}

/// The caller must advance the lane afterwards.
void SimRun::finish_task(uint32_t lane) {
  const SimPlan::Class& its_class = class_of(lane);
  Lane& state = lanes_[lane];
  const uint32_t task = task_of(lane);
  if (!result_->times.empty()) {
    result_->times[its_class.first_task + task] = {.start_ns = state.start_ns, .end_ns = now_ns_};
  }
  result_->ranks[facts(lane).rank_class].end_ns = now_ns_;
  const EventId event = its_class.program->tasks[task].record;
  ++state.next;
  state.num_over = 0;
  state.state = LaneState::kBlocked;
  if (event.valid()) {
    wake_waiters(its_class.first_event + event.value);
  }
}

void SimRun::wake_waiters(uint32_t event) {
  is_recorded_[event] = 1;
  for (uint32_t waiter = std::exchange(first_waiter_[event], kNone); waiter != kNone;) {
    ready_.push_back(waiter);
    waiter = std::exchange(lanes_[waiter].next_waiter, kNone);
  }
}

// Units.

void SimRun::queue(uint32_t lane, SimUnit unit) {
  const uint32_t id =
      facts(lane).rank_class * static_cast<uint32_t>(kNumOwnUnits) + static_cast<uint32_t>(unit);
  lanes_[lane].state = LaneState::kQueued;
  lanes_[lane].unit = unit;
  Unit& it = unit_of(id);
  ++it.num_queued;
  it.last_queued = lane;
  list_unit(id);
}

void SimRun::list_unit(uint32_t unit) {
  Unit& it = unit_of(unit);
  if (it.lane == kNone && it.num_queued > 0 && !it.is_listed) {
    it.is_listed = true;
    free_units_.push_back(unit);
  }
}

void SimRun::take_units() {
  taking_.swap(free_units_);
  for (const uint32_t unit : taking_) {
    unit_of(unit).is_listed = false;
    take_unit(unit);
  }
  taking_.clear();
}

void SimRun::take_unit(uint32_t unit) {
  const uint32_t lane = best_queued(unit);
  Unit& it = unit_of(unit);
  --it.num_queued;
  it.lane = lane;
  lanes_[lane].state = LaneState::kBusy;
  lanes_[lane].start_ns = now_ns_;
  const int64_t work_ns = price_of(lane).work_ns;
  if (work_ns == 0) {
    release_unit(unit);
    return;
  }
  begin_work(unit, work_ns);
  mark_changed(facts(lane).rank_class, false);
}

uint32_t SimRun::best_queued(uint32_t unit) const {
  const uint32_t rank_class = unit / static_cast<uint32_t>(kNumOwnUnits);
  const auto kind = static_cast<SimUnit>(unit % kNumOwnUnits);
  const Unit& it = devices_[rank_class].units[unit % kNumOwnUnits];
  const auto is_queued = [&](uint32_t lane) {
    return lanes_[lane].state == LaneState::kQueued && lanes_[lane].unit == kind;
  };
  if (it.num_queued == 1 && is_queued(it.last_queued)) {
    return it.last_queued;
  }
  const SimPlan::Class& its_class = plan_.classes()[rank_class];
  uint32_t best = kNone;
  for (uint32_t i = 0; i < its_class.num_lanes; ++i) {
    const uint32_t lane = its_class.first_lane + i;
    if (is_queued(lane) && (best == kNone || facts(lane).priority > facts(best).priority)) {
      best = lane;
    }
  }
  return best;
}

void SimRun::release_unit(uint32_t unit) {
  const uint32_t lane = std::exchange(unit_of(unit).lane, kNone);
  const uint32_t rank_class = facts(lane).rank_class;
  if (unit % kNumOwnUnits == static_cast<uint32_t>(SimUnit::kCompute)) {
    result_->ranks[rank_class].compute_ns += now_ns_ - lanes_[lane].start_ns;
    release_held(rank_class);
  }
  finish_task(lane);
  ready_.push_back(lane);
  list_unit(unit);
  mark_changed(rank_class, false);
}

// Meetings.

void SimRun::arrive(uint32_t lane, uint32_t meeting) {
  lanes_[lane].start_ns = now_ns_;
  lanes_[lane].state = LaneState::kBusy;
  if (price_of(lane).demand.row_exchanges > 0) {
    exchanges_.push_back(lane);
  }
  const uint32_t first = plan_.first_arrival()[meeting];
  arrived_[first + num_arrived_[meeting]++] = lane;
  if (first + num_arrived_[meeting] == plan_.first_arrival()[meeting + 1]) {
    begin_meeting(meeting);
  }
}

/// An exchange of rows that finds all SMs taken waits for the kernel that runs. A kernel that
/// begins at the same time gets them first: an exchange waits for words of other ranks before its
/// kernel.
void SimRun::hold_exchanges() {
  for (const uint32_t lane : exchanges_) {
    Device& device = devices_[facts(lane).rank_class];
    const uint32_t compute = device.units[static_cast<size_t>(SimUnit::kCompute)].lane;
    const bool is_there =
        lanes_[lane].state == LaneState::kBusy && price_of(lane).demand.row_exchanges > 0;
    if (options_.contention && is_there && compute != kNone &&
        price_of(compute).sm_use == SmUse::kAll) {
      lanes_[lane].is_held = true;
      ++device.num_held;
    }
  }
  exchanges_.clear();
}

void SimRun::release_held(uint32_t rank_class) {
  Device& device = devices_[rank_class];
  if (device.num_held == 0) {
    return;
  }
  const SimPlan::Class& its_class = plan_.classes()[rank_class];
  for (uint32_t i = 0; i < its_class.num_lanes; ++i) {
    lanes_[its_class.first_lane + i].is_held = false;
  }
  device.num_held = 0;
  mark_changed(rank_class, true);
}

void SimRun::begin_meeting(uint32_t meeting) {
  int64_t work_ns = 0;
  int64_t bytes_part = 0;
  bool has_link = false;
  for (const uint32_t lane : arrived(meeting)) {
    lanes_[lane].start_ns = options_.starts_on_arrival ? lanes_[lane].start_ns : now_ns_;
    work_ns = std::max(work_ns, price_of(lane).work_ns);
    bytes_part = std::max(bytes_part, price_of(lane).demand.bytes_part);
    has_link |= price_of(lane).link.is_limited();
    occupy_links(lane, 1);
  }
  if (has_link && options_.contention) {
    transfers_.push_back(meeting);
    return;
  }
  if (work_ns == 0) {
    end_meeting(meeting);
    return;
  }
  begin_work(num_units() + meeting, work_ns, bytes_part);
}

/// Last at a point of time, and by number, so that lanes do not depend on the order of the search.
void SimRun::begin_transfers() {
  std::sort(transfers_.begin(), transfers_.end());
  for (const uint32_t meeting : transfers_) {
    begin_work(num_units() + meeting, transfer_ns(meeting));
  }
  transfers_.clear();
}

/// Like `LinkSchedule::add`: the time of the transfer if it begins when the lanes of all its ranks
/// are free. It then occupies them.
int64_t SimRun::transfer_ns(uint32_t meeting) {
  int64_t begin_ns = now_ns_;
  int64_t own_ns = 0;
  LinkTime link;
  for (const uint32_t lane : arrived(meeting)) {
    const TaskPrice& price = price_of(lane);
    const auto& free_ns = lanes_of(lane);
    begin_ns =
        std::max({begin_ns, price.sends ? free_ns[kOut] : 0, price.receives ? free_ns[kIn] : 0});
    own_ns = std::max(own_ns, price.own_ns);
    link = price.link.alone_ns() > link.alone_ns() ? price.link : link;
  }
  const int64_t end_ns = begin_ns + link.busy_ns;
  for (const uint32_t lane : arrived(meeting)) {
    const TaskPrice& price = price_of(lane);
    auto& free_ns = lanes_of(lane);
    free_ns[kOut] = price.sends ? end_ns : free_ns[kOut];
    free_ns[kIn] = price.receives ? end_ns : free_ns[kIn];
  }
  return std::min(std::max(end_ns + link.latency_ns - now_ns_, own_ns), kMaxWorkNs);
}

void SimRun::end_meeting(uint32_t meeting) {
  for (const uint32_t lane : arrived(meeting)) {
    occupy_links(lane, -1);
    finish_task(lane);
    ready_.push_back(lane);
  }
  num_arrived_[meeting] = 0;
}

/// Its latency is over: it shares links from now on.
void SimRun::flow(uint32_t meeting) {
  for (const uint32_t lane : arrived(meeting)) {
    mark_changed(facts(lane).rank_class, true);
  }
}

void SimRun::occupy_links(uint32_t lane, int sign) {
  const TaskPrice& price = price_of(lane);
  const uint32_t rank_class = facts(lane).rank_class;
  Device& device = devices_[rank_class];
  device.sms += sign * price.demand.sms;
  device.row_exchanges += sign * price.demand.row_exchanges;
  uint32_t* const running = running_.data() + plan_.classes()[rank_class].first_running;
  if (sign > 0) {
    running[device.num_running++] = lane;
  } else {
    *std::find(running, running + device.num_running, lane) = running[device.num_running - 1];
    --device.num_running;
  }
  mark_changed(rank_class, true);
}

// Rates.

void SimRun::mark_changed(uint32_t rank_class, bool links) {
  Device& device = devices_[rank_class];
  device.links_changed |= links;
  if (!std::exchange(device.is_changed, true)) {
    changed_.push_back(rank_class);
  }
}

void SimRun::update_rates() {
  for (const uint32_t rank_class : changed_) {
    Device& device = devices_[rank_class];
    if (device.links_changed || plan_.contention().compute_slows_comm(device.row_exchanges)) {
      for (const uint32_t lane : running_on(rank_class)) {
        const uint32_t meeting = price_of(lane).meeting;
        if (std::exchange(is_stale_[meeting], uint8_t{1}) == 0) {
          stale_.push_back(meeting);
        }
      }
    }
    update_units(rank_class);
    device.is_changed = false;
    device.links_changed = false;
  }
  changed_.clear();
  for (const uint32_t meeting : stale_) {
    update_meeting(meeting);
    is_stale_[meeting] = 0;
  }
  stale_.clear();
}

void SimRun::update_units(uint32_t rank_class) {
  const Device& device = devices_[rank_class];
  const ContentionTable& contention = plan_.contention();
  const uint32_t first = rank_class * static_cast<uint32_t>(kNumOwnUnits);
  const uint32_t compute = device.units[static_cast<size_t>(SimUnit::kCompute)].lane;
  bool copies = false;
  for (const SimUnit unit : {SimUnit::kToDevice, SimUnit::kToHost}) {
    if (device.units[static_cast<size_t>(unit)].lane != kNone) {
      copies = true;
      set_rate(first + static_cast<uint32_t>(unit), options_.contention && compute != kNone
                                                        ? contention.copies_beside_compute()
                                                        : kFullRate);
    }
  }
  if (compute != kNone) {
    int64_t rate = kFullRate;
    if (options_.contention) {
      rate = contention.compute_rate(price_of(compute).family, device.sms);
      rate = copies ? scaled(rate, contention.compute_beside_copies()) : rate;
      if (device.row_exchanges > 0 && device.num_held == 0) {
        rate = scaled(rate, contention.compute_beside_rows(price_of(compute).family));
      }
    }
    set_rate(first + static_cast<uint32_t>(SimUnit::kCompute), rate);
  }
}

/// The end of its latency matters only beside something with which its bytes share a device.
void SimRun::update_meeting(uint32_t meeting) {
  const uint32_t work = num_units() + meeting;
  const bool waits = options_.contention && !moves_bytes(meeting) && shares_links(meeting);
  set_rate(work, meeting_rate(meeting), waits ? work_[work].bytes : 0);
}

bool SimRun::shares_links(uint32_t meeting) const {
  return std::ranges::any_of(arrived(meeting), [&](uint32_t lane) { return has_company(lane); });
}

bool SimRun::has_company(uint32_t lane) const {
  const Device& device = devices_[facts(lane).rank_class];
  const CommDemand& demand = price_of(lane).demand;
  const bool beside_compute = demand.row_exchanges > 0 &&
                              device.units[static_cast<size_t>(SimUnit::kCompute)].lane != kNone;
  return demand.uses_links() && (device.num_running > 1 || beside_compute);
}

int64_t SimRun::meeting_rate(uint32_t meeting) {
  int64_t rate = kFullRate;
  if (options_.contention) {
    for (const uint32_t lane : arrived(meeting)) {
      rate = std::min(rate, lanes_[lane].is_held ? 0 : rate_on_device(lane));
    }
  }
  return rate;
}

/// The rate of the meeting in which the lane takes part.
int64_t SimRun::rate_on_device(uint32_t lane) {
  const TaskPrice& price = price_of(lane);
  const Device& device = devices_[facts(lane).rank_class];
  const int64_t rate = moves_bytes(price.meeting) ? link_rate(lane) : kFullRate;
  const uint32_t compute = device.units[static_cast<size_t>(SimUnit::kCompute)].lane;
  return compute == kNone || price.demand.sms == 0
             ? rate
             : scaled(rate, plan_.contention().comm_rate(price_of(compute).family));
}

/// The rate at which its bytes flow.
int64_t SimRun::link_rate(uint32_t lane) {
  const TaskPrice& price = price_of(lane);
  const Device& device = devices_[facts(lane).rank_class];
  int64_t rate = kFullRate;
  const auto limit = [&](size_t kind, int64_t share) {
    const int64_t load = price.demand.load[kind];
    rate = share < load ? std::min(rate, std::max<int64_t>(1, share * kFullRate / load)) : rate;
  };
  for (size_t kind = 0; kind < kNumLinkKinds; ++kind) {
    for (const size_t direction : {kOut, kIn}) {
      if (price.demand.load[kind] > 0 && (direction == kOut ? price.sends : price.receives)) {
        limit(kind, share_of_link(facts(lane).rank_class, kind, direction));
      }
    }
  }
  if (price.demand.row_exchanges > 0 &&
      device.units[static_cast<size_t>(SimUnit::kCompute)].lane != kNone) {
    limit(static_cast<size_t>(LinkKind::kIntraNode), plan_.contention().rows_beside_compute());
  }
  return rate;
}

/// The most that one of the communications gets whose bytes flow over the link now.
int64_t SimRun::share_of_link(uint32_t rank_class, size_t kind, size_t direction) {
  if (devices_[rank_class].num_running == 1) {
    return kFullRate;
  }
  loads_.clear();
  for (const uint32_t lane : running_on(rank_class)) {
    const TaskPrice& price = price_of(lane);
    if (price.demand.load[kind] > 0 && (direction == kOut ? price.sends : price.receives) &&
        moves_bytes(price.meeting)) {
      loads_.push_back(price.demand.load[kind]);
    }
  }
  return fair_share(loads_);
}

bool SimRun::moves_bytes(uint32_t meeting) const {
  const Work& work = work_[num_units() + meeting];
  return left_of(work) <= work.bytes;
}

void SimRun::begin_work(uint32_t work, int64_t work_ns, int64_t bytes_part) {
  work_[work] = {.left = work_ns * kFullRate,
                 .bytes = work_ns * bytes_part,
                 .until = 0,
                 .updated_ns = now_ns_,
                 .rate = 0};
}

int64_t SimRun::left_of(const Work& work) const {
  const int64_t elapsed_ns = now_ns_ - work.updated_ns;
  return work.rate > 0 && elapsed_ns > work.left / work.rate ? 0
                                                             : work.left - elapsed_ns * work.rate;
}

void SimRun::set_rate(uint32_t work, int64_t rate, int64_t until) {
  Work& it = work_[work];
  const bool is_held = rate == 0;  // since it began
  if (is_held || (it.rate == rate && it.until == until)) {
    return;
  }
  it.left = left_of(it);
  it.updated_ns = now_ns_;
  it.rate = rate;
  it.until = until;
  const int64_t rest_ns = ceil_div(it.left - until, rate);
  ends_.set(work, rest_ns > kMaxTimeNs - now_ns_ ? kMaxTimeNs : now_ns_ + rest_ns);
}

}  // namespace braid
