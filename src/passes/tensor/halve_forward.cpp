#include "passes/tensor/halve_forward.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "ops/op.h"
#include "ops/quantize.h"
#include "passes/analysis/cost_timeline.h"
#include "passes/analysis/job_spans.h"
#include "passes/analysis/rank_independent.h"
#include "passes/pipeline/pair_choice.h"
#include "passes/pipeline/region_weaver.h"
#include "passes/pipeline_options.h"
#include "passes/program_rewriter.h"
#include "passes/tensor/split_task.h"
#include "passes/tensor/tensor_sites.h"

namespace braid {
namespace {

/// The tasks of both halves; each half is one or two pieces.
using Halves = std::array<std::vector<TaskPiece>, 2>;

/// Maximum time of a backward product in halves, in percent of the whole: partly filled waves of
/// tiles cost more than the other half hides.
constexpr int64_t kMostPercentInHalves = 105;

/// The same limit for a forward half that is cut again.
constexpr int64_t kMostPercentInPieces = 103;

/// Minimum time of its first piece, in percent of the longest call: copy engines, which may be
/// chosen later, take longer.
constexpr int64_t kPercentOfCall = 110;

/// True for a call that moves all rows of a microbatch.
bool is_row_call(const Program& program, const Task& task, int64_t rows) {
  const OpSpec& spec = program.spec(task);
  if (!is_tensor_communication(program, task) || task.label.microbatch < 0) {
    return false;
  }
  const Communication* const communication = communication_of(spec);
  if (communication == nullptr ||
      (communication->op != CommOp::kAllGather && communication->op != CommOp::kReduceScatter &&
       communication->op != CommOp::kAllReduce)) {
    return false;
  }
  const bool gathers = communication->shape == CommShape::kGather;
  const OperandSpec& whole = gathers ? spec.operands.back() : spec.operands[0];
  return whole.shape.rank() == 2 && whole.shape[0] == rows;
}

/// Whether tensor ranks gather FP8 copies. Only those by rows consist of rows: halves of a
/// microbatch would put tokens in another order than the copies by columns, and scales, have.
bool gathers_copies(const Program& program) {
  return std::ranges::any_of(program.tasks, [&](const Task& task) {
    const OpSpec& spec = program.spec(task);
    return is_tensor_communication(program, task) && communicates_as(spec, CommOp::kAllGather) &&
           is_fp8(spec.operands[0].dtype);
  });
}

/// Time of the longest call in halves. It is the same on all ranks of a group.
int64_t longest_half_call_ns(const Program& program, int64_t rows, const CostModel& model) {
  const Program priced = at_first_ranks(program);
  int64_t longest_ns = 0;
  std::vector<bool> seen(program.specs.size());
  for (const Task& task : priced.tasks) {
    if (is_row_call(priced, task, rows) && !seen[task.spec.index()]) {
      seen[task.spec.index()] = true;
      const OpSpec half = leading_half(priced.spec(task), priced.operands_of(task), 0).spec;
      const Group& group = priced.groups[group_of(priced, half)->index()];
      longest_ns = std::max(longest_ns, comm_of(model, half, priced.rank, group).cost.ns);
    }
  }
  return longest_ns;
}

/// A task, or a part of one, that is not written yet.
struct Item {
  uint32_t task = 0;
  TaskPiece piece;
};

/// What the second half of a forward has accessed so far.
class Touched {
 public:
  explicit Touched(size_t num_buffers) : by_buffer_(num_buffers) {}

  void add(const TaskPiece& piece) {
    for (size_t i = 0; i < piece.operands.size(); ++i) {
      const BufferRange& range = piece.operands[i];
      by_buffer_[range.buffer.index()].push_back({range, piece.spec.operands[i].access});
      touched_.push_back(range.buffer);
    }
  }

  bool conflicts(const TaskPiece& piece) const {
    for (size_t i = 0; i < piece.operands.size(); ++i) {
      const BufferRange& range = piece.operands[i];
      const bool is_written = writes(piece.spec.operands[i].access);
      if (std::ranges::any_of(by_buffer_[range.buffer.index()], [&](const Use& use) {
            return (is_written || writes(use.access)) && use.range.overlaps(range);
          })) {
        return true;
      }
    }
    return false;
  }

  void clear() {
    for (const BufferId buffer : touched_) {
      by_buffer_[buffer.index()].clear();
    }
    touched_.clear();
  }

