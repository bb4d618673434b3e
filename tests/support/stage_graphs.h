#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/cpu/cpu_executor.h"
#include "backends/run_ranks.h"
#include "base/philox.h"
#include "comm/transport.h"
#include "ir/verify.h"
#include "memory/memory_plan.h"
#include "model/forward.h"
#include "model/mtp.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"
#include "parallel/expand.h"
#include "parallel/parameter_domain.h"
#include "parallel/unit_buffers.h"
#include "passes/remove_identities.h"
#include "support/kernel_harness.h"
#include "support/shard_elements.h"

/// Runs stage graphs on CPU ranks without schedule, reduction of gradients or optimizer, so that
/// what the graphs themselves compute can be compared with one rank.
namespace braid {

struct StageGraphOptions {
  ModelSpec spec;
  int64_t tensor = 1;
  bool sequence_parallel = false;
  std::vector<StageSlice> stages = {};  ///< of a pipeline; empty: the whole model
  int64_t microbatch = 1;
  int64_t sequence = 1;
  DType dtype = DType::kF64;
  bool removes_identities = true;

  int64_t rows() const { return microbatch * sequence; }
  size_t num_stages() const { return stages.empty() ? 1 : stages.size(); }
  int64_t kv_sharers() const { return std::max<int64_t>(1, tensor / spec.kv_heads); }
  Mesh mesh() const {
    return Mesh({.tensor = static_cast<int>(tensor),
                 .pipeline = static_cast<int>(num_stages()),
                 .kv_replicas = static_cast<int>(kv_sharers())});
  }
  ParallelOptions parallel() const {
    ParallelOptions parallel;
    parallel.sequence_parallel = sequence_parallel;
    parallel.stages = stages;
    return parallel;
  }
};

/// Forward and backward of one stage on one tensor rank. Weights, gradients, inputs, and what
/// crosses to other stages (buffers "stage_input", "stage_output", "stage_input_grad",
/// "stage_output_grad") are persistent.
class StageRank {
 public:
  StageRank(const StageGraphOptions& options, size_t stage, int rank, Transport& transport)
      : options_(options),
        layout_(make_rank_layout(options.spec, options.mesh(), rank, options.parallel())) {
    ForwardOptions forward{.microbatch = options.microbatch,
                           .sequence = options.sequence,
                           .dtype = options.dtype,
                           .mtp = true};
    forward.tensor = {.size = options.tensor,
                      .index = rank % options.tensor,
                      .sequence_parallel = options.sequence_parallel};
    if (!options.stages.empty()) {
      forward.stage = options.stages[stage];
    }
    graph_ = build_forward(options.spec, forward);
    differentiate(graph_);
    Program program = expanded(rank);
    if (options.removes_identities) {
      program = remove_identities(std::move(program)).program;
    }
    verify_or_throw(program, "StageRank");
    MemoryPlan plan = plan_memory(std::vector<const Program*>{&program});
    std::vector<Program> programs;
    programs.push_back(std::move(program));
    executor_ = std::make_unique<CpuExecutor>(
        std::move(programs), std::move(plan),
        CpuExecutorOptions{.transport = &transport, .poison_step_arena = true});
  }

  Executor& executor() { return *executor_; }
  const ParameterLayout& layout() const { return layout_; }
  const StageGraph& graph() const { return graph_; }

  void write(const std::string& buffer, DType dtype, int64_t begin,
             const std::vector<double>& values) {
    const size_t elem = dtype_bytes(dtype);
    std::vector<std::byte> bytes(values.size() * elem);
    for (size_t i = 0; i < values.size(); ++i) {
      store_double(dtype, bytes.data() + i * elem, values[i]);
    }
    executor_->write(buffer, begin * static_cast<int64_t>(elem), bytes);
  }

  std::vector<double> read(const std::string& buffer, DType dtype, int64_t begin, int64_t count) {
    const size_t elem = dtype_bytes(dtype);
    std::vector<std::byte> bytes(static_cast<size_t>(count) * elem);
    executor_->read(buffer, begin * static_cast<int64_t>(elem), bytes);
    std::vector<double> values;
    for (size_t at = 0; at < bytes.size(); at += elem) {
      values.push_back(load_as_double(dtype, bytes.data() + at));
    }
    return values;
  }

  std::vector<double> activation(const char* name, std::optional<ValueId> value) {
    return read(name, options_.dtype, 0, graph_.value(*value).shape.num_elems());
  }

