#include "passes/pipeline/fill_cooldown.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/op.h"
#include "passes/analysis/job_spans.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline/late_moves.h"
#include "passes/pipeline/stage_messages.h"
#include "passes/pipeline_options.h"

namespace braid {
namespace {

/// First and last use of a step buffer in program order.
struct LayerBuffer {
  uint32_t first = UINT32_MAX;  // first task that touches it
  uint32_t last = 0;
  int64_t bytes = 0;
};

/// Step buffers on the device that layers touch. The logits of a head are not counted.
std::vector<LayerBuffer> layer_buffers(const Program& program) {
  std::vector<LayerBuffer> buffers(program.buffers.size());
  for (uint32_t task = 0; task < program.tasks.size(); ++task) {
    for (const BufferRange& range : program.operands_of(program.tasks[task])) {
      LayerBuffer& buffer = buffers[range.buffer.index()];
      const Buffer& touched = program.buffers[range.buffer.index()];
      buffer.first = std::min(buffer.first, task);
      buffer.last = task;
      if (program.tasks[task].label.layer >= 0 && touched.lifetime == Lifetime::kStep &&
          touched.placement == Placement::kDevice) {
        buffer.bytes = touched.size_bytes();
      }
    }
  }
  std::erase_if(buffers, [](const LayerBuffer& buffer) { return buffer.bytes == 0; });
  return buffers;
}

int64_t most_live_bytes(const Program& program) {
  std::vector<int64_t> change(program.tasks.size() + 1);  // in front of a task
  for (const LayerBuffer& buffer : layer_buffers(program)) {
    change[buffer.first] += buffer.bytes;
    change[buffer.last + 1] -= buffer.bytes;
  }
  int64_t live = 0;
  int64_t most = 0;
  for (const int64_t bytes : change) {
    live += bytes;
    most = std::max(most, live);
  }
  return most;
}

class CooldownFiller {
 public:
  explicit CooldownFiller(const Program& program)
      : program_(program), jobs_(program), message_of_(jobs_.jobs().size()) {
    cooldown_ = static_cast<uint32_t>(jobs_.jobs().size());
    while (cooldown_ > 0 && jobs_.jobs()[cooldown_ - 1].is_backward) {
      --cooldown_;
    }
    for (uint32_t task = 0; task < program.tasks.size(); ++task) {
      const Task& it = program.tasks[task];
      last_stage_ = std::max(last_stage_, it.label.virtual_stage);
      if (is_backward(task) && communicates_as(program.spec(it), CommOp::kSend) &&
          is_stage_message(program, it)) {
        message_of_[jobs_.job_of(task)] = TaskId(task);
      }
    }
    if (!message_of_.empty()) {
      last_message_ = message_of_.back();
    }
  }

  /// The moves if all weight gradients of the last virtual stage from task `first_waiting` on wait
  /// for the last message.
  std::vector<LateMove> moves(uint32_t first_waiting) const {
    std::vector<LateMove> moves;
    for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
      if (!is_wgrad(task)) {
        continue;
      }
      const uint32_t job = jobs_.job_of(task);
      const bool waits_for_last = task >= first_waiting && is_of_last_stage(task);
      if (!waits_for_last && job < cooldown_) {
        continue;
      }
      const std::optional<TaskId>& behind = waits_for_last ? last_message_ : message_of_[job];
      if (behind && TaskId(task) < *behind) {
        moves.push_back({TaskId(task), *behind});
      }
    }
    return moves;
  }

  /// The first weight gradient that waits for the last message. All of the last virtual stage
  /// behind it wait too.
  uint32_t first_that_waits() const {
    auto first = static_cast<uint32_t>(program_.tasks.size());
    if (!last_message_) {
      return first;
    }
    double flops = flops_to_pass();
    std::set<uint32_t> before_cooldown;
    for (uint32_t task = first; task-- > 0;) {
      const uint32_t job = jobs_.job_of(task);
      if (!is_wgrad(task) || !(waits_anyway(task) || is_of_last_stage(task))) {
        continue;
      }
      flops -= flops_of(task);
      if (job < cooldown_) {
        before_cooldown.insert(job);
      }
      if (flops < 0 || before_cooldown.size() > most_before_cooldown()) {
        break;
      }
      first = task;
    }
    return first;
  }

  /// Bytes of the additional microbatches that the first rank of the pipeline keeps compared with
  /// this rank, if the layers of both are alike.
  int64_t bytes_of_first_rank() const {
    return last_message_ ? static_cast<int64_t>(most_before_cooldown()) * bytes_of_microbatch() : 0;
  }

 private:
  bool is_backward(uint32_t task) const {
    const uint32_t job = jobs_.job_of(task);
    return job != JobSpans::kNone && jobs_.jobs()[job].is_backward;
  }
  bool is_wgrad(uint32_t task) const {
    return program_.tasks[task].label.phase == Phase::kWgrad && is_backward(task);
  }
  bool is_of_last_stage(uint32_t task) const {
    return program_.tasks[task].label.virtual_stage == last_stage_;
  }
  bool is_of_last_job(uint32_t task) const { return jobs_.job_of(task) + 1 == jobs_.jobs().size(); }
  double flops_of(uint32_t task) const {
    return spec_cost(program_.spec(program_.tasks[task])).flops;
  }

