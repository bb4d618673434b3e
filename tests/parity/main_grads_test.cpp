#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "model/parameters.h"
#include "parity/layout_config.h"
#include "plan/run_plan.h"
#include "plan/run_spec.h"
#include "verify/layout_run.h"

namespace braid {
namespace {

constexpr const char* kNarrow =
    " train.dtype=bfloat16 optimizer.main_grads_dtype=bfloat16 grad_reduce_dtype=bfloat16";
constexpr const char* kWide = " train.dtype=bfloat16";

UnitValues fresh_weights(const RunPlan& plan) {
  UnitValues values;
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal(0.0, 0.05);
  for (const ParameterUnit& unit : plan.layout.units) {
    std::vector<double>& target = values.emplace_back(static_cast<size_t>(unit.num_elems), 0.0);
    for (const size_t index : unit.slots) {
      const ParameterSlot& slot = plan.layout.slots[index];
      std::vector<float> initial(static_cast<size_t>(slot.end - slot.begin));
      initial_values(plan.layout.parameters[index], plan.run.model.vocabulary, 11, 0, initial);
      for (size_t i = 0; i < initial.size(); ++i) {
        target[static_cast<size_t>(slot.begin) + i] =
            static_cast<double>(initial[i]) + (initial[i] == 0.0F ? normal(random) : 0.0);
      }
    }
  }
  return values;
}

TokenBatch random_batch(const RunConfig& config, int64_t vocabulary) {
  std::mt19937_64 random(3);
  std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(vocabulary - 1));
  TokenBatch batch{.num_sequences = config.train.global_batch, .sequence = config.train.sequence};
  for (int64_t i = 0; i < batch.num_sequences * batch.sequence; ++i) {
    batch.tokens.push_back(token(random));
    batch.labels.push_back(token(random));
  }
  return batch;
}

struct Gradients {
  RunPlan plan;
  UnitValues values;
};

/// The reduced gradients of one step. Without the labels of the last `ignored` sequences, their
/// microbatches add nothing.
Gradients gradients_of(const Layout& layout, int64_t ignored = 0) {
  const RunConfig config = config_of(layout);
  LayoutRun run(plan_run(resolve_run(config, 0), {.update_weights = false}), {});
  run.set_weights(fresh_weights(run.plan()));
  TokenBatch batch = random_batch(config, run.plan().run.model.vocabulary);
  std::fill(batch.labels.end() - ignored * batch.sequence, batch.labels.end(), -1);
  run.step(batch, {});
  return {run.plan(), run.read(StateBuffer::kMainGrad)};
}

Layout one_rank(const Layout& layout, const std::string& dtypes) {
  std::string kept = dtypes;
  for (const std::string& word : words(layout.overrides)) {
    const bool of_model = word.starts_with("train.") || word.starts_with("model.") ||
                          word.starts_with("moe.") || word.starts_with("lora.") ||
                          word.starts_with("data.");
    kept += of_model ? " " + word : "";
  }
  return {layout.model, kept};
}

Layout with(Layout layout, const std::string& overrides) {
  layout.overrides += overrides;
  return layout;
}

/// Calls visit(name, gradient, the same one in `expected`) for each trained parameter.
template <class Visit>
void for_each_gradient(const Gradients& actual, const Gradients& expected, const Visit& visit) {
  const ParameterLayout& layout = expected.plan.layout;
  for (size_t index = 0; index < layout.parameters.size(); ++index) {
    const ParameterSlot& slot = layout.slots[index];
    if (layout.parameters[index].frozen) {
      continue;
    }
    const auto part = [&](const UnitValues& values) {
      return std::span(values[slot.unit])
          .subspan(static_cast<size_t>(slot.begin), static_cast<size_t>(slot.end - slot.begin));
    };
    visit(layout.parameters[index].name, part(actual.values), part(expected.values));
  }
}

size_t parameter_index(const RunPlan& plan, const std::string& name) {
  const std::vector<Parameter>& parameters = plan.layout.parameters;
  return static_cast<size_t>(std::ranges::find(parameters, name, &Parameter::name) -
                             parameters.begin());
}

/// |a - b| / |b| in the Euclidean norm; infinite for NaN.
double distance(std::span<const double> a, std::span<const double> b) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  const double ratio = std::sqrt(difference / std::max(size, 1e-300));
  return std::isnan(ratio) ? INFINITY : ratio;
}

/// Every block with weights: biases, positions and tied tables; experts and routers; states;
/// latents; a table that is read again.
const std::vector<std::string> kModels = {kLlamaModel,
                                          kGpt2Model,
                                          kQwenModel,
                                          kExpertsModel,
                                          kLogitBiasModel,
                                          kGatedExpertModel,
                                          kHybridModel,
                                          kDeepseekModel,
                                          kTiedMtpModel,
                                          std::string(kQwenModel) + " lora.rank=3",
                                          std::string(kLlamaModel) + " lora.rank=3 lora.dora=true"};

bool has_one_writer(const std::string& name, const std::string& model) {
  const bool is_tied = model.find("tied_embeddings=true") != std::string::npos;
  const bool is_table = name.find("embedding") != std::string::npos;
  const bool reads_again = model.find("mtp_depth") != std::string::npos;
  return !is_table || (!is_tied && !reads_again);
}

