#include "passes/context/split_exchange.h"

#include <fmt/core.h>

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "config/choices.h"
#include "ops/attention.h"
#include "ops/attention_step.h"
#include "ops/attributes.h"
#include "ops/blocks.h"
#include "ops/context_layout.h"
#include "ops/elementwise.h"
#include "ops/op.h"
#include "passes/analysis/rank_independent.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline_options.h"
#include "passes/program_rewriter.h"
#include "passes/tensor/split_task.h"
#include "sim/cost_model.h"

namespace braid {
namespace {

/// An attention of a forward with both exchanges and both products, all in a row.
struct ExchangedAttention {
  uint32_t product = 0;  ///< in front
  uint32_t in = 0;       ///< split_heads, all_to_all, split_heads, all_to_all
  uint32_t attention = 0;
  uint32_t out = 0;     ///< all_to_all, all_to_all, split_heads, split_heads
  uint32_t behind = 0;  ///< the product behind
};

/// A task of that role, or an all-to-all.
struct Place {
  OpRole role = OpRole::kNone;
  bool is_exchange = false;

  bool fits(const OpSpec& spec) const {
    return is_exchange ? communicates_as(spec, CommOp::kAllToAll) : has_role(spec, role);
  }
};

constexpr Place kProduct{.role = OpRole::kProduct};
constexpr Place kRotary{.role = OpRole::kRotary};
constexpr Place kSplitHeads{.role = OpRole::kSplitHeads};
constexpr Place kAttention{.role = OpRole::kAttention};
constexpr Place kExchange{.is_exchange = true};
constexpr std::array kInWithRope{kProduct, kRotary, kSplitHeads, kExchange, kSplitHeads, kExchange};
constexpr std::array kIn{kProduct, kSplitHeads, kExchange, kSplitHeads, kExchange};
constexpr std::array kOut{kAttention, kExchange, kExchange, kSplitHeads, kSplitHeads, kProduct};

bool is_run_of(const Program& program, uint32_t begin, std::span<const Place> places) {
  if (begin + places.size() > program.tasks.size()) {
    return false;
  }
  for (uint32_t i = 0; i < places.size(); ++i) {
    if (!places[i].fits(program.spec(program.tasks[begin + i]))) {
      return false;
    }
  }
  return true;
}

bool comes_in_halves(const Program& program, uint32_t task) {
  const std::optional<SplitRule> rule = split_rule(program.spec(program.tasks[task]));
  return rule && rule->dimension == SplitDimension::kRows && rule->count % 2 == 0 &&
         rule->count / 2 % rule->unit == 0;
}

/// Whether the whole result of the first task is the first operand of the second.
bool leads_to(const Program& program, uint32_t first, uint32_t second) {
  return program.operands_of(program.tasks[second])[0] ==
         program.operands_of(program.tasks[first]).back();
}

/// Whether two pieces, `first` and `second`, together cover `whole`.
bool are_halves_of(const BufferRange& first, const BufferRange& second, const BufferRange& whole) {
  return first.buffer == whole.buffer && second.buffer == whole.buffer &&
         first.begin == whole.begin && first.end == second.begin && second.end == whole.end;
}

/// The attention whose first task is `product`.
std::optional<ExchangedAttention> attention_at(const Program& program, uint32_t product) {
  const bool has_rope = is_run_of(program, product, kInWithRope);
  if (!has_rope && !is_run_of(program, product, kIn)) {
    return std::nullopt;
  }
  ExchangedAttention it{.product = product, .in = product + (has_rope ? 2 : 1)};
  it.attention = it.in + 4;
  it.out = it.attention + 1;
  it.behind = it.out + 4;
  if (!is_run_of(program, it.attention, kOut)) {
    return std::nullopt;
  }
  const auto operand = [&](uint32_t task, size_t i) -> const BufferRange& {
    return program.operands_of(program.tasks[task])[i];
  };
  const OpSpec& attention = program.spec(program.tasks[it.attention]);
  const bool fits =
      program.tasks[it.attention].label.phase == Phase::kForward &&
      !attributes_of<AttentionAttributes>(attention).documents.documents &&
      attributes_of<AttentionAttributes>(attention).sequence == attention.operands[0].shape[0] &&
      (!has_rope || leads_to(program, product, product + 1)) &&
      are_halves_of(operand(it.in, 0), operand(it.in + 2, 0),
                    program.operands_of(program.tasks[it.in - 1]).back()) &&
      are_halves_of(operand(it.in + 1, 1), operand(it.in + 3, 1), operand(it.attention, 0)) &&
      are_halves_of(operand(it.out, 0), operand(it.out + 1, 0), operand(it.attention, 1)) &&
      are_halves_of(operand(it.out + 2, 1), operand(it.out + 3, 1), operand(it.behind, 0)) &&
      comes_in_halves(program, product) && comes_in_halves(program, it.behind) &&
      (!has_rope || comes_in_halves(program, product + 1));
  return fits ? std::optional(it) : std::nullopt;
}

OperandSpec read(OperandSpec operand) {
  operand.access = Access::kRead;
  return operand;
}

/// Of sequences, heads and positions: one row per head.
OperandSpec by_head(OperandSpec lse) {
  lse.shape = {lse.shape[0] * lse.shape[1], lse.shape[2]};
  return lse;
}

class Splitter {
 public:
  /// `model` may be null. Both must outlive it.
  Splitter(const Program& program, const CostModel* model)
      : program_(program),
        model_(model),
        priced_(model == nullptr ? Program{} : at_first_ranks(program)),
        writer_(program) {}

