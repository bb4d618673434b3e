#include "parallel/step_program.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "model/mtp.h"
#include "ops/operand_checker.h"
#include "ops/router.h"
#include "parallel/optimizer_tasks.h"
#include "parallel/stage_jobs.h"
#include "parallel/task_writer.h"
#include "parallel/unit_buffers.h"

namespace braid {
namespace {

BufferId add_io(ProgramBuilder& builder, std::string name, DType dtype, const Shape& shape) {
  return builder.add_buffer({.name = std::move(name),
                             .dtype = dtype,
                             .shape = shape,
                             .role = BufferRole::kIo,
                             .lifetime = Lifetime::kPersistent});
}

/// The common start of both programs of a rank.
struct ProgramStart {
  ProgramBuilder builder;
  ProgramGroups groups;
  StreamId compute;
  TaskWriter writer;

  ProgramStart(std::string name, const Mesh& mesh, int rank)
      : builder(std::move(name), rank, mesh.num_ranks()),
        groups(builder, mesh, rank),
        compute(builder.add_stream({.name = "compute", .kind = StreamKind::kCompute})),
        writer(builder, groups, compute) {}
};

/// Builds the training step. Its functions add the parts in program order.
class TrainProgram {
 public:
  TrainProgram(const ModelSpec& model, const ParameterLayout& layout, const Mesh& mesh, int rank,
               const TrainProgramOptions& options)
      : mesh_(mesh),
        rank_(rank),
        options_(options),
        mtp_depth_(model.mtp_depth),
        start_("train", mesh, rank),
        units_(start_.writer, layout,
               {.dtype = options.dtype,
                .main_grads_dtype = options.optimizer.main_grads_dtype,
                .weight_gather = options.parallel.weight_gather,
                .whole_units = options.parallel.whole_units,
                .shard_indices = shard_indices(mesh, rank, layout.domains),
                .fp8 = options.fp8.has_value(),
                .persistent_grads = !options.update_weights}),
        jobs_(start_.writer, model, layout, units_, mesh, rank, options.parallel,
              {.forward = {.microbatch = options.microbatch,
                           .sequence = options.sequence,
                           .dtype = options.dtype,
                           .end = ForwardEnd::kLoss,
                           .mtp = true,
                           .z_loss = options.z_loss,
                           .preference = options.preference,
                           .router_losses = options.router_losses,
                           .documents = options.documents,
                           .watch_experts = options.watch_experts,
                           .watch_room = options.watch_room,
                           .routing = options.routing},
               .main_grads_dtype = options.optimizer.main_grads_dtype,
               .num_microbatches = options.num_microbatches,
               .fp8 = options.fp8}) {
    check(!options.update_weights || options.dtype != DType::kF64,
          "there is no optimizer for f64 weights");
    shares_tied_embedding_ = braid::shares_tied_embedding(model, mesh, rank, options.parallel);
    if (options.update_weights) {
      optimizer_.emplace(start_.writer, layout, units_,
                         OptimizerTasks::Options{.optimizer = options.optimizer,
                                                 .counts_tied_copy = jobs_.has_embedding()});
    }
    bind_io();
  }

  Program build() {
    for (const Job& job :
         make_schedule(schedule_options(mesh_, options_.parallel, options_.num_microbatches),
                       mesh_.position(rank_).pipeline)) {
      if (job.microbatch == 0 || !options_.outline) {
        jobs_.add(job);
      }
    }
    units_.finish_gradients(shares_tied_embedding_);
    sum_losses();
    if (optimizer_) {
      optimizer_->clip();
      optimizer_->update();
    }
    return start_.builder.take();
  }

 private:
  /// Binds one row per microbatch. All microbatches share the loss scale.
  void bind_io() {
    const int64_t microbatches = options_.num_microbatches;
    ProgramBuilder& builder = start_.builder;
    const int64_t rows = (1 + mtp_depth_) * (options_.z_loss > 0 ? 2 : 1) +
                         (options_.preference ? kPreferenceFigures : 0);
    losses_ = add_io(builder, "losses", accumulator_dtype(options_.dtype),
                     rows == 1 ? Shape{microbatches} : Shape{rows, microbatches});
    std::vector<std::string> router_losses;
    std::map<std::string, Value> values = jobs_.io_values();
    bind_mtp(values);
    bind_routing(values);
    for (const auto& [name, value] : values) {
      if (name == "loss") {
        jobs_.bind(name, {losses_, 1});
      } else if (name == kZLossValue) {
        jobs_.bind(name, {.buffer = losses_, .stride_elems = 1, .begin = z_losses_begin()});
      } else if (name == kPreferenceValue) {
        jobs_.bind(name,
                   {.buffer = losses_, .stride_elems = kPreferenceFigures, .begin = microbatches});
      } else if (value.kind == ValueKind::kOutput) {
        router_losses.push_back(name);
      } else if (name == "loss_scale") {
        jobs_.bind(name, {add_io(builder, name, value.dtype, value.shape), 0});
      } else {
        const int64_t elems = value.shape.num_elems();
        jobs_.bind(name, {add_io(builder, name, value.dtype, {microbatches, elems}), elems});
      }
    }
    bind_router_losses(router_losses);
  }

