#include "passes/analysis/cost_timeline.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/op.h"
#include "passes/analysis/rank_independent.h"
#include "passes/tensor/tensor_sites.h"

namespace braid {
namespace {

/// How many of the last communication items can overlap a task. Calls on one stream do not overlap,
/// so earlier items have ended.
constexpr size_t kMaxBeside = 4;

/// Limits a duration to about 19 hours, so that work fits in 64 bits.
int64_t bounded(int64_t ns) {
  return std::min(ns, int64_t{1} << 46);
}

}  // namespace

StepPrices::StepPrices(const Program& program, const CostModel& model)
    : program_(program),
      model_(model),
      priced_(at_first_ranks(program)),
      prices_(program.specs.size()) {
  std::vector<bool> seen(program.specs.size());
  for (uint32_t task = 0; task < program.tasks.size(); ++task) {
    const size_t spec = program.tasks[task].spec.index();
    if (!seen[spec]) {
      seen[spec] = true;
      prices_[spec] = price_of(task);
    }
  }
}

StepPrices::Price StepPrices::price_of(uint32_t task) const {
  const Task& it = program_.tasks[task];
  const OpSpec& spec = program_.spec(it);
  const OpDefinition& op = find_op(spec.op);
  const bool communicates = op.op_class == OpClass::kCommunication;
  if (op.op_class == OpClass::kOrder || op.host_copy ||
      (communicates && !is_tensor_communication(program_, it))) {
    return {};
  }
  Price price{.place = Place::kDevice,
              .is_compute = !communicates,
              .ns = bounded(rank_independent_ns(model_, priced_, TaskId(task)))};
  if (communicates && program_.streams[it.stream.index()].kind != StreamKind::kCompute) {
    price.place = Place::kBeside;
  }
  const Contention& contention = model_.contention();
  const double rate = is_product_or_attention(spec) ? contention.gemm_and_sm_comm.compute
                                                    : contention.memory_bound_and_sm_comm.compute;
  price.shared_rate = std::max<int64_t>(1, std::llround(rate * static_cast<double>(kFullRate)));
  return price;
}

int64_t StepPrices::piece_ns(uint32_t task, const SplitRange& range) {
  const SpecId spec = program_.tasks[task].spec;
  const auto key = std::tuple(spec.value, range.begin, range.end);
  const auto found = pieces_.find(key);
  if (found != pieces_.end()) {
    return found->second;
  }
  int64_t ns = 0;
  for (const OpSpec& it : specs_of_piece(at_first_rank(program_.specs[spec]), range)) {
    ns += bounded(model_.task_ns(it));
  }
  pieces_.emplace(key, ns);
  return ns;
}

CostTimeline::CostTimeline(const Program& program, const DependencyGraph& dependencies,
                           const StepPrices& prices)
    : program_(program),
      dependencies_(dependencies),
      prices_(prices),
      done_ns_(program.tasks.size()),
      stream_ns_(program.streams.size()) {
  items_.reserve(program.tasks.size());
  undo_.reserve(program.tasks.size());
}

int64_t CostTimeline::ready_ns(uint32_t task) const {
  int64_t ready = 0;
  for (const TaskId producer : dependencies_.of(TaskId(task))) {
    ready = std::max(ready, done_ns_[producer.index()]);
  }
  return ready;
}

int64_t CostTimeline::start_ns(uint32_t task) const {
  switch (prices_.of(task).place) {
    case StepPrices::Place::kDevice:
      return std::max(ready_ns(task), device_free_ns_);
    case StepPrices::Place::kBeside:
      return std::max(ready_ns(task), stream_ns_[program_.tasks[task].stream.index()]);
    case StepPrices::Place::kLater:
      break;
  }
  return ready_ns(task);
}

int64_t& CostTimeline::free_of(uint32_t task) {
  return prices_.of(task).place == StepPrices::Place::kDevice
             ? device_free_ns_
             : stream_ns_[program_.tasks[task].stream.index()];
}

void CostTimeline::push(uint32_t task, const SplitRange& range, int64_t ns) {
  const StepPrices::Price& price = prices_.of(task);
  Item item{.task = task, .range = range, .ns = ns, .start_ns = start_ns(task)};
  item.end_ns = price.place == StepPrices::Place::kDevice
                    ? compute_end_ns(item.start_ns, ns, price.shared_rate)
                    : item.start_ns + ns;
  int64_t& free = free_of(task);
  int64_t& done = done_ns_[task];
  undo_.push_back({free, done});
  done = std::max(done, item.end_ns);
  if (price.place != StepPrices::Place::kLater) {
    free = item.end_ns;
  }
  if (price.place == StepPrices::Place::kBeside) {
    beside_.push_back(items_.size());
  }
  items_.push_back(item);
}

std::vector<CostTimeline::Item> CostTimeline::pop_to(size_t size) {
  std::vector<Item> popped;
  while (items_.size() > size) {
    const Item& last = items_.back();
    free_of(last.task) = undo_.back().free_ns;
    done_ns_[last.task] = undo_.back().done_ns;
    if (!beside_.empty() && beside_.back() + 1 == items_.size()) {
      beside_.pop_back();
    }
    popped.push_back(last);
    items_.pop_back();
    undo_.pop_back();
  }
  std::ranges::reverse(popped);
  return popped;
}

/// Steps from one start or end of communication to the next; the rate is constant in between.
int64_t CostTimeline::compute_end_ns(int64_t start_ns, int64_t work_ns, int64_t shared_rate) const {
  int64_t now = start_ns;
  int64_t work = work_ns * StepPrices::kFullRate;
  const size_t first = beside_.size() - std::min(beside_.size(), kMaxBeside);
  while (work > 0) {
    int64_t rate = StepPrices::kFullRate;
    int64_t next = INT64_MAX;
    for (size_t i = first; i < beside_.size(); ++i) {
      const Item& comm = items_[beside_[i]];
      if (comm.start_ns <= now && now < comm.end_ns) {
        rate = shared_rate;
        next = std::min(next, comm.end_ns);
      } else if (comm.start_ns > now && comm.start_ns < comm.end_ns) {
        next = std::min(next, comm.start_ns);
      }
    }
    const int64_t rest_ns = (work + rate - 1) / rate;
    const int64_t step_ns = next == INT64_MAX ? rest_ns : std::min(rest_ns, next - now);
    now += step_ns;
    work -= step_ns * rate;
  }
  return now;
}

}  // namespace braid