  /// Arithmetic of the dgrads that the last message still has to pass: those of the layers in front
  /// of the sender's first layer. Each layer counts like the sender's.
  double flops_to_pass() const {
    std::set<int32_t> layers;
    double flops = 0;
    for (uint32_t task = jobs_.jobs().back().begin; task < last_message_->value; ++task) {
      const Label& label = program_.tasks[task].label;
      if (is_of_last_job(task) && label.phase == Phase::kDgrad && label.layer >= 0) {
        layers.insert(label.layer);
        flops += flops_of(task);
      }
    }
    return layers.empty() ? 0 : flops / static_cast<double>(layers.size()) * *layers.begin();
  }

  /// How many more microbatches the first rank of the pipeline keeps than this one: a forward per
  /// rank between them, two if stages go round the ranks.
  size_t most_before_cooldown() const {
    const OpSpec& spec = program_.spec(program_.tasks[last_message_->index()]);
    const std::vector<int>& ranks = program_.groups[group_of(program_, spec)->index()].ranks;
    const auto in_front = std::ranges::find(ranks, program_.rank) - ranks.begin();
    return static_cast<size_t>(in_front) * (last_stage_ > 0 ? 2 : 1);
  }

  /// The largest number of bytes kept from a forward to its backward.
  int64_t bytes_of_microbatch() const {
    std::vector<int64_t> bytes(jobs_.jobs().size());
    for (const LayerBuffer& buffer : layer_buffers(program_)) {
      const uint32_t from = jobs_.job_of(buffer.first);
      const uint32_t to = jobs_.job_of(buffer.last);
      if (is_backward(buffer.last) && from != JobSpans::kNone && !is_backward(buffer.first)) {
        bytes[to] += buffer.bytes;
      }
    }
    return bytes.empty() ? 0 : *std::ranges::max_element(bytes);
  }

  /// True if the task is already behind the last message, or moves there with the rest of its job.
  bool waits_anyway(uint32_t task) const {
    return task > last_message_->value || is_of_last_job(task);
  }

  const Program& program_;
  JobSpans jobs_;
  std::vector<std::optional<TaskId>> message_of_;  // by job: the message that a backward sends
  std::optional<TaskId> last_message_;             // the message of the last job
  int32_t last_stage_ = 0;
  uint32_t cooldown_ = 0;  // the first job behind the last forward
};

constexpr std::string_view kMoved = "weight gradients into the cool-down";

/// Makes as many of the moves as keep live bytes within the limit.
PassResult fill_within(const Program& program, const CooldownFiller& filler, int64_t limit_bytes) {
  const auto fill = [&](uint32_t first) { return move_late(program, filler.moves(first), kMoved); };
  uint32_t first = filler.first_that_waits();
  PassResult filled = fill(first);
  if (most_live_bytes(filled.program) <= limit_bytes) {
    return filled;
  }
  auto enough = static_cast<uint32_t>(program.tasks.size());  // none waits for the last message
  filled = fill(enough);
  if (most_live_bytes(filled.program) > limit_bytes) {
    return {program, {false, 0, "moved nothing: recomputed values would have to be kept"}};
  }
  while (enough - first > 1) {
    const uint32_t middle = std::midpoint(first, enough);
    PassResult less = fill(middle);
    if (most_live_bytes(less.program) <= limit_bytes) {
      enough = middle;
      filled = std::move(less);
    } else {
      first = middle;
    }
  }
  return filled;
}

std::vector<OverlapAxis> cooldown_axes(const RunConfig& config, const AxisLimits&) {
  if (config.parallel.pipeline == 1) {
    return {};
  }
  return {{"cool-down",
           {[](OverlapConfig& overlap) { overlap.fill_cooldown = false; },
            [](OverlapConfig& overlap) { overlap.fill_cooldown = true; }},
           AxisPlace::kStageWgrads}};
}

}  // namespace

PassResult fill_cooldown(Program program, const FillCooldownOptions& options) {
  if (!options.enabled) {
    return {std::move(program), {false, 0, "not asked for"}};
  }
  const CooldownFiller filler(program);
  if (options.recompute.policy != Recompute::kNone) {
    const int64_t more = options.recompute.num_layers == 0 ? filler.bytes_of_first_rank() : 0;
    return fill_within(program, filler, most_live_bytes(program) + more);
  }
  const std::vector<LateMove> moves = filler.moves(filler.first_that_waits());
  return move_late(std::move(program), moves, kMoved);
}

Pass fill_cooldown_pass(const PipelineOptions& options) {
  return {.name = "fill_cooldown",
          .summary =
              "Delays weight gradients of the last backwards to the end of the step, where a "
              "rank would be idle while earlier stages finish.",
          .run = run_of(fill_cooldown, options),
          .only_overlaps = true,
          .keys = {"overlap.fill_cooldown"},
          .read_keys =
              [](const OverlapConfig& overlap, PipelineOptions& its) {
                its.of<FillCooldownOptions>().enabled = overlap.fill_cooldown;
              },
          .axes = cooldown_axes};
}

}  // namespace braid
