#include "parallel/stage_jobs.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.h"
#include "ops/autodiff.h"
#include "ops/offload.h"
#include "ops/tally.h"

namespace braid {
namespace {

bool is_read_in_backward(const StageGraph& graph, ValueId value) {
  return std::ranges::any_of(graph.backward, [&](const Node& node) {
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (node.operands[i] == value && reads(node.spec.operands[i].access)) {
        return true;
      }
    }
    return false;
  });
}

}  // namespace

StageJobs::StageJobs(TaskWriter& writer, const ModelSpec& model, const ParameterLayout& layout,
                     UnitBuffers& units, const Mesh& mesh, int rank,
                     const ParallelOptions& parallel, const Options& options)
    : writer_(writer),
      schedule_(schedule_options(mesh, parallel, 1)),
      pipeline_rank_(mesh.position(rank).pipeline),
      options_(options) {
  const std::vector<StageSlice> slices = stages_of_rank(parallel, model, mesh, rank);
  bindings_.units = &units;
  if (options.backward && schedule_.num_ranks > 1) {
    sent_.emplace(schedule_options(mesh, parallel, options.num_microbatches), pipeline_rank_);
  }
  stages_.resize(slices.size());
  for (size_t v = 0; v < slices.size(); ++v) {
    VirtualStage& target = stages_[v];
    target.stage = mesh.sizes().pipeline == 1 && parallel.stages.empty()
                       ? 0
                       : stage_of(schedule_, pipeline_rank_, static_cast<int>(v));
    ForwardOptions forward = options.forward;
    forward.stage = slices[v];
    forward.tensor = {.size = mesh.sizes().tensor,
                      .index = mesh.position(rank).tensor,
                      .sequence_parallel = parallel.sequence_parallel};
    forward.context = context_shard(mesh, rank, parallel);
    forward.experts = expert_shard(mesh, rank, parallel);
    target.graph = build_forward(model, forward);
    if (options.backward) {
      differentiate(target.graph, options.main_grads_dtype);
    }
    if (options.fp8) {
      quantize_products(target.graph, *options.fp8);
    }
  }
  std::vector<const StageGraph*> graphs;
  for (const VirtualStage& stage : stages_) {
    graphs.push_back(&stage.graph);
  }
  add_tallies();
  fp8_parts_.emplace(writer, layout, units, graphs, bindings_.tallies);
  bindings_.fp8_parts = &*fp8_parts_;
  for (size_t v = 0; v < stages_.size(); ++v) {
    const std::string prefix =
        stages_.size() == 1 ? options.prefix : fmt::format("{}v{}.", options.prefix, v);
    std::vector<GroupId> groups;
    for (const std::string& group : stages_[v].graph.groups) {
      groups.push_back(writer.groups().id(group));
    }
    stages_[v].expander = std::make_unique<StageExpander>(
        writer.builder(), stages_[v].graph, layout, bindings_,
        StageExpander::Place{
            .prefix = prefix, .virtual_stage = static_cast<int32_t>(v), .groups = groups});
  }
}

void StageJobs::add_tallies() {
  std::vector<const Value*> tallies;
  int64_t num_elems = 0;
  for (const VirtualStage& stage : stages_) {
    for (const Value& value : stage.graph.values) {
      if (value.kind == ValueKind::kTally) {
        tallies.push_back(&value);
        num_elems += value.shape.num_elems();
      }
    }
  }
  if (tallies.empty()) {
    return;
  }
  ProgramBuilder& builder = writer_.builder();
  const BufferId buffer = builder.add_buffer({.name = std::string(kTalliesBuffer),
                                              .dtype = DType::kI64,
                                              .shape = {num_elems},
                                              .role = BufferRole::kIo,
                                              .lifetime = Lifetime::kPersistent});
  writer_.fill_zero(builder.whole(buffer),
                    {.phase = Phase::kForward, .site = builder.site(std::string(kTalliesBuffer))});
  int64_t begin = 0;
  for (const Value* const tally : tallies) {
    const int64_t end = begin + tally->shape.num_elems();
    bindings_.tallies[tally->name] = {buffer, begin, end};
    begin = end;
  }
}

std::map<std::string, Value> StageJobs::io_values() const {
  std::map<std::string, Value> values;
  for (const VirtualStage& stage : stages_) {
    for (const Value& value : stage.graph.values) {
      if (value.kind == ValueKind::kInput || value.kind == ValueKind::kOutput ||
          value.kind == ValueKind::kCache) {
        values.emplace(value.name, value);
      }
    }
  }
  return values;
}

