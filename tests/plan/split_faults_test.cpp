// Passes that cut tasks: what they make of real steps has the meaning of the whole tasks, and a
// fault planted in it is found, unless it changes no bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/expect_error.h"
#include "config/load.h"
#include "config/validate.h"
#include "ir/verify.h"
#include "ops/op.h"
#include "passes/analysis/step_meaning.h"
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
#include "support/symbolic.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<Program> built(std::vector<std::string> keys) {
  for (const char* const key : {"model.width=16", "model.heads=4", "model.ffn=16",
                                "model.vocabulary=32", "logging.run_folder=unused"}) {
    keys.emplace_back(key);
  }
  RandomRun run;
  run.config = parse_config("", "faults", keys);
  validate(run.config);
  run.config = resolved(run.config);
  run.model = resolve_model(run.config.model, run.config.train.sequence, 0);
  return build_step(run);
}

struct Case {
  std::string name;
  std::vector<Program> before;  // by rank
  Pass pass;
  PassContext context;
};

/// With communication on streams of its own, which split_ops looks for.
std::vector<Program> with_streams(std::vector<Program> programs) {
  for (Program& program : programs) {
    program = bulk_overlap(std::move(program), {}).program;
  }
  return programs;
}

std::vector<Program> with_cut_exchanges(std::vector<Program> programs) {
  for (Program& program : programs) {
    program = cut_exchanges(std::move(program)).program;
  }
  return programs;
}

RingExchangeOptions all_sites(OverlapMethod method, int splits) {
  RingExchangeOptions options{.min_rows = 1};
  for (auto& [name, site] : options.sites) {
    site = {method, splits};
  }
  return options;
}

std::vector<Case> cases() {
  static const auto model = make_analytic_model(parse_cluster("h200x8"));
  const PassContext costs{.may_change_rounding = true, .cost_model = model.get()};
  const PassContext no_costs{.may_change_rounding = true};
  const auto ring = [](OverlapMethod method, int splits) {
    PipelineOptions options;
    options.of<RingExchangeOptions>() = all_sites(method, splits);
    return ring_exchange_pass(options);
  };
  PipelineOptions halves;
  halves.of<HalveForwardOptions>() = {.rows = 32, .min_rows = 1};
  PipelineOptions splits;
  splits.of<SplitOpsOptions>() = {.enabled = true, .min_gain_ns = 1, .min_rows = 1};
  const std::vector<std::string> step{"train.sequence=16", "train.microbatch=2",
                                      "train.global_batch=4", "model.layers=2"};
  const auto layout = [&](std::vector<std::string> keys) {
    keys.insert(keys.end(), step.begin(), step.end());
    return built(std::move(keys));
  };
  const auto two = layout({"parallel.ranks=2", "parallel.tensor=2",
                           "parallel.sequence_parallel=true", "memory.recompute=norms"});
  const auto four = layout({"parallel.ranks=4", "parallel.tensor=4",
                            "parallel.sequence_parallel=true", "model.family=gpt2"});
  const auto sums = layout({"parallel.ranks=2", "parallel.tensor=2"});
  const auto stages = layout({"parallel.ranks=4", "parallel.tensor=2", "parallel.pipeline=2",
                              "parallel.sequence_parallel=true"});
  const auto heads =
      built({"parallel.ranks=2", "parallel.context=2", "parallel.context_method=a2a",
             "train.sequence=16", "train.microbatch=1", "train.global_batch=2", "model.layers=2"});
  const auto heads_in_stages =
      built({"parallel.ranks=4", "parallel.context=2", "parallel.pipeline=2",
             "parallel.context_method=a2a", "train.sequence=16", "train.microbatch=1",
             "train.global_batch=2", "model.layers=4"});
  return {{"rings, 2 ranks", two, ring(OverlapMethod::kRing, 2), no_costs},
          {"rings, 4 ranks", four, ring(OverlapMethod::kRing, 2), no_costs},
          {"rings in stages", stages, ring(OverlapMethod::kRing, 2), no_costs},
          {"chunks", four, ring(OverlapMethod::kChunked, 3), no_costs},
          {"chunks of rows", sums, ring(OverlapMethod::kChunked, 2), no_costs},
          {"halves", two, halve_forward_pass(halves), costs},
          {"halves of sums", sums, halve_forward_pass(halves), costs},
          {"halves in stages", stages, halve_forward_pass(halves), costs},
          {"split_ops", with_streams(two), split_ops_pass(splits), costs},
          {"split_ops of sums", with_streams(sums), split_ops_pass(splits), costs},
          {"cut_exchanges", heads, cut_exchanges_pass(), no_costs},
          {"cut_exchanges in stages", heads_in_stages, cut_exchanges_pass(), no_costs}};
}

/// Plants a fault in a task; false if this one cannot have it.
using Plant = std::function<bool(Program&, size_t task, std::mt19937_64&)>;

bool drop(Program& program, size_t task, std::mt19937_64&) {
  program.tasks.erase(program.tasks.begin() + static_cast<ptrdiff_t>(task));
  return true;
}

