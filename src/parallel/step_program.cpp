#include "parallel/step_program.h"

#include <array>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/collectives.h"
#include "ops/elementwise.h"
#include "ops/operand_checker.h"
#include "ops/optimizer.h"
#include "parallel/expand.h"
#include "parallel/schedule.h"

namespace braid {
namespace {

OperandSpec vector_spec(DType dtype, Access access, int64_t num_elems) {
  return {.dtype = dtype, .access = access, .shape = {num_elems}};
}

std::vector<BufferId> add_param_buffers(ProgramBuilder& builder, const ParameterLayout& layout,
                                        DType dtype) {
  std::vector<BufferId> buffers;
  for (const ParameterUnit& unit : layout.units) {
    buffers.push_back(builder.add_buffer({.name = param_buffer_name(unit),
                                          .dtype = dtype,
                                          .shape = {unit.num_elems},
                                          .role = BufferRole::kParam,
                                          .lifetime = Lifetime::kPersistent}));
  }
  return buffers;
}

BufferId add_io(ProgramBuilder& builder, std::string name, DType dtype, const Shape& shape) {
  return builder.add_buffer({.name = std::move(name),
                             .dtype = dtype,
                             .shape = shape,
                             .role = BufferRole::kIo,
                             .lifetime = Lifetime::kPersistent});
}

/// Builds the training step; the members are its parts in program order.
class TrainProgram {
 public:
  TrainProgram(const ModelSpec& model, const ParameterLayout& layout, const Mesh& mesh, int rank,
               const TrainProgramOptions& options)
      : layout_(layout),
        options_(options),
        accumulator_(accumulator_dtype(options.dtype)),
        builder_("train", rank, mesh.num_ranks()),
        graph_(build_forward(model, {.microbatch = options.microbatch,
                                     .sequence = options.sequence,
                                     .dtype = options.dtype,
                                     .end = ForwardEnd::kLoss})) {
    check(!options.update_weights || options.dtype != DType::kF64,
          "there is no optimizer for f64 weights");
    differentiate(graph_);
    compute_ = builder_.add_stream({.name = "compute", .kind = StreamKind::kCompute});
    data_group_size_ = mesh.sizes().data;
    if (data_group_size_ > 1) {
      data_group_ = builder_.add_group(mesh.data_group(rank));
    }
    add_buffers();
  }

  Program build() {
    zero_alignment_gaps();
    forward_and_backward();
    if (data_group_size_ > 1) {
      reduce_over_data();
    }
    if (options_.update_weights) {
      clip();
      update_weights();
    }
    return builder_.take();
  }

 private:
  bool has_main_weights() const { return options_.dtype == DType::kBF16; }

  std::vector<BufferId> add_unit_buffers(std::string (*name)(const ParameterUnit&), BufferRole role,
                                         DType dtype, Lifetime lifetime) {
    std::vector<BufferId> buffers;
    for (const ParameterUnit& unit : layout_.units) {
      buffers.push_back(builder_.add_buffer({.name = name(unit),
                                             .dtype = dtype,
                                             .shape = {unit.num_elems},
                                             .role = role,
                                             .lifetime = lifetime}));
    }
    return buffers;
  }

  void add_buffers() {
    bindings_.params = add_param_buffers(builder_, layout_, options_.dtype);
    bindings_.main_grads =
        add_unit_buffers(main_grad_buffer_name, BufferRole::kMainGrad, accumulator_,
                         options_.update_weights ? Lifetime::kStep : Lifetime::kPersistent);
    if (options_.update_weights) {
      main_weights_ = has_main_weights()
                          ? add_unit_buffers(main_weight_buffer_name, BufferRole::kMainWeight,
                                             DType::kF32, Lifetime::kPersistent)
                          : bindings_.params;
      exp_avg_ = add_unit_buffers(exp_avg_buffer_name, BufferRole::kOptimizerState, DType::kF32,
                                  Lifetime::kPersistent);
      exp_avg_sq_ = add_unit_buffers(exp_avg_sq_buffer_name, BufferRole::kOptimizerState,
                                     DType::kF32, Lifetime::kPersistent);
      scalars_ = add_io(builder_, "optimizer_scalars", DType::kF32, {3});
      grad_norm_ = add_io(builder_, "grad_norm", DType::kF32, {1});
      grad_scale_ = add_io(builder_, "grad_scale", DType::kF32, {1});
    }
    const int64_t rows = options_.microbatch * options_.sequence;
    const int64_t microbatches = options_.num_microbatches;
    losses_ = add_io(builder_, "losses", accumulator_, {microbatches});
    bindings_.io = {
        {"tokens", {add_io(builder_, "tokens", DType::kI32, {microbatches, rows}), rows}},
        {"labels", {add_io(builder_, "labels", DType::kI32, {microbatches, rows}), rows}},
        {"loss_scale", {add_io(builder_, "loss_scale", accumulator_, {1}), 0}},
        {"loss", {losses_, 1}},
    };
  }