 private:
  Program expanded(int rank) {
    const Mesh mesh = options_.mesh();
    ProgramBuilder builder("stage", rank, mesh.num_ranks());
    ProgramGroups groups(builder, mesh, rank);
    const StreamId stream = builder.add_stream({.name = "compute", .kind = StreamKind::kCompute});
    TaskWriter writer(builder, groups, stream);
    UnitBuffers units(writer, layout_,
                      {.dtype = options_.dtype,
                       .shard_indices = shard_indices(mesh, rank, layout_.domains),
                       .persistent_grads = true});
    StageExpander::Bindings bindings{.units = &units, .io = {}};
    for (const Value& value : graph_.values) {
      if (value.kind == ValueKind::kInput || value.kind == ValueKind::kOutput) {
        bindings.io[value.name] = {persistent(builder, value.name, value), 0};
      }
    }
    StageExpander::Place place;
    for (const std::string& group : graph_.groups) {
      place.groups.push_back(groups.id(group));
    }
    StageExpander expander(builder, graph_, layout_, bindings, place);
    const std::pair<const char*, std::optional<ValueId>> crossing[] = {
        {"stage_input", graph_.stage_input},
        {"stage_output", graph_.stage_output},
        {"stage_input_grad", graph_.stage_input_grad},
        {"stage_output_grad", graph_.stage_output_grad}};
    for (const auto& [name, value] : crossing) {
      if (value) {
        expander.bind(*value, 0, persistent(builder, name, graph_.value(*value)));
      }
    }
    expander.add_forward(0, stream);
    expander.add_backward(0, stream, BackwardPart::kAll);
    return builder.take();
  }

  static BufferId persistent(ProgramBuilder& builder, std::string name, const Value& value) {
    return builder.add_buffer({.name = std::move(name),
                               .dtype = value.dtype,
                               .shape = value.shape,
                               .role = BufferRole::kIo,
                               .lifetime = Lifetime::kPersistent});
  }

  const StageGraphOptions& options_;
  ParameterLayout layout_;
  StageGraph graph_;
  std::unique_ptr<CpuExecutor> executor_;
};

/// All tensor ranks of all stages, with one batch. Weights are random, but depend on name and index
/// only; those of padding rows differ from rank to rank, since they must not matter.
class StageGraphs {
 public:
  explicit StageGraphs(StageGraphOptions options)
      : options_(std::move(options)),
        transports_(make_in_process_transports({.num_ranks = options_.mesh().num_ranks()})) {
    for (int rank = 0; rank < options_.mesh().num_ranks(); ++rank) {
      ranks_.push_back(std::make_unique<StageRank>(options_,
                                                   static_cast<size_t>(rank / options_.tensor),
                                                   rank, *transports_[static_cast<size_t>(rank)]));
    }
    write_batch();
    for (const Parameter& parameter : model_parameters(options_.spec)) {
      set(parameter, some_weights(parameter));
    }
  }

  const StageGraphOptions& options() const { return options_; }
  const std::vector<double>& tokens() const { return tokens_; }
  const std::vector<double>& labels() const { return labels_; }
  const StageGraph& graph(int rank = 0) const { return ranks_[static_cast<size_t>(rank)]->graph(); }

  /// The whole parameter's initial value in this test.
  static std::vector<double> some_weights(const Parameter& parameter) {
    const uint64_t key = stable_hash(parameter.name.data(), parameter.name.size());
    std::vector<double> values(static_cast<size_t>(parameter.shape.num_elems()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.4 * philox_normal(key, i);
    }
    return values;
  }

  /// Writes a parameter on every rank that holds some of it.
  void set(const Parameter& parameter, const std::vector<double>& values) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::optional<Place> place = place_of(*ranks_[rank], parameter.name);
      if (!place) {
        continue;
      }
      // Padding of this rank: anything finite.
      std::vector<double> local =
          TestRandom(rank).uniforms(place->slot->end - place->slot->begin, -1.0, 1.0);
      for_each_shard_element(parameter.shape, *place->shard,
                             [&](size_t full, size_t in_shard) { local[in_shard] = values[full]; });
      ranks_[rank]->write(param_buffer_name(*place->unit), options_.dtype, place->slot->begin,
                          local);
    }
  }