  Program run() {
    for (uint32_t task = 0; task < program_.tasks.size();) {
      const auto found = attention_at(program_, task);
      if (found && is_worth_it(*found)) {
        split(*found);
        task = found->behind + 1;
      } else {
        writer_.append(TaskId(task++));
      }
    }
    return writer_.take();
  }

  int64_t num_split() const { return num_split_; }

 private:
  void split(const ExchangedAttention& it) {
    ++num_split_;
    for (const uint32_t half : {0u, 1u}) {
      for (uint32_t task = it.product; task < it.in; ++task) {
        write(task, half_of(task, half));
      }
      writer_.append(TaskId(it.in + 2 * half));
      writer_.append(TaskId(it.in + 2 * half + 1));
    }
    split_attention(it.attention, TaskId(it.out));
    writer_.append(TaskId(it.out + 1));
    for (const uint32_t half : {0u, 1u}) {
      writer_.append(TaskId(it.out + 2 + half));
      write(it.behind, half_of(it.behind, half));
    }
  }

  /// Splits the attention; the call that returns the first half's result goes after that half.
  void split_attention(uint32_t attention, TaskId call) {
    const OpSpec& spec = program_.spec(program_.tasks[attention]);
    const auto ranges = program_.operands_of(program_.tasks[attention]);
    const OperandSpec& lse = spec.operands[2];
    OperandSpec half_lse = lse;
    half_lse.shape[2] /= 2;
    const BufferRange first_lse = add_buffer(ranges[2], ".first", half_lse);
    const BufferRange second_lse = add_buffer(ranges[2], ".second", half_lse);

    const Half qkv = half_of(ranges[0], spec.operands[0], 0);
    const Half out = half_of(ranges[1], spec.operands[1], 0);
    auto attributes = attributes_of<AttentionAttributes>(spec);
    attributes.sequence /= 2;
    write(attention, {{spec.op, to_attributes(attributes), {qkv.spec, out.spec, half_lse}},
                      {qkv.range, out.range, first_lse}});
    writer_.append(call);
    attend_to_all_keys(attention, second_lse, half_lse);
    write(attention, {{std::string(kJoinColumnsOp.name),
                       {},
                       {read(by_head(half_lse)), read(by_head(half_lse)), by_head(lse)}},
                      {first_lse, second_lse, ranges[2]}});
  }

  /// The second half of the queries.
  void attend_to_all_keys(uint32_t attention, const BufferRange& lse, const OperandSpec& lse_spec) {
    const OpSpec& spec = program_.spec(program_.tasks[attention]);
    const auto ranges = program_.operands_of(program_.tasks[attention]);
    const auto whole = attributes_of<AttentionAttributes>(spec);
    const int64_t half = whole.sequence / 2;
    OperandSpec kv_spec{spec.operands[0].dtype, Access::kWrite, spec.operands[0].shape};
    kv_spec.shape[1] = 2 * whole.kv_heads * whole.head_size;
    const BufferRange kv = add_buffer(ranges[0], ".kv", kv_spec);
    write(attention,
          {{std::string(kPackKvOp.name), {}, {spec.operands[0], kv_spec}}, {ranges[0], kv}});

    const Half qkv = half_of(ranges[0], spec.operands[0], 1);
    const Half out = half_of(ranges[1], spec.operands[1], 1);
    OperandSpec sum_spec = out.spec;
    sum_spec.dtype = lse_spec.dtype;
    const BufferRange sum = add_buffer(ranges[1], ".sum", sum_spec);
    const StepWindow window{.limit = whole.window, .query_positions = {.second_begin = half}};
    const AttentionStepAttributes step{.heads = whole.heads,
                                       .kv_heads = whole.kv_heads,
                                       .head_size = whole.head_size,
                                       .sequence = half,
                                       .kv_sequence = whole.sequence,
                                       .scale = whole.scale,
                                       .queries = half,
                                       .keys = whole.sequence,
                                       .causal = true,
                                       .window = whole.window.is_on() ? window : StepWindow{}};
    write(attention, {{std::string(kAttentionStepOp.name),
                       to_attributes(step),
                       {qkv.spec, read(kv_spec), sum_spec, lse_spec}},
                      {qkv.range, kv, sum, lse}});
    const OpDefinition& rounding = sum_spec.dtype == out.spec.dtype ? kCopyOp : kCastOp;
    write(attention,
          {{std::string(rounding.name), {}, {read(sum_spec), out.spec}}, {sum, out.range}});
  }

