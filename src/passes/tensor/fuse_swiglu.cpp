#include "passes/tensor/fuse_swiglu.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ops/linear_swiglu.h"
#include "ops/op.h"
#include "passes/pipeline_options.h"
#include "passes/program_rewriter.h"
#include "passes/tensor/split_task.h"

namespace braid {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

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
  explicit Uses(const Program& program) : rows_(program.buffers.size()) {
    for (uint32_t i = 0; i < program.tasks.size(); ++i) {
      const auto ranges = program.operands_of(program.tasks[i]);
      const OpSpec& spec = program.spec(program.tasks[i]);
      for (size_t k = 0; k < ranges.size(); ++k) {
        rows_[ranges[k].buffer.index()].push_back({i, ranges[k], spec.operands[k].access});
      }
    }
  }

  std::span<const Use> of(BufferId buffer) const { return rows_[buffer.index()]; }

  /// The uses by tasks after `first` and before `last`.
  std::span<const Use> between(BufferId buffer, uint32_t first, uint32_t last) const {
    const std::vector<Use>& row = rows_[buffer.index()];
    const auto begin = std::ranges::upper_bound(row, first, {}, &Use::task);
    const auto end = std::ranges::lower_bound(row, last, {}, &Use::task);
    return begin < end ? std::span<const Use>(begin, end) : std::span<const Use>();
  }

  /// The last write of some of the range before task `before`; null if there is none.
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

  /// The last writes before task `before` that together cover exactly the range, sorted by position
  /// in it. Empty if there are none.
  std::vector<Use> last_writes(const BufferRange& range, uint32_t before) const {
    std::vector<Use> found;
    int64_t missing = range.end - range.begin;
    while (missing > 0) {
      const Use* const write = last_write(range, found.empty() ? before : found.back().task);
      if (write == nullptr) {
        return {};
      }
      found.push_back(*write);
      missing -= write->range.end - write->range.begin;
    }
    std::ranges::sort(found, {}, [](const Use& use) { return use.range.begin; });
    int64_t end = range.begin;
    for (const Use& use : found) {
      if (use.range.begin != end) {
        return {};
      }
      end = use.range.end;
    }
    return end == range.end ? found : std::vector<Use>();
  }

  /// True if such a task conflicts with no task after `first` and before `last`.
  bool may_pass(const TaskPiece& task, uint32_t first, uint32_t last) const {
    for (size_t k = 0; k < task.operands.size(); ++k) {
      const BufferRange& range = task.operands[k];
      const Access access = task.spec.operands[k].access;
      const auto others = between(range.buffer, first, last);
      if (std::ranges::any_of(others,
                              [&](const Use& use) { return use.conflicts(range, access); })) {
        return false;
      }
    }
    return true;
  }

 private:
  std::vector<std::vector<Use>> rows_;  // by buffer
};

/// A product and the activation of its result, or of some rows of its result.
struct Pair {
  uint32_t product = 0;
  uint32_t activation = 0;
  TaskPiece rows;  ///< the activation, or the rows of it
  OpSpec spec;     ///< the fused op
  std::vector<BufferRange> ranges;
};

/// Operands of the fused task, in its operand order.
std::vector<BufferRange> fused_ranges(std::span<const BufferRange> product,
                                      const TaskPiece& activation) {
  std::vector<BufferRange> ranges;
  for (const FusedOperand& it : fused_operands(activation.spec)) {
    ranges.push_back(it.of_product ? product[it.operand] : activation.operands[it.operand]);
  }
  return ranges;
}

bool belong_together(const Task& a, const Task& b) {
  return a.stream == b.stream && a.label.phase == b.label.phase &&
         a.label.microbatch == b.label.microbatch &&
         a.label.virtual_stage == b.label.virtual_stage && a.label.layer == b.label.layer;
}