  /// Forward through all stages, then backward. All tensor ranks get the same loss. It includes the
  /// weighted losses of multi-token prediction.
  double run() {
    const size_t stages = options_.num_stages();
    for (size_t stage = 0; stage < stages; ++stage) {
      if (stage > 0) {
        pass(stage - 1, "stage_output", stage, "stage_input");
      }
      run_stage(stage);
    }
    for (size_t stage = stages - 1; stage-- > 0;) {
      pass(stage + 1, "stage_input_grad", stage, "stage_output_grad");
      run_stage(stage);
    }
    const DType dtype = accumulator_dtype(options_.dtype);
    const auto losses = of_stage(stages - 1);
    double total = 0;
    for (int64_t depth = 0; depth <= options_.spec.mtp_depth; ++depth) {
      const std::string name = depth == 0 ? "loss" : mtp_value(depth - 1, "loss");
      const double loss = losses[0]->read(name, dtype, 0, 1)[0];
      for (StageRank* rank : losses) {
        EXPECT_EQ(rank->read(name, dtype, 0, 1)[0], loss);
      }
      total += loss;
    }
    return total;
  }

  /// The gradient of a whole parameter after `run`: shards put together, partial sums added up, and
  /// both copies of a tied embedding. Ranks that hold the same element must agree on every bit;
  /// padding must have no gradient.
  std::vector<double> gradient(const Parameter& parameter) {
    std::vector<double> total(static_cast<size_t>(parameter.shape.num_elems()));
    for (size_t stage = 0; stage < options_.num_stages(); ++stage) {
      const std::vector<std::vector<double>> locals = summed_gradients(stage, parameter.name);
      if (locals.empty()) {
        continue;
      }
      const std::vector<double> of_stage = assembled(stage, parameter, locals);
      for (size_t i = 0; i < total.size(); ++i) {
        total[i] += of_stage[i];
      }
    }
    return total;
  }

  /// Sum over all ranks of the squares of the gradient elements that they count.
  double counted_squares(const Parameter& parameter) {
    double sum = 0;
    for (size_t stage = 0; stage < options_.num_stages(); ++stage) {
      const std::vector<std::vector<double>> locals = summed_gradients(stage, parameter.name);
      for (size_t rank = 0; rank < locals.size(); ++rank) {
        const Place place = *place_of(*of_stage(stage)[rank], parameter.name);
        for (const IndexRange& range : place.shard->counted) {
          for (int64_t i = range.begin; i < range.end; ++i) {
            sum += locals[rank][static_cast<size_t>(i)] * locals[rank][static_cast<size_t>(i)];
          }
        }
      }
    }
    return sum;
  }

 private:
  struct Place {
    const ParameterSlot* slot;
    const ParameterShard* shard;
    const ParameterUnit* unit;
  };

  static std::optional<Place> place_of(const StageRank& rank, const std::string& name) {
    const ParameterLayout& layout = rank.layout();
    const auto found = layout.by_name.find(name);
    if (found == layout.by_name.end()) {
      return std::nullopt;
    }
    const ParameterSlot& slot = layout.slots[found->second];
    return Place{&slot, &layout.shards[found->second], &layout.units[slot.unit]};
  }

  std::vector<StageRank*> of_stage(size_t stage) {
    std::vector<StageRank*> list;
    for (int64_t index = 0; index < options_.tensor; ++index) {
      list.push_back(
          ranks_[stage * static_cast<size_t>(options_.tensor) + static_cast<size_t>(index)].get());
    }
    return list;
  }

  void run_stage(size_t stage) {
    std::vector<Executor*> executors;
    for (StageRank* rank : of_stage(stage)) {
      executors.push_back(&rank->executor());
    }
    run_ranks(executors, 0);
  }

  void pass(size_t from_stage, const char* from, size_t to_stage, const char* to) {
    const auto sources = of_stage(from_stage);
    const auto targets = of_stage(to_stage);
    for (size_t i = 0; i < sources.size(); ++i) {
      const StageGraph& graph = sources[i]->graph();
      const bool forward = from_stage < to_stage;
      targets[i]->write(
          to, options_.dtype, 0,
          sources[i]->activation(from, forward ? graph.stage_output : graph.stage_input_grad));
    }
  }