  /// Binds the values of multi-token prediction, each kind in one buffer for all depths, and
  /// removes them from `values`.
  void bind_mtp(std::map<std::string, Value>& values) {
    if (mtp_depth_ == 0 || !values.contains(mtp_value(0, "loss"))) {
      return;
    }
    const int64_t microbatches = options_.num_microbatches;
    const auto bind = [&](std::string_view name, BufferId buffer, int64_t of_depth, int64_t stride,
                          int64_t first) {
      for (int64_t index = 0; index < mtp_depth_; ++index) {
        jobs_.bind(mtp_value(index, name),
                   {.buffer = buffer, .stride_elems = stride, .begin = first + index * of_depth});
        values.erase(mtp_value(index, name));
      }
    };
    const Value labels = values.at(mtp_value(0, "labels"));
    const Value scale = values.at(mtp_value(0, "loss_scale"));
    const int64_t rows = labels.shape.num_elems();
    const Shape all_rows{mtp_depth_, microbatches, rows};
    ProgramBuilder& builder = start_.builder;
    bind("tokens", add_io(builder, "mtp_tokens", labels.dtype, all_rows), microbatches * rows, rows,
         0);
    bind("labels", add_io(builder, "mtp_labels", labels.dtype, all_rows), microbatches * rows, rows,
         0);
    bind("loss_scale", add_io(builder, "mtp_loss_scales", scale.dtype, {mtp_depth_}), 1, 0, 0);
    bind("loss", losses_, microbatches, 1, microbatches);
    if (options_.z_loss > 0) {
      bind(kZLossValue, losses_, microbatches, 1, z_losses_begin() + microbatches);
    }
  }

  /// Behind the losses of the head and of all depths.
  int64_t z_losses_begin() const { return (1 + mtp_depth_) * options_.num_microbatches; }

  /// Binds one buffer for the choices of all routers, and removes them from `values`.
  void bind_routing(std::map<std::string, Value>& values) {
    std::vector<std::string> names;
    for (const auto& [name, value] : values) {
      if (name.ends_with(kRoutingSuffix)) {
        names.push_back(name);
      }
    }
    if (names.empty()) {
      return;
    }
    const int64_t microbatches = options_.num_microbatches;
    const int64_t choices = values.at(names.front()).shape.num_elems();
    const BufferId buffer = add_io(start_.builder, std::string(kRoutingBuffer), DType::kI32,
                                   {static_cast<int64_t>(names.size()), microbatches, choices});
    for (size_t i = 0; i < names.size(); ++i) {
      jobs_.bind(names[i], {.buffer = buffer,
                            .stride_elems = choices,
                            .begin = static_cast<int64_t>(i) * microbatches * choices});
      values.erase(names[i]);
    }
  }

  /// Binds one buffer for all of them, so that the host reads them at once.
  void bind_router_losses(const std::vector<std::string>& names) {
    if (names.empty()) {
      return;
    }
    constexpr int64_t kLosses = 2;
    const int64_t microbatches = options_.num_microbatches;
    const BufferId buffer =
        add_io(start_.builder, std::string(kRouterLossesBuffer), accumulator_dtype(options_.dtype),
               {static_cast<int64_t>(names.size()), microbatches, kLosses});
    for (size_t i = 0; i < names.size(); ++i) {
      jobs_.bind(names[i], {.buffer = buffer,
                            .stride_elems = kLosses,
                            .begin = static_cast<int64_t>(i) * microbatches * kLosses});
    }
  }

  /// Ranks without the head contribute zeros.
  void sum_losses() {
    TaskWriter& writer = start_.writer;
    const SiteId site = start_.builder.site("losses");
    if (writer.groups().size("loss") == 1) {
      return;
    }
    if (!jobs_.has_head()) {
      writer.fill_zero(start_.builder.whole(losses_), {.phase = Phase::kForward, .site = site});
    }
    writer.all_reduce(start_.builder.whole(losses_), "loss", {.phase = Phase::kComm, .site = site});
  }

  const Mesh& mesh_;
  int rank_;
  const TrainProgramOptions& options_;
  int64_t mtp_depth_;
  ProgramStart start_;
  UnitBuffers units_;
  StageJobs jobs_;
  std::optional<OptimizerTasks> optimizer_;
  bool shares_tied_embedding_ = false;
  BufferId losses_;
};

}  // namespace

Program build_train_program(const ModelSpec& model, const ParameterLayout& layout, const Mesh& mesh,
                            int rank, const TrainProgramOptions& options) {
  return TrainProgram(model, layout, mesh, rank, options).build();
}

Program build_eval_program(const ModelSpec& model, const ParameterLayout& layout, const Mesh& mesh,
                           int rank, const EvalProgramOptions& options) {
  ProgramStart start(options.prefix, mesh, rank);
  UnitBuffers units(start.writer, layout,
                    {.dtype = options.dtype,
                     .weight_gather = options.parallel.weight_gather,
                     .whole_units = options.parallel.whole_units,
                     .shard_indices = shard_indices(mesh, rank, layout.domains),
                     .has_grads = false,
                     .fp8 = options.fp8.has_value()});
  StageJobs jobs(start.writer, model, layout, units, mesh, rank, options.parallel,
                 {.forward = {.microbatch = options.microbatch,
                              .sequence = options.sequence,
                              .dtype = options.dtype,
                              .end = options.end,
                              .preference = options.preference,
                              .sequence_losses = options.preference.has_value(),
                              .documents = options.documents,
                              .cache = options.cache},
                  .backward = false,
                  .fp8 = options.fp8,
                  .prefix = options.prefix + "."});
  for (const auto& [name, value] : jobs.io_values()) {
    const bool is_cache = value.kind == ValueKind::kCache;
    jobs.bind(name,
              {add_io(start.builder, is_cache ? name : fmt::format("{}.{}", options.prefix, name),
                      value.dtype, value.shape),
               0});
  }
  for (int v = 0; v < options.parallel.virtual_stages; ++v) {
    jobs.add({JobKind::kForward, 0, v});
  }
  return start.builder.take();
}

}  // namespace braid
