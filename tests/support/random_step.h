#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backends/cpu/cpu_executor.h"
#include "backends/run_ranks.h"
#include "config/validate.h"
#include "memory/assign_offsets.h"
#include "memory/live_ranges.h"
#include "memory/max_live.h"
#include "memory/memory_plan.h"
#include "memory/sweep.h"
#include "parallel/mesh.h"
#include "parallel/parameter_layout.h"
#include "parallel/step_program.h"
#include "passes/streams/insert_events.h"
#include "plan/run_spec.h"
#include "support/exact_products.h"
#include "support/random_layout.h"

namespace braid {

/// The training step of every rank as its builder makes it: no pass has seen it, it has no events.
inline std::vector<Program> build_step(const RandomRun& run) {
  const RunSpec spec = resolve_run(run.config, 0);
  const TrainProgramOptions options{.microbatch = run.config.train.microbatch,
                                    .sequence = run.config.train.sequence,
                                    .num_microbatches = spec.num_microbatches,
                                    .dtype = spec.dtype,
                                    .optimizer = {.max_grad_norm = run.config.optimizer.clip_norm},
                                    .parallel = spec.parallel};
  std::vector<Program> programs;
  for (int rank = 0; rank < spec.mesh.num_ranks(); ++rank) {
    const ParameterLayout layout = make_rank_layout(spec.model, spec.mesh, rank, spec.parallel);
    programs.push_back(build_train_program(spec.model, layout, spec.mesh, rank, options));
  }
  return programs;
}

/// What persistent buffers hold before the first step: tokens in the vocabulary, scalars that the
/// host would write, small numbers elsewhere; different on every rank, so that whatever comes from
/// a wrong rank shows.
class StepInputs {
 public:
  StepInputs(const ModelSpec& model, int rank)
      : vocabulary_(model.vocabulary), random_(static_cast<uint64_t>(rank) + 11) {}

  std::vector<std::byte> of(const Buffer& buffer) {
    std::vector<std::byte> bytes(static_cast<size_t>(buffer.size_bytes()));
    for (int64_t i = 0; i < buffer.num_elems(); ++i) {
      std::byte* const element = bytes.data() + static_cast<size_t>(i) * dtype_bytes(buffer.dtype);
      if (buffer.dtype == DType::kI32) {
        put(element, static_cast<int32_t>(random_() % static_cast<uint64_t>(vocabulary_)));
      } else if (buffer.dtype == DType::kBF16) {
        put(element, BFloat16(value(buffer, i)));
      } else if (buffer.dtype == DType::kF32) {
        put(element, value(buffer, i));
      }
    }
    return bytes;
  }

 private:
  template <class T>
  static void put(std::byte* to, T value) {
    std::memcpy(to, &value, sizeof(value));
  }

  float value(const Buffer& buffer, int64_t i) {
    if (buffer.name == "optimizer_scalars") {
      return i == 0 ? 1e-2f : 0.1f;
    }
    if (buffer.name == "loss_scale") {
      return 0.05f;
    }
    const float small = 0.4f * static_cast<float>(random_() % 4096) / 4096.0f;
    return buffer.role == BufferRole::kOptimizerState ? small + 1e-3f : small - 0.2f;
  }