  /// One label is ignored.
  void write_batch() {
    TestRandom random(11);
    for (int64_t row = 0; row < options_.rows(); ++row) {
      tokens_.push_back(static_cast<double>(random.below(options_.spec.vocabulary)));
      labels_.push_back(static_cast<double>(random.below(options_.spec.vocabulary)));
    }
    labels_[1] = -1;
    for (StageRank* rank : of_stage(0)) {
      rank->write("tokens", DType::kI32, 0, tokens_);
    }
    for (StageRank* rank : of_stage(options_.num_stages() - 1)) {
      rank->write("labels", DType::kI32, 0, labels_);
      rank->write("loss_scale", accumulator_dtype(options_.dtype), 0,
                  {1.0 / static_cast<double>(labels_.size() - 1)});
      for (int64_t depth = 1; depth <= options_.spec.mtp_depth; ++depth) {
        write_mtp(*rank, depth);
      }
    }
  }

  /// Tokens and labels `depth` places later in their sequence.
  void write_mtp(StageRank& rank, int64_t depth) {
    std::vector<double> later_tokens(tokens_.size(), 0.0);
    std::vector<double> later_labels(labels_.size(), -1.0);
    double valid = 0;
    for (size_t row = 0; row < tokens_.size(); ++row) {
      if (static_cast<int64_t>(row) % options_.sequence + depth < options_.sequence) {
        later_tokens[row] = tokens_[row + static_cast<size_t>(depth)];
        later_labels[row] = labels_[row + static_cast<size_t>(depth)];
        valid += later_labels[row] >= 0 ? 1 : 0;
      }
    }
    rank.write(mtp_value(depth - 1, "tokens"), DType::kI32, 0, later_tokens);
    rank.write(mtp_value(depth - 1, "labels"), DType::kI32, 0, later_labels);
    rank.write(mtp_value(depth - 1, "loss_scale"), accumulator_dtype(options_.dtype), 0,
               {mtp_weight(options_.spec) / std::max(valid, 1.0)});
  }

  /// By tensor rank: the local gradient with its partial sums added up; empty if the stage does not
  /// have the parameter.
  std::vector<std::vector<double>> summed_gradients(size_t stage, const std::string& name) {
    std::vector<std::vector<double>> addends;
    for (StageRank* rank : of_stage(stage)) {
      if (const std::optional<Place> place = place_of(*rank, name)) {
        addends.push_back(rank->read(main_grad_buffer_name(*place->unit),
                                     accumulator_dtype(options_.dtype), place->slot->begin,
                                     place->slot->end - place->slot->begin));
      }
    }
    std::vector<std::vector<double>> sums = addends;
    for (size_t rank = 0; rank < addends.size(); ++rank) {
      for (const PartialSum& part : place_of(*of_stage(stage)[rank], name)->shard->partial_sums) {
        const size_t members = part.group == "tensor" ? static_cast<size_t>(options_.tensor)
                                                      : static_cast<size_t>(options_.kv_sharers());
        const size_t first = rank / members * members;
        for (int64_t i = part.elements.begin; i < part.elements.end; ++i) {
          double& sum = sums[rank][static_cast<size_t>(i)];
          sum = 0;
          for (size_t member = first; member < first + members; ++member) {
            sum += addends[member][static_cast<size_t>(i)];
          }
        }
      }
    }
    return sums;
  }

  std::vector<double> assembled(size_t stage, const Parameter& parameter,
                                std::vector<std::vector<double>> locals) {
    std::vector<double> whole(static_cast<size_t>(parameter.shape.num_elems()));
    std::vector<char> held(whole.size());
    for (size_t rank = 0; rank < locals.size(); ++rank) {
      const Place place = *place_of(*of_stage(stage)[rank], parameter.name);
      for_each_shard_element(parameter.shape, *place.shard, [&](size_t full, size_t in_shard) {
        double& local = locals[rank][in_shard];
        if (held[full]) {
          EXPECT_EQ(local, whole[full]) << parameter.name << " element " << full;
        }
        held[full] = 1;
        whole[full] = local;
        local = 0;
      });
      for (const double padding : locals[rank]) {
        EXPECT_EQ(padding, 0.0) << parameter.name << ": gradient of padding";
      }
    }
    EXPECT_EQ(std::count(held.begin(), held.end(), 0), 0) << parameter.name;
    return whole;
  }

  StageGraphOptions options_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<StageRank>> ranks_;
  std::vector<double> tokens_;
  std::vector<double> labels_;
};

}  // namespace braid