  struct Half {
    BufferRange range;
    OperandSpec spec;
  };

  /// Of the leading dimension.
  static Half half_of(BufferRange range, OperandSpec spec, int64_t half) {
    const int64_t elems = (range.end - range.begin) / 2;
    spec.shape[0] /= 2;
    range.begin += half * elems;
    range.end = range.begin + elems;
    return {range, spec};
  }

  TaskPiece half_of(uint32_t task, int64_t half) const {
    const int64_t rows = program_.spec(program_.tasks[task]).operands[0].shape[0] / 2;
    return piece_of_task(program_, TaskId(task), {half * rows, (half + 1) * rows});
  }

  BufferRange add_buffer(const BufferRange& like, std::string_view suffix,
                         const OperandSpec& spec) {
    Buffer buffer = program_.buffers[like.buffer.index()];
    buffer.name += suffix;
    buffer.dtype = spec.dtype;
    buffer.shape = spec.shape;
    const int64_t num_elems = buffer.num_elems();
    return {writer_.add_buffer(std::move(buffer)), 0, num_elems};
  }

  void write(uint32_t like, const TaskPiece& piece) {
    writer_.append(piece.spec, piece.operands, program_.tasks[like]);
  }

  bool is_worth_it(const ExchangedAttention& it) const {
    if (model_ == nullptr) {
      return true;
    }
    int64_t gained_ns = 0;
    for (const uint32_t call : {it.in + 1, it.in + 3, it.out, it.out + 1}) {
      gained_ns += rank_independent_ns(*model_, priced_, TaskId(call));
    }
    for (const uint32_t product : {it.product, it.behind}) {
      const OpSpec half = at_first_rank(half_of(product, 0).spec);
      gained_ns += rank_independent_ns(*model_, priced_, TaskId(product));
      gained_ns -= 2 * model_->task_cost(half).ns;
    }
    return gained_ns > 0;
  }

  const Program& program_;
  const CostModel* model_;
  Program priced_;  // with a model: at_first_ranks
  ProgramRewriter writer_;
  int64_t num_split_ = 0;
};

std::vector<OverlapAxis> split_axes(const RunConfig& config, const AxisLimits&) {
  const ParallelConfig& parallel = config.parallel;
  if (!config.overlap.may_change_rounding || parallel.tensor > 1 || parallel.context == 1 ||
      choice<ContextExchange>(parallel.context_method) != ContextExchange::kAllToAll) {
    return {};
  }
  return {{"split",
           {[](OverlapConfig& overlap) { overlap.split_ops = false; },
            [](OverlapConfig& overlap) {
              overlap.overlap_context_comm = true;
              overlap.split_ops = true;
            }},
           AxisPlace::kSplits}};
}

}  // namespace

PassResult split_exchange(Program program, const SplitExchangeOptions& options,
                          const PassContext& context) {
  if (!options.enabled) {
    return {std::move(program), {false, 0, "not asked for"}};
  }
  Splitter splitter(program, context.cost_model);
  Program result = splitter.run();
  const int64_t num_split = splitter.num_split();
  std::string summary =
      fmt::format("split {} attention calls between exchanges of heads", num_split);
  if (num_split == 0) {
    return {std::move(program), {false, 0, std::move(summary)}};
  }
  return {std::move(result), {true, num_split, std::move(summary)}};
}

Pass split_exchange_pass(const PipelineOptions& options) {
  return {.name = "split_exchange",
          .summary =
              "Splits attention and the tasks beside it, so that they run during exchanges of "
              "heads between context ranks.",
          .run = run_of(split_exchange, options),
          .changes_rounding = true,
          .only_overlaps = true,
          .keys = {"overlap.split_ops"},
          .is_wanted = [](const OverlapConfig& overlap) { return overlap.split_ops; },
          .axes = split_axes};
}

}  // namespace braid
