#include "passes/fuse_swiglu.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ops/activation.h"
#include "ops/linear_swiglu.h"
#include "ops/offload.h"
#include "ops/op.h"
#include "passes/task_writer.h"

namespace braid {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

bool is_activation(const OpSpec& spec) {
  return spec.op == kSwigluOp.name || spec.op == kSwigluBackwardOp.name;
}

/// Which operand of the activation the product makes.
size_t handed_on(const OpSpec& activation) {
  return activation.op == kSwigluOp.name ? 0 : 1;
}

/// One operand of a task.
struct Use {
  uint32_t task = 0;
  BufferRange range;
  Access access = Access::kRead;

  bool conflicts(const BufferRange& other, Access other_access) const {
    return (writes(access) || writes(other_access)) && range.overlaps(other);
  }
};

/// All uses of each buffer, in program order.
class Uses {
 public:
  explicit Uses(const Program& program) : program_(program), rows_(program.buffers.size()) {
    for (uint32_t i = 0; i < program.tasks.size(); ++i) {
      const auto ranges = program.operands_of(program.tasks[i]);
      const OpSpec& spec = program.spec(program.tasks[i]);
      for (size_t k = 0; k < ranges.size(); ++k) {
        rows_[ranges[k].buffer.index()].push_back({i, ranges[k], spec.operands[k].access});
      }
    }
  }

  std::span<const Use> of(BufferId buffer) const { return rows_[buffer.index()]; }

  /// Those by tasks behind `first` and in front of `last`.
  std::span<const Use> between(BufferId buffer, uint32_t first, uint32_t last) const {
    const std::vector<Use>& row = rows_[buffer.index()];
    const auto begin = std::ranges::upper_bound(row, first, {}, &Use::task);
    const auto end = std::ranges::lower_bound(row, last, {}, &Use::task);
    return begin < end ? std::span<const Use>(begin, end) : std::span<const Use>();
  }

  /// By the last task in front of `before` that writes some of the range; null if there is none.
  const Use* last_write(const BufferRange& range, uint32_t before) const {
    const std::vector<Use>& row = rows_[range.buffer.index()];
    auto it = std::ranges::lower_bound(row, before, {}, &Use::task);
    while (it != row.begin()) {
      --it;
      if (it->conflicts(range, Access::kRead)) {
        return &*it;
      }
    }
    return nullptr;
  }

  /// Whether the task conflicts with none behind `first` and in front of `last`.
  bool may_pass(uint32_t task, uint32_t first, uint32_t last) const {
    const Task& it = program_.tasks[task];
    const auto ranges = program_.operands_of(it);
    const OpSpec& spec = program_.spec(it);
    for (size_t k = 0; k < ranges.size(); ++k) {
      const Access access = spec.operands[k].access;
      const auto others = between(ranges[k].buffer, first, last);
      if (std::ranges::any_of(others,
                              [&](const Use& use) { return use.conflicts(ranges[k], access); })) {
        return false;
      }
    }
    return true;
  }