  Label unit_label(size_t unit, Phase phase) {
    return {.phase = phase,
            .layer = layout_.units[unit].layer,
            .site = builder_.site(layout_.units[unit].name)};
  }

  /// Collectives and norms run over whole units, so the gaps between parameters must hold zeros.
  void zero_alignment_gaps() {
    for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
      const ParameterUnit& facts = layout_.units[unit];
      for (size_t i = 0; i < facts.slots.size(); ++i) {
        const int64_t gap_begin = layout_.slots[facts.slots[i]].end;
        const int64_t gap_end =
            i + 1 < facts.slots.size() ? layout_.slots[facts.slots[i + 1]].begin : facts.num_elems;
        if (gap_begin < gap_end) {
          const OpSpec spec{
              .op = "fill",
              .attributes = to_attributes(FillAttributes{.value = 0.0}),
              .operands = {vector_spec(accumulator_, Access::kWrite, gap_end - gap_begin)}};
          builder_.add_task(spec,
                            std::array{BufferRange{bindings_.main_grads[unit], gap_begin, gap_end}},
                            compute_, unit_label(unit, Phase::kWgrad));
        }
      }
    }
  }

  void forward_and_backward() {
    StageExpander expander(builder_, graph_, layout_, bindings_, "");
    for (const Job& job : single_stage_schedule(options_.num_microbatches)) {
      if (job.kind == JobKind::kForward) {
        expander.add_forward(job.microbatch, compute_);
      } else {
        expander.add_backward(job.microbatch, compute_);
      }
    }
  }

  void all_reduce(BufferId buffer, const Label& label) {
    const BufferRange range = builder_.whole(buffer);
    const OpSpec spec{.op = "all_reduce",
                      .attributes = to_attributes(
                          AllReduceAttributes{.group = static_cast<int64_t>(data_group_.index())}),
                      .operands = {vector_spec(accumulator_, Access::kReadWrite, range.end)}};
    builder_.add_task(spec, std::array{range}, compute_, label);
  }

  /// Units in the order in which the backward finishes them.
  void reduce_over_data() {
    for (size_t unit = layout_.units.size(); unit-- > 0;) {
      all_reduce(bindings_.main_grads[unit], unit_label(unit, Phase::kComm));
    }
    all_reduce(losses_, {.phase = Phase::kComm, .site = builder_.site("losses")});
  }

  void clip() {
    const auto num_units = static_cast<int64_t>(layout_.units.size());
    const BufferId partials = builder_.add_buffer({.name = "grad_norm_partials",
                                                   .dtype = DType::kF64,
                                                   .shape = {num_units},
                                                   .role = BufferRole::kScratch,
                                                   .lifetime = Lifetime::kStep});
    for (int64_t unit = 0; unit < num_units; ++unit) {
      const BufferRange grads = builder_.whole(bindings_.main_grads[static_cast<size_t>(unit)]);
      const OpSpec spec{.op = "squared_norm",
                        .attributes = {},
                        .operands = {vector_spec(DType::kF32, Access::kRead, grads.end),
                                     vector_spec(DType::kF64, Access::kWrite, 1)}};
      builder_.add_task(spec, std::array{grads, BufferRange{partials, unit, unit + 1}}, compute_,
                        unit_label(static_cast<size_t>(unit), Phase::kOptimizer));
    }
    const OpSpec spec{.op = "clip_scale",
                      .attributes = to_attributes(
                          ClipScaleAttributes{.max_norm = options_.optimizer.max_grad_norm}),
                      .operands = {vector_spec(DType::kF64, Access::kRead, num_units),
                                   vector_spec(DType::kF32, Access::kWrite, 1),
                                   vector_spec(DType::kF32, Access::kWrite, 1)}};
    builder_.add_task(spec,
                      std::array{builder_.whole(partials), builder_.whole(grad_norm_),
                                 builder_.whole(grad_scale_)},
                      compute_, {.phase = Phase::kOptimizer, .site = builder_.site("clip")});
  }