/// Whether the activation writes no operand of the product.
bool are_apart(std::span<const BufferRange> product, const TaskPiece& activation) {
  for (size_t i = 0; i < activation.operands.size(); ++i) {
    const BufferRange& own = activation.operands[i];
    if (writes(activation.spec.operands[i].access) &&
        std::ranges::any_of(product, [&](const BufferRange& it) { return it.overlaps(own); })) {
      return false;
    }
  }
  return true;
}

/// Whether both read the same memory where the fused op reads it once.
bool share(std::span<const BufferRange> product, const TaskPiece& activation) {
  return std::ranges::all_of(shared_operands(activation.spec), [&](const SharedOperand& it) {
    return product[it.of_product] == activation.operands[it.of_activation];
  });
}

/// Whether only these two tasks access the range.
bool is_only_handed_on(const Uses& uses, const BufferRange& range, const Pair& pair) {
  return std::ranges::all_of(uses.of(range.buffer), [&](const Use& use) {
    return use.task == pair.product || use.task == pair.activation || !use.range.overlaps(range);
  });
}

/// The rows of an activation that read exactly this part of its operand. nullopt if it cannot be
/// cut there.
std::optional<TaskPiece> rows_reading(const Program& program, uint32_t activation,
                                      const BufferRange& part) {
  const Task& task = program.tasks[activation];
  const OpSpec& spec = program.spec(task);
  const auto ranges = program.operands_of(task);
  const BufferRange& whole = ranges[handed_on(spec)];
  if (part == whole) {
    return TaskPiece{spec, {ranges.begin(), ranges.end()}};
  }
  const std::optional<SplitRule> rule = split_rule(spec);
  if (!rule) {
    return std::nullopt;
  }
  const int64_t width = (whole.end - whole.begin) / rule->count;
  const int64_t begin = part.begin - whole.begin;
  const int64_t end = part.end - whole.begin;
  const int64_t unit = rule->unit * width;
  if (begin % unit != 0 || (end % unit != 0 && part.end != whole.end)) {
    return std::nullopt;
  }
  return piece_of_task(program, TaskId(activation), {begin / width, end / width});
}

/// Pairs the product that `write` belongs to with the activation, or with those of its rows that
/// read what `write` has written. nullopt if the two cannot be fused at any place.
std::optional<Pair> pair_of(const Program& program, const Uses& uses, const Use& write,
                            uint32_t activation) {
  const Task& product = program.tasks[write.task];
  const auto product_ranges = program.operands_of(product);
  std::optional<TaskPiece> rows = rows_reading(program, activation, write.range);
  if (!rows || !belong_together(product, program.tasks[activation])) {
    return std::nullopt;
  }
  auto whole = fused({program.spec(product), rows->spec});
  if (!whole || !are_apart(product_ranges, *rows) || !share(product_ranges, *rows)) {
    return std::nullopt;
  }
  const bool is_kept = keeps_product(rows->spec);
  std::vector<BufferRange> ranges = fused_ranges(product_ranges, *rows);
  Pair pair{write.task, activation, *std::move(rows), *std::move(whole), std::move(ranges)};
  return is_kept || is_only_handed_on(uses, write.range, pair) ? std::optional(std::move(pair))
                                                               : std::nullopt;
}

/// Pairs of the activation with all products that write its operand. Empty if any of them cannot be
/// fused.
std::vector<Pair> pairs_of(const Program& program, const Uses& uses, uint32_t activation) {
  const Task& task = program.tasks[activation];
  const BufferRange& range = program.operands_of(task)[handed_on(program.spec(task))];
  std::vector<Pair> pairs;
  if (program.buffers[range.buffer.index()].lifetime != Lifetime::kStep) {
    return pairs;
  }
  for (const Use& write : uses.last_writes(range, activation)) {
    std::optional<Pair> pair = pair_of(program, uses, write, activation);
    if (!pair) {
      return {};
    }
    pairs.push_back(*std::move(pair));
  }
  return pairs;
}