bool StageJobs::has_embedding() const {
  return io_values().contains("tokens");
}

bool StageJobs::has_head() const {
  return io_values().contains("loss") || io_values().contains("logits");
}

StageJobs::Neighbour StageJobs::neighbour(int stage) {
  for (VirtualStage& own : stages_) {
    if (own.stage == stage) {
      return {.local = &own};
    }
  }
  return {.place = place_of(schedule_, stage)};
}

Label StageJobs::comm_label(const Job& job) {
  return {.phase = Phase::kComm,
          .microbatch = job.microbatch,
          .virtual_stage = job.virtual_stage,
          .site = writer_.builder().site("pipeline")};
}

void StageJobs::add(const Job& job) {
  VirtualStage& at = stages_.at(static_cast<size_t>(job.virtual_stage));
  bindings_.units->begin_job(job);
  const bool forward = job.kind == JobKind::kForward;
  if (job.kind != JobKind::kWgrad) {
    take_in(at, job, forward);
  }
  if (forward) {
    at.expander->add_forward(job.microbatch, writer_.stream());
  } else {
    at.expander->add_backward(job.microbatch, writer_.stream(),
                              job.kind == JobKind::kDgrad   ? BackwardPart::kDgrad
                              : job.kind == JobKind::kWgrad ? BackwardPart::kWgrad
                                                            : BackwardPart::kAll);
  }
  if (job.kind != JobKind::kWgrad) {
    pass_on(at, job, forward);
  }
  bindings_.units->end_job();
}

/// Provides what the job reads from the previous stage (forward) or the next stage (backward).
void StageJobs::take_in(VirtualStage& at, const Job& job, bool forward) {
  const std::optional<ValueId> wanted = forward ? at.graph.stage_input : at.graph.stage_output_grad;
  if (!wanted) {
    return;
  }
  const Neighbour from = neighbour(forward ? at.stage - 1 : at.stage + 1);
  if (from.local != nullptr) {
    const ValueId made =
        forward ? *from.local->graph.stage_output : *from.local->graph.stage_input_grad;
    at.expander->bind(*wanted, job.microbatch, from.local->expander->buffer(made, job.microbatch));
    return;
  }
  const BufferId buffer = at.expander->buffer(*wanted, job.microbatch);
  writer_.recv(writer_.builder().whole(buffer), forward ? kForwardGroup : kBackwardGroup,
               from.place.rank, at.stage, writer_.stream(), comm_label(job));
  take_back_arrived(job);
}

/// Call after job `at` has received what it reads.
void StageJobs::take_back_arrived(const Job& at) {
  if (!sent_) {
    return;
  }
  Label label = comm_label(at);
  label.phase = at.kind == JobKind::kForward ? Phase::kForward : Phase::kDgrad;
  ProgramBuilder& builder = writer_.builder();
  for (const BufferId buffer : sent_->take_arrived(at)) {
    builder.add_task(undefine_spec(builder.program().buffers[buffer.index()]),
                     std::array{builder.whole(buffer)}, writer_.stream(), label);
  }
}

StreamId StageJobs::send_stream(bool forward, int64_t peer) {
  const auto [found, is_new] = send_streams_.try_emplace({forward, peer});
  if (is_new) {
    const std::string direction(forward ? kForwardGroup : kBackwardGroup);
    const auto same_direction = std::ranges::count_if(
        send_streams_, [&](const auto& stream) { return stream.first.first == forward; });
    found->second = writer_.builder().add_stream(
        {.name = same_direction == 1 ? direction : fmt::format("{}.{}", direction, peer),
         .kind = StreamKind::kComm,
         .priority = 1});
  }
  return found->second;
}

void StageJobs::pass_on(VirtualStage& at, const Job& job, bool forward) {
  const std::optional<ValueId> made = forward ? at.graph.stage_output : at.graph.stage_input_grad;
  if (!made) {
    return;
  }
  const int to_stage = forward ? at.stage + 1 : at.stage - 1;
  const Neighbour to = neighbour(to_stage);
  if (to.local == nullptr) {
    const BufferId buffer = at.expander->buffer(*made, job.microbatch);
    writer_.send(writer_.builder().whole(buffer), forward ? kForwardGroup : kBackwardGroup,
                 to.place.rank, to_stage, send_stream(forward, to.place.rank), comm_label(job));
    if (sent_ && !is_read_in_backward(at.graph, *made)) {
      sent_->add(to.place.rank, {job.kind, job.microbatch, to.place.virtual_stage}, buffer);
    }
  }
}

}  // namespace braid