/// Other tasks only write the same again.
bool repeat(Program& program, size_t task, std::mt19937_64&) {
  const Task copy = program.tasks[task];
  program.tasks.insert(program.tasks.begin() + static_cast<ptrdiff_t>(task), copy);
  return true;
}

/// One operand comes from the piece beside its own.
bool shift_by_piece(Program& program, size_t task, std::mt19937_64& random) {
  const Task& it = program.tasks[task];
  const size_t operand = random() % program.spec(it).operands.size();
  BufferRange& range = program.operands[it.operands_begin + operand];
  const int64_t size = range.end - range.begin;
  const int64_t room = program.buffers[range.buffer.index()].num_elems() - range.end;
  const int64_t shift = range.begin >= size && (room < size || random() % 2 == 0) ? -size : size;
  if (range.begin + shift < 0 || shift > room) {
    return false;
  }
  range.begin += shift;
  range.end += shift;
  return true;
}

/// The task reads two of its operands for each other.
bool swap_operands(Program& program, size_t task, std::mt19937_64&) {
  const Task& it = program.tasks[task];
  const auto& specs = program.spec(it).operands;
  for (size_t i = 1; i < specs.size(); ++i) {
    if (specs[i] == specs[i - 1]) {
      std::swap(program.operands[it.operands_begin + i - 1],
                program.operands[it.operands_begin + i]);
      return true;
    }
  }
  return false;
}

/// The next task with equal operands, perhaps another piece, reads what this one should, and this
/// one what that should.
bool swap_inputs(Program& program, size_t task, std::mt19937_64& random) {
  const Task& it = program.tasks[task];
  const OpSpec& spec = program.spec(it);
  const size_t operand = random() % spec.operands.size();
  if (spec.operands[operand].access != Access::kRead) {
    return false;
  }
  for (size_t next = task + 1; next < program.tasks.size(); ++next) {
    const Task& other = program.tasks[next];
    BufferRange& a = program.operands[it.operands_begin + operand];
    if (other.spec == it.spec && program.operands_of(other)[operand] != a) {
      std::swap(a, program.operands[other.operands_begin + operand]);
      return true;
    }
  }
  return false;
}

bool set_attribute(Program& program, size_t task, std::string_view name, AttributeValue value) {
  OpSpec spec = program.spec(program.tasks[task]);
  for (Attribute& attribute : spec.attributes) {
    if (attribute.name == name && attribute.value != value) {
      attribute.value = value;
      if (name == "accumulate") {
        for (OperandSpec& operand : spec.operands) {
          operand.access = !writes(operand.access)        ? operand.access
                           : std::get<bool>(value)        ? Access::kReadWrite
                           : operand.dtype == DType::kF32 ? Access::kWrite
                                                          : operand.access;
        }
      }
      try {
        check_spec(spec);
      } catch (const InternalError&) {
        return false;
      }
      program.tasks[task].spec = program.specs.intern(spec);
      return true;
    }
  }
  return false;
}

bool flip_accumulate(Program& program, size_t task, std::mt19937_64&) {
  return set_attribute(program, task, "accumulate", true) ||
         set_attribute(program, task, "accumulate", false);
}

/// The block of another rank than that of the ring.
bool shift_further(Program& program, size_t task, std::mt19937_64&) {
  const AttributeValue* const shift = program.spec(program.tasks[task]).find_attribute("shift");
  return shift != nullptr && set_attribute(program, task, "shift", std::get<int64_t>(*shift) + 1);
}

const std::vector<std::pair<std::string, Plant>>& plants() {
  static const std::vector<std::pair<std::string, Plant>> list = {
      {"dropped task", drop},
      {"addend twice",
       [](Program& program, size_t task, std::mt19937_64& random) {
         return std::ranges::any_of(
                    program.spec(program.tasks[task]).operands,
                    [](const OperandSpec& it) { return it.access == Access::kReadWrite; }) &&
                repeat(program, task, random);
       }},
      {"operand of the piece beside it", shift_by_piece},
      {"operands swapped", swap_operands},
      {"inputs of two tasks swapped", swap_inputs},
      {"accumulate flipped", flip_accumulate},
      {"block of another rank", shift_further},
  };
  return list;
}

struct Count {
  int planted = 0;
  int found = 0;
};

/// A case and one of its ranks.
class SplitFaults : public testing::Test {
 protected:
  /// Plants the fault in every `stride`-th task. Nobody else notices it (`verify`) or it matters.
  static Count plant_in_tasks(const Program& before, const Program& after, const Plant& plant,
                              size_t stride, std::mt19937_64& random) {
    Count count;
    const StepMeaning meaning(before, StepMeaning::Of::kSums);
    for (size_t task = random() % stride; task < after.tasks.size(); task += stride) {
      Program faulty = after;
      if (!plant(faulty, task, random) || !verify(faulty, 1, Ordering::kProgramOrder).empty()) {
        continue;
      }
      ++count.planted;
      if (!compare_meaning(meaning, faulty, StepMeaning(faulty, StepMeaning::Of::kSums)).empty()) {
        ++count.found;
      } else {
        EXPECT_TRUE(computes_the_same(after, faulty))
            << "escapes at task " << task << " (" << describe_task(after, TaskId(task)) << ")";
      }
    }
    return count;
  }
};