  void update_weights() {
    for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
      const ParameterUnit& facts = layout_.units[unit];
      update_range(unit, 0, facts.decay_end, options_.optimizer.weight_decay);
      update_range(unit, facts.decay_end, facts.num_elems, 0.0);
    }
  }

  void update_range(size_t unit, int64_t begin, int64_t end, double weight_decay) {
    if (begin == end) {
      return;
    }
    const OptimizerOptions& optimizer = options_.optimizer;
    OpSpec spec{.op = "adamw",
                .attributes = to_attributes(AdamwAttributes{.beta1 = optimizer.beta1,
                                                            .beta2 = optimizer.beta2,
                                                            .epsilon = optimizer.epsilon,
                                                            .weight_decay = weight_decay,
                                                            .has_param = has_main_weights()}),
                .operands = {vector_spec(DType::kF32, Access::kRead, end - begin),
                             vector_spec(DType::kF32, Access::kRead, 1),
                             vector_spec(DType::kF32, Access::kRead, 3)}};
    std::vector<BufferRange> ranges{{bindings_.main_grads[unit], begin, end},
                                    builder_.whole(grad_scale_),
                                    builder_.whole(scalars_)};
    for (const BufferId state : {main_weights_[unit], exp_avg_[unit], exp_avg_sq_[unit]}) {
      spec.operands.push_back(vector_spec(DType::kF32, Access::kReadWrite, end - begin));
      ranges.push_back({state, begin, end});
    }
    if (has_main_weights()) {
      spec.operands.push_back(vector_spec(DType::kBF16, Access::kWrite, end - begin));
      ranges.push_back({bindings_.params[unit], begin, end});
    }
    builder_.add_task(spec, ranges, compute_, unit_label(unit, Phase::kOptimizer));
  }

  const ParameterLayout& layout_;
  const TrainProgramOptions& options_;
  DType accumulator_;
  ProgramBuilder builder_;
  StageGraph graph_;
  StreamId compute_;
  int data_group_size_ = 1;
  GroupId data_group_;
  StageExpander::Bindings bindings_;
  std::vector<BufferId> main_weights_;  // by unit; the params themselves in fp32 training
  std::vector<BufferId> exp_avg_;
  std::vector<BufferId> exp_avg_sq_;
  BufferId losses_;
  BufferId scalars_;
  BufferId grad_norm_;
  BufferId grad_scale_;
};

}  // namespace

Program build_train_program(const ModelSpec& model, const ParameterLayout& layout, const Mesh& mesh,
                            int rank, const TrainProgramOptions& options) {
  return TrainProgram(model, layout, mesh, rank, options).build();
}

Program build_eval_program(const ModelSpec& model, const ParameterLayout& layout, const Mesh& mesh,
                           int rank, const EvalProgramOptions& options) {
  ProgramBuilder builder(options.prefix, rank, mesh.num_ranks());
  const StageGraph graph = build_forward(model, {.microbatch = options.microbatch,
                                                 .sequence = options.sequence,
                                                 .dtype = options.dtype,
                                                 .end = options.end});
  const StreamId compute = builder.add_stream({.name = "compute", .kind = StreamKind::kCompute});
  StageExpander::Bindings bindings;
  bindings.params = add_param_buffers(builder, layout, options.dtype);
  for (const Value& value : graph.values) {
    if (value.kind == ValueKind::kInput || value.kind == ValueKind::kOutput) {
      bindings.io[value.name] = {add_io(builder, fmt::format("{}.{}", options.prefix, value.name),
                                        value.dtype, value.shape),
                                 0};
    }
  }
  StageExpander expander(builder, graph, layout, bindings, fmt::format("{}.", options.prefix));
  expander.add_forward(0, compute);
  return builder.take();
}

}  // namespace braid