/// True if the op communicates or copies from the host.
bool brings_in(const OpSpec& spec) {
  const OpDefinition* const op = find_known_op(spec.op);
  return op != nullptr &&
         (op->op_class == OpClass::kCommunication || op->host_copy == HostCopy::kToDevice);
}

/// True if a compute task, up to and including `until`, reads some of what `written` has written.
bool is_computed_with(const Program& program, const Uses& uses, const Use& written,
                      uint32_t until) {
  const auto others = uses.between(written.range.buffer, written.task, until + 1);
  return std::ranges::any_of(others, [&](const Use& use) {
    const OpSpec& spec = program.spec(program.tasks[use.task]);
    return reads(use.access) && use.range.overlaps(written.range) && !brings_in(spec);
  });
}

/// Whether the product may hide a transfer from another rank or the host whose first reader is
/// compute between the two tasks. Depends on what tasks read, not on streams or places of
/// communication, so the same tasks are fused with and without overlap.
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

/// True if the two can be fused at that place.
bool may_be_at(At at, const Program& program, const Uses& uses, const Pair& pair) {
  if (at == At::kProduct) {
    return uses.may_pass(pair.rows, pair.product, pair.activation);
  }
  const Task& product = program.tasks[pair.product];
  const auto ranges = program.operands_of(product);
  return uses.may_pass({program.spec(product), {ranges.begin(), ranges.end()}}, pair.product,
                       pair.activation) &&
         !hides_something(program, uses, pair);
}

/// Finds pairs that can be fused at that place, all at once. If two tasks change their order, one
/// of them passes the other, and `may_pass` has checked that.
std::vector<Pair> find_pairs(const Program& program, At at) {
  const Uses uses(program);
  std::vector<bool> is_taken(program.tasks.size());
  std::vector<Pair> pairs;
  for (uint32_t i = 0; i < program.tasks.size(); ++i) {
    if (!is_fusable_activation(program.spec(program.tasks[i]))) {
      continue;
    }
    std::vector<Pair> found = pairs_of(program, uses, i);
    // A product is cut into pieces because of the work beside them, so its pieces do not move.
    // If fusing changes bits, whether a pair is fused must not depend on the order of other tasks.
    const bool may_move = at == At::kProduct ||
                          (found.size() == 1 && fusing_keeps_bits(program.spec(program.tasks[i])));
    if (!may_move || !std::ranges::all_of(found, [&](const Pair& pair) {
          return !is_taken[pair.product] && may_be_at(at, program, uses, pair);
        })) {
      continue;
    }
    for (Pair& pair : found) {
      is_taken[pair.product] = true;
      pairs.push_back(std::move(pair));
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
  ProgramRewriter writer(program);
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
  const auto num_activations = [&] {
    return std::ranges::count_if(
        program.tasks, [&](const Task& task) { return is_fusable_activation(program.spec(task)); });
  };
  const int64_t num_before = num_activations();
  int64_t num_left = num_before;
  // One place after the other: if tasks moved in both directions at once, two of them could change
  // their order without a check.
  for (const At at : {At::kProduct, At::kActivation}) {
    if (!options.enabled || num_left == 0) {
      break;
    }
    const std::vector<Pair> pairs = find_pairs(program, at);
    if (!pairs.empty()) {
      program = with_pairs(program, pairs, at);
      num_left = num_activations();
    }
  }
  const int64_t num_fused = num_before - num_left;
  return {std::move(program),
          {num_fused > 0, num_fused,
           fmt::format("fused {} of {} SwiGLU tasks with a product", num_fused, num_before)}};
}

Pass fuse_swiglu_pass(const PipelineOptions& options) {
  return {.name = "fuse_swiglu",
          .summary =
              "Fuses a product with the SwiGLU, or the gradient of SwiGLU, beside it into one "
              "task.",
          .run = run_of(fuse_swiglu, options),
          .keys = {"runtime.fuse_swiglu"}};
}

}  // namespace braid