 private:
  struct Use {
    BufferRange range;
    Access access;
  };
  std::vector<std::vector<Use>> by_buffer_;
  std::vector<BufferId> touched_;
};

/// Writes the program with each forward as two halves, one after the other.
class Halver {
 public:
  /// `model` may be null. Both must outlive this object.
  Halver(const Program& program, const HalveForwardOptions& options, const CostModel* model)
      : program_(program),
        rows_(options.rows),
        min_rows_(options.min_rows),
        spans_(program),
        writer_(program),
        touches_rows_(program.buffers.size()),
        second_touches_(program.buffers.size()) {
    if (model != nullptr) {
      prices_.emplace(program, *model);
      longest_call_ns_ = longest_half_call_ns(program, rows_, *model);
    }
  }

  Program run() {
    find_rows();
    std::vector<uint32_t> begins(program_.tasks.size(), JobSpans::kNone);
    for (uint32_t job = 0; job < spans_.jobs().size(); ++job) {
      begins[spans_.jobs()[job].begin] = job;
    }
    for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
      if (begins[task] != JobSpans::kNone) {
        end_region();
        forward_ = spans_.jobs()[begins[task]].is_backward ? JobSpans::kNone : begins[task];
      }
      add(task);
    }
    end_region();
    return writer_.take();
  }

  /// The halved forwards, as task positions of the result.
  const std::vector<JobRegion>& regions() const { return regions_; }

 private:
  void add(uint32_t task) {
    std::optional<Halves> halves = halves_of(task);
    if (forward_ == JobSpans::kNone) {
      return append(task, halves);
    }
    if (!halves) {
      const TaskPiece all = whole(task);
      const bool is_behind = second_touches_.conflicts(all);
      return put(task, all, is_behind ? second_ : first_);
    }
    if (std::ranges::any_of((*halves)[0], [&](const TaskPiece& piece) {
          return second_touches_.conflicts(piece);
        })) {
      end_region();
    }
    for (const TaskPiece& piece : (*halves)[0]) {
      put(task, piece, first_);
    }
    for (const TaskPiece& piece : (*halves)[1]) {
      put(task, piece, second_);
    }
  }

  void put(uint32_t task, const TaskPiece& piece, std::vector<Item>& half) {
    if (&half == &second_) {
      second_touches_.add(piece);
    }
    half.push_back({task, piece});
  }

  void append(uint32_t task, const std::optional<Halves>& halves) {
    if (!halves) {
      return write({task, whole(task)});
    }
    for (const std::vector<TaskPiece>& half : *halves) {
      for (const TaskPiece& piece : half) {
        write({task, piece});
      }
    }
  }

  /// Finds the buffers that are gathered or scattered in two halves.
  void find_rows() {
    for (const Task& task : program_.tasks) {
      if (is_row_call(program_, task, rows_) &&
          !communicates_as(program_.spec(task), CommOp::kAllReduce)) {
        const bool gathers = communicates_as(program_.spec(task), CommOp::kAllGather);
        const BufferRange& whole = program_.operands_of(task)[gathers ? 1 : 0];
        touches_rows_[whole.buffer.index()] = true;
      }
    }
  }

  bool is_of_forward(uint32_t task) const {
    return forward_ != JobSpans::kNone && spans_.job_of(task) == forward_;
  }

  std::optional<Halves> halves_of(uint32_t task) {
    if (is_row_call(program_, program_.tasks[task], rows_)) {
      const OpSpec& spec = program_.spec(program_.tasks[task]);
      const auto ranges = program_.operands_of(program_.tasks[task]);
      return is_of_forward(task) || !communicates_as(spec, CommOp::kAllReduce)
                 ? std::optional(
                       Halves{{{leading_half(spec, ranges, 0)}, {leading_half(spec, ranges, 1)}}})
                 : std::nullopt;
    }
    return is_of_forward(task) || hides_a_half(task) ? halves_of_compute(task) : std::nullopt;
  }

  /// True for an input gradient next to halved calls that does not take much longer as two halves.
  bool hides_a_half(uint32_t task) {
    const OpSpec& spec = program_.spec(program_.tasks[task]);
    const auto ranges = program_.operands_of(program_.tasks[task]);
    const bool is_dgrad =
        has_role(spec, OpRole::kProductDgrad) || has_role(spec, OpRole::kScaledProductDgrad);
    if (!is_dgrad || (!touches_rows_[ranges.front().buffer.index()] &&
                      !touches_rows_[ranges.back().buffer.index()])) {
      return false;
    }
    const std::optional<int64_t> half = half_of_rows(spec);
    return half && (!prices_ || 2 * prices_->piece_ns(task, {0, *half}) <=
                                    prices_->of(task).ns / 100 * kMostPercentInHalves);
  }

  static std::optional<int64_t> half_of_rows(const OpSpec& spec) {
    const std::optional<SplitRule> rule = split_rule(spec);
    return rule && rule->dimension == SplitDimension::kRows && rule->count % 2 == 0 &&
                   rule->count / 2 % rule->unit == 0
               ? std::optional(rule->count / 2)
               : std::nullopt;
  }