TEST_F(SplitFaults, AreFoundInWhatEachPassMakes) {
  constexpr size_t kStride = kSanitized ? 28 : 7;
  std::mt19937_64 random(1);
  std::map<std::string, Count> counts;
  for (const Case& it : cases()) {
    for (const Program& before : it.before) {
      SCOPED_TRACE(testing::Message() << it.name << ", rank " << before.rank);
      const PassResult result = it.pass.run(before, it.context);
      ASSERT_TRUE(result.report.changed) << result.report.summary;
      const Program& after = result.program;
      ASSERT_THAT(compare_meaning(StepMeaning(before, StepMeaning::Of::kSums), after,
                                  StepMeaning(after, StepMeaning::Of::kSums)),
                  IsEmpty());
      for (const auto& [name, plant] : plants()) {
        SCOPED_TRACE(name);
        const Count count = plant_in_tasks(before, after, plant, kStride, random);
        counts[name].planted += count.planted;
        counts[name].found += count.found;
      }
    }
  }
  for (const auto& [name, count] : counts) {
    EXPECT_GT(count.found, 0) << name;
    std::cout << fmt::format("{:<32} planted {:>6}  found {:>6}\n", name, count.planted,
                             count.found);
  }
}

/// The product reads its weight from the next element on.
void shift_weight(Program& program, size_t task) {
  BufferRange& weight = program.operands[program.tasks[task].operands_begin + 1];
  ++weight.begin;
  ++weight.end;
}

size_t first_product(const Program& program) {
  size_t task = 0;
  while (program.spec(program.tasks[task]).op != "linear") {
    ++task;
  }
  return task;
}

// Sound programs: the verifier alone sees nothing.
TEST_F(SplitFaults, EndARunWithTheNameOfThePass) {
  Case it = cases().front();
  it.pass.run = [run = it.pass.run](Program program, const PassContext& passed) {
    PassResult result = run(std::move(program), passed);
    shift_weight(result.program, first_product(result.program));
    return result;
  };
  EXPECT_THAT(message_of<InternalError>(
                  [&] { run_passes(it.before.front(), std::vector{it.pass}, it.context); }),
              HasSubstr("pass ring_exchange changes what program"));
}

/// A step in which split_exchange puts attention steps in the place of attention.
Case attention_steps() {
  const auto heads =
      built({"parallel.ranks=2", "parallel.context=2", "parallel.context_method=a2a",
             "train.sequence=16", "train.microbatch=1", "train.global_batch=2", "model.layers=2"});
  return {"split_exchange",
          with_cut_exchanges(heads),
          split_exchange_pass({}),
          {.may_change_rounding = true}};
}

// StepMeaning does not follow attention into its steps, so the products are compared.
TEST_F(SplitFaults, OfProductsAreFoundBesideStepsOfAttention) {
  const Case it = attention_steps();
  const Program& before = it.before.front();
  const PassResult result = it.pass.run(before, it.context);
  ASSERT_TRUE(result.report.changed) << result.report.summary;
  const std::set<std::string> ops = WorkCoverage::ops_in(before);
  const WorkCoverage coverage(before, ops);
  ASSERT_THAT(compare_coverage(coverage, result.program, WorkCoverage(result.program, ops)),
              IsEmpty());
  std::mt19937_64 random(1);
  const auto shift = [](Program& program, size_t task, std::mt19937_64&) {
    shift_weight(program, task);
    return true;
  };
  for (const Plant& plant : {Plant(drop), Plant(repeat), Plant(shift)}) {
    for (size_t task = 0; task < result.program.tasks.size(); ++task) {
      Program faulty = result.program;
      if (faulty.spec(faulty.tasks[task]).op == "linear") {
        plant(faulty, task, random);
        EXPECT_THAT(compare_coverage(coverage, faulty, WorkCoverage(faulty, ops)), Not(IsEmpty()))
            << "task " << task;
      }
    }
  }
}

TEST_F(SplitFaults, BesideStepsOfAttentionEndARun) {
  Case it = attention_steps();
  EXPECT_NO_THROW(run_passes(it.before.front(), std::vector{it.pass}, it.context));
  it.pass.run = [run = it.pass.run](Program program, const PassContext& passed) {
    PassResult result = run(std::move(program), passed);
    shift_weight(result.program, first_product(result.program));
    return result;
  };
  EXPECT_THAT(message_of<InternalError>(
                  [&] { run_passes(it.before.front(), std::vector{it.pass}, it.context); }),
              HasSubstr("pass split_exchange changes what program"));
}

}  // namespace
}  // namespace braid
