// Passes that may change rounding cut products up. Faults planted in what they make of real steps
// must be seen by WorkCoverage, which looks through their pieces and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/expect_error.h"
#include "config/load.h"
#include "config/validate.h"
#include "passes/analysis/work_coverage.h"
#include "passes/context/cut_exchanges.h"
#include "passes/context/split_exchange.h"
#include "passes/pipeline_options.h"
#include "passes/runner.h"
#include "passes/tensor/bulk_overlap.h"
#include "passes/tensor/halve_forward.h"
#include "passes/tensor/ring_exchange.h"
#include "passes/tensor/split_ops.h"
#include "plan/model_setup.h"
#include "sim/analytic_model.h"
#include "support/random_step.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// The first rank's step as it is built.
Program built(std::vector<std::string> keys) {
  for (const char* const key :
       {"model.layers=2", "model.width=64", "model.heads=4", "model.vocabulary=256",
        "train.sequence=64", "train.global_batch=4", "logging.run_folder=unused"}) {
    keys.emplace_back(key);
  }
  RandomRun run;
  run.config = parse_config("", "faults", keys);
  validate(run.config);
  run.config = resolved(run.config);
  run.model = resolve_model(run.config.model, run.config.train.sequence, 0);
  return build_step(run).front();
}

Program tensor_step() {
  return built({"parallel.ranks=2", "parallel.tensor=2", "parallel.sequence_parallel=true",
                "train.microbatch=2"});
}

Program context_step() {
  return cut_exchanges(built({"parallel.ranks=2", "parallel.context=2",
                              "parallel.context_method=a2a", "train.microbatch=1"}))
      .program;
}

struct Case {
  std::string name;
  Program before;
  Pass pass;
  PassContext context;
};

/// With communication on streams of its own, which split_ops looks for.
Program step_with_streams() {
  return bulk_overlap(tensor_step(), {}).program;
}

std::vector<Case> cases() {
  static const auto model = make_analytic_model(parse_cluster("h200x8"));
  const PassContext costs{.may_change_rounding = true, .cost_model = model.get()};
  const PassContext no_costs{.may_change_rounding = true};
  PipelineOptions options;
  options.of<RingExchangeOptions>().min_rows = 1;
  options.of<HalveForwardOptions>() = {.rows = 128, .min_rows = 1};
  options.of<SplitOpsOptions>() = {.enabled = true, .min_gain_ns = 1, .min_rows = 1};
  return {{"ring_exchange", tensor_step(), ring_exchange_pass(options), no_costs},
          {"halve_forward", tensor_step(), halve_forward_pass(options), costs},
          {"split_ops", step_with_streams(), split_ops_pass(options), costs},
          {"split_exchange", context_step(), split_exchange_pass(options), no_costs}};
}

/// Plants a fault in a product; false if this one cannot have it.
using Plant = std::function<bool(Program&, size_t task)>;

bool drop(Program& program, size_t task) {
  program.tasks.erase(program.tasks.begin() + static_cast<ptrdiff_t>(task));
  return true;
}

bool repeat(Program& program, size_t task) {
  const Task copy = program.tasks[task];
  program.tasks.insert(program.tasks.begin() + static_cast<ptrdiff_t>(task), copy);
  return true;
}

bool take_other_microbatch(Program& program, size_t task) {
  ++program.tasks[task].label.microbatch;
  return true;
}

/// Moves an operand on by an element: what is written, or a weight.
bool shift(Program& program, size_t task, bool written) {
  const Task& it = program.tasks[task];
  const auto& specs = program.spec(it).operands;
  for (size_t i = 0; i < specs.size(); ++i) {
    BufferRange& range = program.operands[it.operands_begin + i];
    const Buffer& buffer = program.buffers[range.buffer.index()];
    const bool fits = written
                          ? writes(specs[i].access)
                          : !writes(specs[i].access) && buffer.lifetime == Lifetime::kPersistent;
    if (fits && range.end < buffer.num_elems()) {
      ++range.begin;
      ++range.end;
      return true;
    }
  }
  return false;
}

const std::vector<std::pair<std::string, Plant>>& plants() {
  static const std::vector<std::pair<std::string, Plant>> list = {
      {"dropped piece", drop},
      {"piece twice", repeat},
      {"piece of another microbatch", take_other_microbatch},
      {"result shifted", [](Program& program, size_t task) { return shift(program, task, true); }},
      {"weight shifted",
       [](Program& program, size_t task) { return shift(program, task, false); }}};
  return list;
}

TEST(SplitFaults, AreSeenInWhatEachPassMakes) {
  for (const Case& it : cases()) {
    SCOPED_TRACE(it.name);
    const PassResult result = it.pass.run(it.before, it.context);
    ASSERT_TRUE(result.report.changed) << result.report.summary;
    const std::set<std::string> ops = WorkCoverage::ops_in(it.before);
    const WorkCoverage before(it.before, ops);
    ASSERT_THAT(compare_coverage(before, result.program, WorkCoverage(result.program, ops)),
                IsEmpty());
    for (const auto& [name, plant] : plants()) {
      int num_planted = 0;
      for (size_t task = 0; task < result.program.tasks.size(); ++task) {
        Program faulty = result.program;
        if (!ops.contains(faulty.spec(faulty.tasks[task]).op) || !plant(faulty, task)) {
          continue;
        }
        ++num_planted;
        EXPECT_THAT(compare_coverage(before, faulty, WorkCoverage(faulty, ops)), Not(IsEmpty()))
            << name << " at task " << task;
      }
      EXPECT_GT(num_planted, 0) << name;
    }
  }
}

// Sound programs: the verifier alone sees nothing.
TEST(SplitFaults, EndARunWithTheNameOfThePass) {
  Case it = cases().front();
  it.pass.run = [run = it.pass.run](Program program, const PassContext& passed) {
    PassResult result = run(std::move(program), passed);
    size_t task = 0;
    while (result.program.spec(result.program.tasks[task]).op != "linear") {
      ++task;
    }
    repeat(result.program, task);
    return result;
  };
  EXPECT_THAT(
      message_of<InternalError>([&] { run_passes(it.before, std::vector{it.pass}, it.context); }),
      HasSubstr("pass ring_exchange changes what program"));
}

}  // namespace
}  // namespace braid