 private:
  const Program& program_;
  std::vector<std::vector<Use>> rows_;  // by buffer
};

struct Pair {
  uint32_t product = 0;
  uint32_t activation = 0;
  OpSpec spec;
  std::vector<BufferRange> ranges;
};

/// Of both tasks as one, in the order of its operands.
std::vector<BufferRange> fused_ranges(const Program& program, const Task& product,
                                      const Task& activation) {
  const auto p = program.operands_of(product);
  const auto a = program.operands_of(activation);
  return program.spec(activation).op == kSwigluOp.name
             ? std::vector<BufferRange>{p[0], p[1], p[2], a[1]}
             : std::vector<BufferRange>{p[0], p[1], a[0], a[2]};
}

bool belong_together(const Task& a, const Task& b) {
  return a.stream == b.stream && a.label.phase == b.label.phase &&
         a.label.microbatch == b.label.microbatch &&
         a.label.virtual_stage == b.label.virtual_stage && a.label.layer == b.label.layer;
}

/// What the activation writes must be none of the product's.
bool are_apart(const Program& program, const Task& product, const Task& activation) {
  const BufferRange& result = program.operands_of(activation).back();
  return std::ranges::none_of(program.operands_of(product),
                              [&](const BufferRange& range) { return range.overlaps(result); });
}

/// Whether these two tasks are all that touches the range.
bool is_only_handed_on(const Uses& uses, const BufferRange& range, const Pair& pair) {
  return std::ranges::all_of(uses.of(range.buffer), [&](const Use& use) {
    return use.task == pair.product || use.task == pair.activation || !use.range.overlaps(range);
  });
}

/// The activation and the product that could be one task with it, wherever that has its place.
std::optional<Pair> pair_of(const Program& program, const Uses& uses, uint32_t activation) {
  const Task& task = program.tasks[activation];
  const OpSpec& spec = program.spec(task);
  const BufferRange& range = program.operands_of(task)[handed_on(spec)];
  const Use* const write = uses.last_write(range, activation);
  if (write == nullptr || write->range != range ||
      program.buffers[range.buffer.index()].lifetime != Lifetime::kStep) {
    return std::nullopt;
  }
  const Task& product = program.tasks[write->task];
  const auto whole = fused({program.spec(product), spec});
  if (!whole || !belong_together(product, task) || !are_apart(program, product, task)) {
    return std::nullopt;
  }
  Pair pair{write->task, activation, *whole, fused_ranges(program, product, task)};
  const bool is_kept = spec.op == kSwigluOp.name;  // the product is an operand of the whole
  return is_kept || is_only_handed_on(uses, range, pair) ? std::optional(std::move(pair))
                                                         : std::nullopt;
}

/// Whether the op communicates, or fetches from the host.
bool brings_in(const OpSpec& spec) {
  return spec.op == kReloadOp.name || std::ranges::any_of(all_ops(), [&](const OpDefinition* op) {
           return op->name == spec.op && op->op_class == OpClass::kCommunication;
         });
}

/// Whether compute reads some of what that use has written, up to the task `until`.
bool is_computed_with(const Program& program, const Uses& uses, const Use& written,
                      uint32_t until) {
  const auto others = uses.between(written.range.buffer, written.task, until + 1);
  return std::ranges::any_of(others, [&](const Use& use) {
    const OpSpec& spec = program.spec(program.tasks[use.task]);
    return reads(use.access) && use.range.overlaps(written.range) && !brings_in(spec);
  });
}

/// Whether the product may hide something from other ranks or the host that compute between the two
/// tasks is the first to read. By what tasks read, not by streams and places of communication: so
/// the same tasks are one with overlap and without.
bool hides_something(const Program& program, const Uses& uses, const Pair& pair) {
  for (uint32_t i = pair.product + 1; i <= pair.activation; ++i) {
    const auto ranges = program.operands_of(program.tasks[i]);
    const OpSpec& spec = program.spec(program.tasks[i]);
    for (size_t k = 0; k < ranges.size() && !brings_in(spec); ++k) {
      const Use* const write =
          reads(spec.operands[k].access) ? uses.last_write(ranges[k], i) : nullptr;
      if (write != nullptr && brings_in(program.spec(program.tasks[write->task])) &&
          !is_computed_with(program, uses, *write, pair.product)) {
        return true;
      }
    }
  }
  return false;
}

enum class At : uint8_t { kProduct, kActivation };

/// Pairs that can be one task at that place, all at once: of two tasks that change places one
/// passes the other, which has been looked at.
std::vector<Pair> find_pairs(const Program& program, At at) {
  const Uses uses(program);
  std::vector<bool> is_taken(program.tasks.size());
  std::vector<Pair> pairs;
  for (uint32_t i = 0; i < program.tasks.size(); ++i) {
    if (!is_activation(program.spec(program.tasks[i]))) {
      continue;
    }
    std::optional<Pair> pair = pair_of(program, uses, i);
    if (!pair || is_taken[pair->product]) {
      continue;
    }
    const uint32_t moved = at == At::kProduct ? pair->activation : pair->product;
    if (uses.may_pass(moved, pair->product, pair->activation) &&
        (at == At::kProduct || !hides_something(program, uses, *pair))) {
      is_taken[pair->product] = true;
      pairs.push_back(*std::move(pair));
    }
  }
  return pairs;
}

Program with_pairs(const Program& program, const std::vector<Pair>& pairs, At at) {
  std::vector<uint32_t> pair_at(program.tasks.size(), kNone);
  std::vector<bool> is_left_out(program.tasks.size());
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    const bool at_product = at == At::kProduct;
    pair_at[at_product ? pairs[i].product : pairs[i].activation] = i;
    is_left_out[at_product ? pairs[i].activation : pairs[i].product] = true;
  }
  TaskWriter writer(program);
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    if (pair_at[i] != kNone) {
      const Pair& pair = pairs[pair_at[i]];
      writer.append(pair.spec, pair.ranges, program.tasks[pair.product]);
    } else if (!is_left_out[i]) {
      writer.append(TaskId(i));
    }
  }
  return writer.take();
}

}  // namespace

PassResult fuse_swiglu(Program program, const FuseSwigluOptions& options) {
  const auto num_activations = std::ranges::count_if(
      program.tasks, [&](const Task& task) { return is_activation(program.spec(task)); });
  int64_t num_pairs = 0;
  if (options.enabled && num_activations > 0) {
    // One behind the other: tasks that move in both directions at once could change places unseen.
    for (const At at : {At::kProduct, At::kActivation}) {
      if (num_pairs == num_activations) {
        break;
      }
      const std::vector<Pair> pairs = find_pairs(program, at);
      if (!pairs.empty()) {
        program = with_pairs(program, pairs, at);
      }
      num_pairs += static_cast<int64_t>(pairs.size());
    }
  }
  return {
      std::move(program),
      {num_pairs > 0, num_pairs,
       fmt::format("{} of {} SwiGLU tasks are one with a product", num_pairs, num_activations)}};
}

}  // namespace braid
