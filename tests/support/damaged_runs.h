#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/wires.h"
#include "support/bit_flips.h"
#include "support/whole_runs.h"

namespace braid {

/// Bits of the output weights of a rank that flip in the middle of a run.
struct Damage {
  size_t rank = 0;
  std::vector<int64_t> after_steps;  ///< each once, also if the step runs again
  unsigned bits = 1;                 ///< of the highest byte of each weight
  int64_t num_weights = 1;
  bool repeats = false;  ///< each time that such a step ends
};

/// Whole runs, of three ranks unless a test changes it, in which memory fails.
class DamagedRuns : public WholeRuns {
 protected:
  static constexpr unsigned kSmallChange = 1;        // of the exponent: by a factor of four
  static constexpr unsigned kSign = 1u << 7;         // what was likely is unlikely
  static constexpr unsigned kWrong = kSign | 0b10;   // and much more so: 16 times as large
  static constexpr unsigned kNotFinite = 0b1000011;  // of weights from 1/64 to 1/32
  static constexpr int64_t kOutputWeights = 32 * 257;

  DamagedRuns() {
    config_ = config("run");
    config_.parallel.ranks = 3;
    config_.train.global_batch = 6;
    config_.checkpoint.interval = 2;
    config_.logging.trace_steps = {};
    config_.eval.interval = 0;
  }

  TrainerOptions damaged(Damage damage) {
    TrainerOptions options;
    options.print = [this](std::string_view text) { output_ += text; };
    options.adjust_engine = [rank = damage.rank, this](EngineOptions& engine) {
      engine.wrap_executor = [rank, this](std::unique_ptr<Executor> made, int of) {
        if (static_cast<size_t>(of) == rank) {
          executor_ = made.get();
        }
        return made;
      };
    };
    options.on_step = [damage = std::move(damage), this](const StepRecord& record) mutable {
      const auto found = std::ranges::find(damage.after_steps, record.step);
      if (found == damage.after_steps.end() || executor_ == nullptr) {
        return;
      }
      for (int64_t i = 0; i < damage.num_weights; ++i) {
        for (int bit = 0; bit < 8; ++bit) {
          if ((damage.bits >> bit & 1) != 0) {
            flip(*executor_,
                 {.rank = damage.rank, .buffer = "params.head", .byte = 4 * i + 3, .bit = bit});
          }
        }
      }
      if (!damage.repeats) {
        damage.after_steps.erase(found);
      }
    };
    return options;
  }

  /// Of three processes with a rank each, where rank 1 is damaged after that many steps have ended.
  std::vector<std::string> errors_of_processes(const Damage& damage) {
    LocalProcesses processes(3);
    return on_threads(3, [&](int rank) {
      TrainerOptions options;
      if (rank == 1) {
        options = damaged(damage);
        options.stop_requested = [flips = options.on_step, ended = int64_t{0}]() mutable {
          flips({.step = ++ended});  // on_step is called in the first process only
          return false;
        };
      }
      options.print = [rank, this](std::string_view text) {
        if (rank == 0) {
          output_ += text;
        }
      };
      options.processes = &processes[rank];
      train(config_, options);
    });
  }

  /// A run of the same configuration that nothing happens to, in another folder.
  void train_whole() {
    RunConfig whole = config_;
    whole.logging.run_folder = path("whole");
    whole.runtime.rerun_steps = 0;
    TrainerOptions options;
    options.print = [](std::string_view) {};
    train(whole, options);
  }

  std::string newest() const { return path("run/checkpoints/step_00000004"); }

  RunConfig config_;
  Executor* executor_ = nullptr;
};

}  // namespace braid