  std::optional<Halves> halves_of_compute(uint32_t task) {
    const std::optional<int64_t> half = half_of_rows(program_.spec(program_.tasks[task]));
    if (!half) {
      return std::nullopt;
    }
    Halves halves;
    const int64_t border = is_of_forward(task) ? border_in_half(task, *half) : *half;
    for (const int64_t begin : {int64_t{0}, *half}) {
      std::vector<TaskPiece>& pieces = halves[begin == 0 ? 0 : 1];
      pieces.push_back(piece_of_task(program_, TaskId(task), {begin, begin + border}));
      if (border < *half) {
        pieces.push_back(piece_of_task(program_, TaskId(task), {begin + border, begin + *half}));
      }
    }
    return halves;
  }

  /// Where to cut a half of a product that takes longer than the calls beside it, so that the other
  /// half can start its next call: the first place at which the pieces take at most
  /// kMostPercentInPieces; else the end of the half.
  int64_t border_in_half(uint32_t task, int64_t half) {
    const OpSpec& spec = program_.spec(program_.tasks[task]);
    if (!prices_ || !(has_role(spec, OpRole::kProduct) || has_role(spec, OpRole::kScaledProduct))) {
      return half;
    }
    const int64_t unit = std::lcm(split_rule(spec)->unit, min_rows_);
    const int64_t most_ns = prices_->piece_ns(task, {0, half}) / 100 * kMostPercentInPieces;
    for (int64_t border = unit; border < half; border += unit) {
      const int64_t first_ns = prices_->piece_ns(task, {0, border});
      if (first_ns >= longest_call_ns_ / 100 * kPercentOfCall &&
          first_ns + prices_->piece_ns(task, {border, half}) <= most_ns) {
        return border;
      }
    }
    return half;
  }

  TaskPiece whole(uint32_t task) const {
    const Task& it = program_.tasks[task];
    const auto ranges = program_.operands_of(it);
    return {program_.spec(it), {ranges.begin(), ranges.end()}};
  }

  void write(const Item& item) {
    num_written_ += append_piece(writer_, program_, item.piece, program_.tasks[item.task]);
  }

  void end_region() {
    JobRegion region{.begin = num_written_};
    std::ranges::for_each(first_, [&](const Item& item) { write(item); });
    region.middle = num_written_;
    std::ranges::for_each(second_, [&](const Item& item) { write(item); });
    region.end = num_written_;
    if (region.begin < region.middle && region.middle < region.end) {
      regions_.push_back(region);
    }
    first_.clear();
    second_.clear();
    second_touches_.clear();
  }

  const Program& program_;
  int64_t rows_;
  int64_t min_rows_;
  JobSpans spans_;
  ProgramRewriter writer_;
  std::vector<bool> touches_rows_;  // by buffer
  std::optional<StepPrices> prices_;
  int64_t longest_call_ns_ = 0;
  uint32_t num_written_ = 0;
  uint32_t forward_ = JobSpans::kNone;  // the forward being cut; kNone: none
  std::vector<Item> first_;             // items of its first half that are not written yet
  std::vector<Item> second_;
  Touched second_touches_;
  std::vector<JobRegion> regions_;
};

}  // namespace

PassResult halve_forward(Program program, const HalveForwardOptions& options,
                         const PassContext& context) {
  if (options.rows == 0) {
    return {std::move(program), {false, 0, "not asked for"}};
  }
  if (!options.whole_because.empty()) {
    return {std::move(program), {false, 0, "left forwards whole, since " + options.whole_because}};
  }
  check(!routes_tokens(program) && !gathers_copies(program),
        "halves of forwards with experts, or in which ranks gather FP8 copies");
  Halver halver(program, options, context.cost_model);
  Program halved = halver.run();
  RegionWeaver weaver(halved, context.cost_model);
  int64_t num_woven = 0;
  for (const JobRegion& region : halver.regions()) {
    num_woven += weaver.weave_region(region) ? 1 : 0;
  }
  std::string summary = fmt::format("interleaved the halves of {} of {} forwards", num_woven,
                                    halver.regions().size());
  program = reorder_tasks(halved, weaver.order());
  move_tensor_communication(program, options.comm_priority);
  return {std::move(program), {true, num_woven, std::move(summary)}};
}

Pass halve_forward_pass(const PipelineOptions& options) {
  return {.name = "halve_forward",
          .summary =
              "Interleaves the two halves of a microbatch's forward, so that one computes while "
              "the other communicates between tensor ranks.",
          .run = run_of(halve_forward, options),
          .changes_rounding = true,
          .only_overlaps = true,
          .keys = {"overlap.pair_forward_backward"},
          .is_wanted = halves_forwards};
}

}  // namespace braid