// One microbatch on one rank: each gradient is the fp32 one rounded once, whoever writes it.
TEST(MainGrads, OfOneMicrobatchAreRoundedOnce) {
  for (const std::string& model : kModels) {
    SCOPED_TRACE(model);
    const std::string once = " train.global_batch=2";
    const Gradients narrow = gradients_of({model, kNarrow + once});
    const Gradients wide = gradients_of({model, kWide + once});
    size_t num_inexact = 0;
    for_each_gradient(narrow, wide, [&](const std::string& name, auto actual, auto expected) {
      for (size_t i = 0; i < actual.size() && has_one_writer(name, model); ++i) {
        const double rounded = BFloat16(static_cast<float>(expected[i]));
        ASSERT_EQ(actual[i], rounded) << name << " " << i;
        num_inexact += rounded != expected[i] ? 1 : 0;
      }
    });
    EXPECT_GT(num_inexact, 1000U) << "wide gradients are no bf16 numbers";
  }
}

// Eight microbatches: the running sum is rounded eight times, by at most 2^-8 of itself. Errors of
// elements are as often up as down, so their norm is at most about sqrt(8) 2^-8 of the norm of the
// largest running sum, which may be twice the last one.
TEST(MainGrads, OfManyMicrobatchesAreNearFp32) {
  for (const std::string& model : kModels) {
    SCOPED_TRACE(model);
    const Gradients narrow = gradients_of({model, kNarrow});
    const Gradients wide = gradients_of({model, kWide});
    double worst = 0;
    for_each_gradient(narrow, wide, [&](const std::string& name, auto actual, auto expected) {
      EXPECT_LT(distance(actual, expected), 0.02) << name;
      worst = std::max(worst, distance(actual, expected));
    });
    EXPECT_GT(worst, 0x1p-12) << "nothing was rounded";
  }
}

/// Layouts add bf16 roundings of activations and their gradients, and those of sums over ranks.
constexpr double kLayoutTolerance = 0.07;

class MainGradsGrid : public testing::TestWithParam<Layout> {};

TEST_P(MainGradsGrid, EqualOneRank) {
  const Gradients layout = gradients_of(with(GetParam(), kNarrow));
  const Gradients alone = gradients_of(one_rank(GetParam(), kNarrow));
  for_each_gradient(layout, alone, [&](const std::string& name, auto actual, auto expected) {
    EXPECT_LT(distance(actual, expected), kLayoutTolerance) << name;
  });
}

// The last microbatch of eight, of all matrices. A vector may hang on a few tokens, and counts of
// experts' tokens on no label.
TEST(MainGrads, OfALostMicrobatchAreFartherThanLayouts) {
  for (const std::string& model : kModels) {
    SCOPED_TRACE(model);
    const Gradients lost = gradients_of({model, kNarrow}, 2);
    const Gradients all = gradients_of({model, kNarrow});
    size_t num_matrices = 0;
    for_each_gradient(lost, all, [&](const std::string& name, auto actual, auto expected) {
      const Parameter& parameter = all.plan.layout.parameters[parameter_index(all.plan, name)];
      if (parameter.shape.rank() > 1) {
        EXPECT_GT(distance(actual, expected), 2 * kLayoutTolerance) << name;
        ++num_matrices;
      }
    });
    EXPECT_GT(num_matrices, 8U);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, MainGradsGrid,
    testing::Values(
        Layout{kLlamaModel, "ranks=4"}, Layout{kLlamaModel, "ranks=4 shard=optimizer"},
        Layout{kGpt2Model, "ranks=4 shard=gradients"},
        Layout{kQwenModel, "ranks=4 shard=parameters memory.recompute=full"},
        Layout{kLlamaModel,
               "ranks=4 shard=parameters shard_replicas=2 shard_over_replicas=true "
               "bucket=virtual_stage"},
        Layout{kQwenModel, "ranks=4 tensor=4 sequence_parallel=true"},
        Layout{kGpt2Model, "ranks=4 tensor=2 shard=optimizer"},
        Layout{kGpt2Model, "ranks=4 pipeline=4 schedule=zb-h1"},
        Layout{kLlamaModel,
               "ranks=4 pipeline=2 virtual_stages=2 schedule=interleaved shard=gradients"},
        Layout{kLlamaModel, "ranks=2 pipeline=2 virtual_stages=2 schedule=dualpipe-v"},
        Layout{kLlamaModel, "ranks=4 context=4 shard=optimizer train.sequence=16"},
        Layout{kGpt2Model, "ranks=4 context=2 tensor=2 context_method=all_gather"},
        Layout{kExpertsModel, "ranks=4 expert=2 shard=parameters moe.force_balance=true"},
        Layout{kGatedExpertModel, "ranks=2 expert_tensor=2 moe.force_balance=true"},
        Layout{kHybridModel, "ranks=4 tensor=2 sequence_parallel=true shard=optimizer"},
        Layout{kHybridModel, "ranks=2 context=2 mamba_context=states train.global_batch=4"},
        Layout{kTiedMtpModel,
               "ranks=4 pipeline=2 schedule=zb-h1 shard=gradients train.global_batch=8"},
        Layout{kQwenModel, "ranks=4 tensor=2 shard=parameters lora.rank=3 lora.dora=true"}));

}  // namespace
}  // namespace braid
