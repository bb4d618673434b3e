#include "passes/context/cut_exchanges.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/attributes.h"
#include "ops/context_layout.h"
#include "ops/op.h"
#include "passes/pipeline_options.h"
#include "passes/program_rewriter.h"
#include "passes/tensor/split_task.h"

namespace braid {
namespace {

/// Three tasks in a row.
struct Exchange {
  uint32_t begin = 0;
  /// True: split_heads, all_to_all, swap_blocks. False: swap_blocks, all_to_all, split_heads back.
  bool to_sequence = false;
};

class ExchangeCutter {
 public:
  explicit ExchangeCutter(const Program& program)
      : program_(program), touches_(program.buffers.size()), writer_(program) {
    for (const BufferRange& range : program.operands) {
      ++touches_[range.buffer.index()];
    }
  }

  PassResult run() {
    int64_t num_cut = 0;
    for (uint32_t task = 0; task < program_.tasks.size();) {
      if (const auto exchange = exchange_at(task)) {
        cut(*exchange);
        ++num_cut;
        task += 3;
      } else {
        writer_.append(TaskId(task++));
      }
    }
    return {writer_.take(),
            {num_cut > 0, num_cut, fmt::format("split {} exchanges of heads in half", num_cut)}};
  }

 private:
  std::optional<Exchange> exchange_at(uint32_t begin) const {
    if (begin + 3 > program_.tasks.size() || !is_call(begin + 1)) {
      return std::nullopt;
    }
    const bool to_sequence = is(OpRole::kSplitHeads, begin);
    const uint32_t split = to_sequence ? begin : begin + 2;
    const uint32_t swap = to_sequence ? begin + 2 : begin;
    const bool fits = is(OpRole::kSplitHeads, split) && is(OpRole::kSwapBlocks, swap) &&
                      is_inverse(split) != to_sequence && swaps_halves(swap, to_sequence) &&
                      is_all_for(begin, begin + 1) && is_all_for(begin + 1, begin + 2);
    return fits ? std::optional(Exchange{begin, to_sequence}) : std::nullopt;
  }

  bool is(OpRole role, uint32_t task) const {
    return has_role(program_.spec(program_.tasks[task]), role);
  }

  bool is_call(uint32_t task) const {
    const OpSpec& spec = program_.spec(program_.tasks[task]);
    const std::optional<GroupId> group = group_of(program_, spec);
    return communicates_as(spec, CommOp::kAllToAll) && group &&
           program_.groups[group->index()].kind == GroupKind::kContext;
  }

  bool is_inverse(uint32_t split) const {
    return attributes_of<SplitHeadsAttributes>(program_.spec(program_.tasks[split])).inverse;
  }

  /// Whether swap_blocks joins the halves into a sequence, or takes them apart.
  bool swaps_halves(uint32_t swap, bool to_sequence) const {
    const auto blocks = attributes_of<SwapBlocksAttributes>(program_.spec(program_.tasks[swap]));
    return (to_sequence ? blocks.inner : blocks.outer) == 2;
  }

  /// Whether the whole result of the first task goes to the second and nowhere else.
  bool is_all_for(uint32_t first, uint32_t second) const {
    const BufferRange& made = program_.operands_of(program_.tasks[first]).back();
    const Buffer& buffer = program_.buffers[made.buffer.index()];
    return buffer.lifetime == Lifetime::kStep && made.begin == 0 &&
           made.end == buffer.num_elems() && touches_[made.buffer.index()] == 2 &&
           program_.operands_of(program_.tasks[second])[0] == made;
  }

  void cut(const Exchange& exchange) {
    const uint32_t first = exchange.begin;
    const uint32_t call = first + 1;
    const uint32_t last = first + 2;
    std::array<TaskPiece, 2> calls{half_of(call, 0), half_of(call, 1)};
    const size_t swapped = exchange.to_sequence ? 1 : 0;
    for (const int half : {0, 1}) {
      const uint32_t swap = exchange.to_sequence ? last : first;
      calls[static_cast<size_t>(half)].operands[swapped] = half_of(swap, half).operands[swapped];
    }
    if (exchange.to_sequence) {
      for (const int half : {0, 1}) {
        write(first, half_of(first, half));
        write(call, calls[static_cast<size_t>(half)]);
      }
      return;
    }
    write(call, calls[0]);
    write(call, calls[1]);
    write(last, half_of(last, 0));
    write(last, half_of(last, 1));
  }

  TaskPiece half_of(uint32_t task, int64_t half) const {
    const Task& it = program_.tasks[task];
    return leading_half(program_.spec(it), program_.operands_of(it), half);
  }

  void write(uint32_t like, const TaskPiece& piece) {
    writer_.append(piece.spec, piece.operands, program_.tasks[like]);
  }

  const Program& program_;
  std::vector<int64_t> touches_;  // by buffer: operands that it is
  ProgramRewriter writer_;
};

}  // namespace

PassResult cut_exchanges(Program program) {
  const bool has_context = std::ranges::any_of(
      program.groups, [](const Group& group) { return group.kind == GroupKind::kContext; });
  if (!has_context) {
    return {std::move(program), {false, 0, "no context ranks"}};
  }
  PassResult result = ExchangeCutter(program).run();
  if (!result.report.changed) {
    result.program = std::move(program);
  }
  return result;
}

Pass cut_exchanges_pass() {
  return {.name = "cut_exchanges",
          .summary =
              "Splits each exchange of heads between context ranks into one exchange per half of "
              "the sequence.",
          .run = run_of(cut_exchanges),
          .splits_calls = true};
}

}  // namespace braid