  int64_t vocabulary_;
  std::mt19937_64 random_;
};

/// The content of all persistent buffers, by rank and buffer.
using StepState = std::vector<std::vector<std::vector<std::byte>>>;

/// A plan in which no two buffers share a byte: right whatever the order of the tasks is.
inline MemoryPlan plan_without_sharing(const Program& program) {
  MemoryPlan plan;
  StepPlan& step = plan.programs.emplace_back();
  for (const Buffer& buffer : program.buffers) {
    const bool is_persistent = buffer.lifetime == Lifetime::kPersistent;
    int64_t& end = is_persistent                          ? plan.persistent_bytes
                   : buffer.placement == Placement::kHost ? step.host_arena_bytes
                                                          : step.arena_bytes;
    step.offset_bytes.push_back(end);
    if (is_persistent) {
      plan.persistent_offset_bytes.emplace(buffer.name, end);
    }
    end += (buffer.size_bytes() + kBufferAlignmentBytes - 1) / kBufferAlignmentBytes *
           kBufferAlignmentBytes;
  }
  plan.step_bytes = step.arena_bytes;
  plan.host_bytes = step.host_arena_bytes;
  return plan;
}

/// Packs step buffers as the planner does, without its search for the smallest arena, which takes
/// most of its time.
inline MemoryPlan quick_plan(const Program& program) {
  MemoryPlan plan = plan_without_sharing(program);
  StepPlan& step = plan.programs.front();
  const TaskOrder order(program);
  const LiveRanges ranges(program, order);
  for (const bool on_host : {false, true}) {
    std::vector<int64_t> sizes_bytes;
    for (const Buffer& buffer : program.buffers) {
      const bool is_here = (buffer.placement == Placement::kHost) == on_host;
      sizes_bytes.push_back(is_here ? (buffer.size_bytes() + kBufferAlignmentBytes - 1) /
                                          kBufferAlignmentBytes * kBufferAlignmentBytes
                                    : 0);
    }
    const int64_t expected_bytes = find_max_live(program, order, ranges, sizes_bytes).bytes;
    const Packing packing = pack_in_program_order(
        ranges, sizes_bytes, {.expected_bytes = expected_bytes, .short_life_tasks = 64});
    (on_host ? step.host_arena_bytes : step.arena_bytes) = packing.arena_bytes;
    for (size_t i = 0; i < program.buffers.size(); ++i) {
      const Buffer& buffer = program.buffers[i];
      if (buffer.lifetime == Lifetime::kStep && (buffer.placement == Placement::kHost) == on_host) {
        step.offset_bytes[i] = packing.offset_bytes[i];
      }
    }
  }
  plan.step_bytes = step.arena_bytes;
  plan.host_bytes = step.host_arena_bytes;
  return plan;
}

/// By rank; `searches`: as a run would have them.
inline std::vector<MemoryPlan> planned_memory(const std::vector<Program>& programs, bool searches) {
  std::vector<MemoryPlan> plans;
  for (const Program& program : programs) {
    const Program* const pointer = &program;
    plans.push_back(searches ? plan_memory(std::span(&pointer, 1)) : quick_plan(program));
  }
  return plans;
}

/// Runs steps of programs that have their events on CPU ranks, each a thread per stream; memory
/// poisoned before each step. Products are exact (exact_products.h).
class StepRanks {
 public:
  /// The programs must outlive it.
  StepRanks(const ModelSpec& model, const std::vector<Program>& programs,
            const std::vector<MemoryPlan>& plans)
      : programs_(programs),
        transports_(make_in_process_transports(
            {.num_ranks = static_cast<int>(programs.size()), .timeout_ns = 60'000'000'000})) {
    for (size_t rank = 0; rank < programs.size(); ++rank) {
      executors_.push_back(std::make_unique<CpuExecutor>(
          std::vector<Program>{programs[rank]}, plans[rank],
          CpuExecutorOptions{.transport = transports_[rank].get(),
                             .poison_step_arena = true,
                             .make_kernel = make_kernel_with_exact_products}));
      StepInputs inputs(model, static_cast<int>(rank));
      for (const Buffer& buffer : programs[rank].buffers) {
        if (buffer.lifetime == Lifetime::kPersistent) {
          executors_[rank]->write(buffer.name, 0, inputs.of(buffer));
        }
      }
    }
  }

  void run_step() {
    std::vector<Executor*> ranks;
    for (const auto& executor : executors_) {
      ranks.push_back(executor.get());
    }
    run_ranks(ranks, 0);
  }

  StepState state() {
    StepState state;
    for (size_t rank = 0; rank < executors_.size(); ++rank) {
      auto& of_rank = state.emplace_back();
      for (const Buffer& buffer : programs_[rank].buffers) {
        if (buffer.lifetime == Lifetime::kPersistent) {
          of_rank.emplace_back(static_cast<size_t>(buffer.size_bytes()));
          executors_[rank]->read(buffer.name, 0, of_rank.back());
        }
      }
    }
    return state;
  }

 private:
  const std::vector<Program>& programs_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<CpuExecutor>> executors_;
};

inline StepState state_after(const ModelSpec& model, const std::vector<Program>& programs,
                             const std::vector<MemoryPlan>& plans, int num_steps) {
  StepRanks ranks(model, programs, plans);
  for (int step = 0; step < num_steps; ++step) {
    ranks.run_step();
  }
  return ranks.state();
}

/// What the programs of the builder leave, one task after the other on each rank.
inline StepState plain_state(const ModelSpec& model, const std::vector<Program>& plain,
                             int num_steps) {
  std::vector<Program> programs;
  std::vector<MemoryPlan> plans;
  for (const Program& program : plain) {
    programs.push_back(insert_events(program).program);
    plans.push_back(plan_without_sharing(program));
  }
  return state_after(model, programs, plans, num_steps);
}

/// Calls `visit(rank, index in StepState, buffer)` for every persistent buffer.
template <class Visit>
void for_each_persistent(const std::vector<Program>& programs, const Visit& visit) {
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    size_t index = 0;
    for (const Buffer& buffer : programs[rank].buffers) {
      if (buffer.lifetime == Lifetime::kPersistent) {
        visit(rank, index++, buffer);
      }
    }
  }
}

/// Persistent buffers whose bytes differ, as "rank 1 main_grads.head".
inline std::vector<std::string> differences(const std::vector<Program>& programs,
                                            const StepState& a, const StepState& b) {
  std::vector<std::string> names;
  for_each_persistent(programs, [&](size_t rank, size_t index, const Buffer& buffer) {
    if (a[rank][index] != b[rank][index]) {
      names.push_back(fmt::format("rank {} {}", rank, buffer.name));
    }
  });
  return names;
}

/// Of the last step. NaN if it is nowhere.
inline float grad_norm(const std::vector<Program>& programs, const StepState& state) {
  float norm = std::numeric_limits<float>::quiet_NaN();
  for_each_persistent(programs, [&](size_t rank, size_t index, const Buffer& buffer) {
    if (buffer.name == "grad_norm") {
      std::memcpy(&norm, state[rank][index].data(), sizeof(norm));
    }
  });
  return norm;
}

}  // namespace braid
