#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "config/load.h"
#include "ops/quantize.h"
#include "support/engine_runs.h"
#include "support/product_factors.h"
#include "support/signal_to_noise.h"

namespace braid {
namespace {

constexpr const char* kRecipes[] = {"tensor", "block", "mxfp8"};

/// A model whose sizes are multiples of 128, as FP8 products need them.
RunConfig fp8_config(const std::string& recipe) {
  RunConfig config = small_config();
  config.model.width = 128;
  config.model.ffn = 256;
  config.train.sequence = 64;
  config.train.global_batch = 8;
  config.train.fp8 = recipe;
  return config;
}

/// Whether the step of each rank has FP8 products.
int64_t num_fp8_products(const RunConfig& config) {
  RunConfig checked = resolved(config);
  const RunPlan plan = plan_run(resolve_run(checked, 50));
  int64_t count = 0;
  for (const RankPlan& rank : plan.ranks) {
    for (const Task& task : rank.programs[0].tasks) {
      count += rank.programs[0].spec(task).op.starts_with("scaled_linear") ? 1 : 0;
    }
  }
  return count;
}

TEST(Fp8, TrainsAlmostLikeTheWiderType) {
  const Outcome wide = run(fp8_config("off"), 30);
  for (const std::string recipe : kRecipes) {
    const Outcome narrow = run(fp8_config(recipe), 30);
    EXPECT_LT(narrow.losses.back(), 0.7 * narrow.losses.front()) << recipe;
    EXPECT_NEAR(narrow.losses.back() / wide.losses.back(), 1.0, 0.03) << recipe;
    EXPECT_NE(narrow.losses.front(), wide.losses.front()) << recipe;
  }
}

TEST(Fp8, AllThreeProductsOfEachMatrixOfTheLayers) {
  const int64_t matrices = 4;
  const RunConfig config = fp8_config("block");
  EXPECT_EQ(num_fp8_products(config), 2 * matrices * 3 * 4);  // layers, products, microbatches
  EXPECT_EQ(num_fp8_products(fp8_config("off")), 0);
}

TEST(Fp8, KeepsTheSitesOfTheFilter) {
  RunConfig config = fp8_config("block");
  config.train.fp8_filter = {"layers.0.*", "*.attention.proj"};
  EXPECT_EQ(num_fp8_products(config), 3 * 3 * 4);
}

// Also with tied tables, whose rows are looked up in the wider type.
TEST(Fp8, TheHeadToo) {
  for (const bool tied : {false, true}) {
    RunConfig config = fp8_config("block");
    config.model.tied_embeddings = tied;
    const Outcome layers = run(config, 8);
    const int64_t products = num_fp8_products(config);
    config.train.fp8_head = true;
    EXPECT_EQ(num_fp8_products(config), products + 3 * 4);
    const Outcome all = run(config, 8);
    EXPECT_NE(all.losses.front(), layers.losses.front());
    EXPECT_NEAR(all.losses.back() / layers.losses.back(), 1.0, 0.03);
  }
}

TEST(Fp8, GradientsHaveLittleNoise) {
  // After one step a first moment is the gradient, times a factor that is the same for all.
  const Outcome wide = run(fp8_config("off"), 1);
  for (const std::string recipe : kRecipes) {
    const Outcome narrow = run(fp8_config(recipe), 1);
    for (size_t i = 0; i < wide.state.exp_avg.size(); ++i) {
      const auto& exact = wide.state.exp_avg[i];
      const auto& found = narrow.state.exp_avg[i];
      const double snr = snr_db({exact.begin(), exact.end()}, {found.begin(), found.end()});
      EXPECT_GT(snr, recipe == "tensor" ? 17 : 20) << recipe << ", parameter " << i;
    }
  }
}

// Hopper's sums have about 14 bits: other gradients, but hardly another loss.
TEST(Fp8, RehearsesTheSumsOfHopper) {
  for (const std::string recipe : kRecipes) {
    RunConfig config = fp8_config(recipe);
    config.train.global_batch = 2;  // one microbatch
    const Outcome ideal = run(config, 1);
    config.train.fp8_sums = "hopper";
    const Outcome hopper = run(config, 1);
    EXPECT_NE(hopper.state.exp_avg, ideal.state.exp_avg) << recipe;
    EXPECT_NEAR(hopper.losses[0] / ideal.losses[0], 1.0, 1e-3) << recipe;
    EXPECT_NEAR(hopper.grad_norms[0] / ideal.grad_norms[0], 1.0, 0.01) << recipe;
  }
}

TEST(Fp8, NoPassChangesABit) {
  for (const std::string recipe : kRecipes) {
    for (const char* const layout :
         {"parallel.ranks=2 parallel.shard=optimizer", "parallel.ranks=2 parallel.tensor=2",
          "parallel.ranks=2 parallel.pipeline=2 parallel.schedule=zb-h1",
          "parallel.ranks=2 parallel.shard=parameters"}) {
      std::vector<std::string> overrides;
      for (const char* const key :
           {"model.layers=2", "model.width=128", "model.heads=4", "model.kv_heads=2",
            "model.ffn=256", "train.sequence=64", "train.microbatch=2", "train.global_batch=8",
            "train.dtype=bfloat16", "logging.run_folder=none"}) {
        overrides.emplace_back(key);
      }
      overrides.push_back("train.fp8=" + recipe);
      std::string text = layout;
      for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(' ', at), text.size());
        overrides.push_back(text.substr(at, end - at));
        at = end + 1;
      }
      const auto outcome = [&](std::vector<std::string> more) {
        more.insert(more.begin(), overrides.begin(), overrides.end());
        return run(parse_config("", "fp8", more), 2);
      };
      const Outcome off = outcome({"overlap.mode=off"});
      expect_same_bits(off, outcome({"overlap.mode=auto"}));
      expect_same_bits(off, outcome({"memory.recompute=norms"}));
      expect_same_bits(off, outcome({"memory.recompute=full"}));
    }
  }
}

TEST(Fp8, BiasesGetTheirGradients) {
  RunConfig config = fp8_config("block");
  config.model.family = "gpt2";
  config.model.kv_heads.reset();
  RunConfig wide = config;
  wide.train.fp8 = "off";
  const Outcome narrow = run(config, 3);
  const Outcome exact = run(wide, 3);
  EXPECT_NEAR(narrow.grad_norms[0] / exact.grad_norms[0], 1.0, 0.03);
  EXPECT_NEAR(narrow.losses[2] / exact.losses[2], 1.0, 0.01);
}

/// One layer whose products are FP8 on each of `ranks` tensor ranks.
RunConfig tensor_config(int64_t ranks, const std::string& recipe) {
  RunConfig config = small_config();
  config.model.layers = 1;
  config.model.width = 128 * ranks;
  config.model.heads = ranks;
  config.model.kv_heads = ranks;
  config.model.ffn = 128 * ranks;
  config.train.sequence = 128 * ranks;
  config.train.microbatch = 1;
  config.train.global_batch = 1;
  config.train.dtype = "bfloat16";
  config.train.fp8 = recipe;
  config.parallel.ranks = ranks;
  config.parallel.tensor = ranks;
  config.parallel.sequence_parallel = true;
  return config;
}

int64_t num_gathers_of(const RunConfig& config, const std::function<bool(DType)>& has_dtype) {
  RunConfig checked = resolved(config);
  const RunPlan plan = plan_run(resolve_run(checked, 50));
  const Program& program = plan.ranks.front().programs[0];
  return std::ranges::count_if(program.tasks, [&](const Task& task) {
    const OpSpec& spec = program.spec(task);
    return spec.op == "all_gather" && task.label.layer >= 0 && has_dtype(spec.operands[0].dtype);
  });
}

/// Tasks of that op in the step of rank 0.
int64_t num_tasks_of(const RunConfig& config, const std::string& op) {
  RunConfig checked = resolved(config);
  const RunPlan plan = plan_run(resolve_run(checked, 50));
  const Program& program = plan.ranks[0].programs[0];
  return std::ranges::count_if(program.tasks,
                               [&](const Task& task) { return program.spec(task).op == op; });
}

// GPT-2 has biases, whose gradients are sums of what is quantised. The last norm has no copies.
TEST(Fp8, CopiesInTheTaskThatMakesTheValueChangeNoBit) {
  for (const auto& [recipe, family] :
       {std::tuple{"tensor", "llama"}, std::tuple{"block", "gpt2"}, std::tuple{"mxfp8", "llama"}}) {
    RunConfig config = fp8_config(recipe);
    config.model.family = family;
    config.train.dtype = "bfloat16";
    config.runtime.fuse_swiglu = "off";
    const bool is_gpt2 = config.model.family == "gpt2";
    const std::string op = is_gpt2 ? "gelu" : "swiglu";
    const std::string norm = is_gpt2 ? "layernorm" : "rmsnorm";
    EXPECT_GT(num_tasks_of(config, op), 0);
    EXPECT_GT(num_tasks_of(config, op + "_backward"), 0);
    const int64_t norms = num_tasks_of(config, norm);
    EXPECT_EQ(num_tasks_of(config, "add_" + norm), 4 * norms);
    const Outcome apart = run(config, 2);
    config.runtime.fuse_swiglu = "on";
    EXPECT_EQ(num_tasks_of(config, op), 0);
    EXPECT_EQ(num_tasks_of(config, op + "_backward"), 0);
    EXPECT_EQ(num_tasks_of(config, norm), 0);
    EXPECT_EQ(num_tasks_of(config, "add_" + norm), norms);
    expect_same_bits(apart, run(config, 2));
    config.memory.recompute = "full";
    expect_same_bits(apart, run(config, 2));
  }
}

// Attention's result is kept by its backward, which then makes its columns: one task more for each
// layer and microbatch.
TEST(Fp8, ColumnsMadeInTheBackwardChangeNoBit) {
  const auto at_once = [](RunSpec& run) { run.fp8->delays_columns = false; };
  for (const char* const recipe : {"block", "mxfp8"}) {
    RunConfig config = fp8_config(recipe);
    config.train.dtype = "bfloat16";
    RunSpec spec = resolve_run(resolved(config), 50);
    const auto num_tasks = [&] { return plan_run(spec).ranks[0].programs[0].tasks.size(); };
    const size_t delayed = num_tasks();
    at_once(spec);
    EXPECT_EQ(delayed, num_tasks() + 2u * 4);
    const Outcome expected = run(config, 2, {}, {.change = at_once});
    expect_same_bits(expected, run(config, 2));
    config.memory.recompute = "full";
    expect_same_bits(expected, run(config, 2));
  }
  for (const char* const schedule : {"1f1b", "zb-h1"}) {
    RunConfig config = tensor_config(2, "block");
    config.model.layers = 2;
    config.train.global_batch = 2;
    config.parallel.ranks = 4;
    config.parallel.pipeline = 2;
    config.parallel.schedule = schedule;
    expect_same_bits(run(config, 1, {}, {.change = at_once}), run(config, 1));
  }
}

// Each rank quantises its own tokens; all have the bits of quantising what they gather: rows and
// columns that products read, and their scales, too.
TEST(Fp8, GathersOfCopiesChangeNoBit) {
  for (const auto& [ranks, recipe, family] :
       {std::tuple{2, "block", "llama"}, std::tuple{2, "mxfp8", "llama"},
        std::tuple{2, "block", "gpt2"}, std::tuple{3, "mxfp8", "llama"},
        std::tuple{5, "block", "llama"}, std::tuple{8, "block", "llama"}}) {
    RunConfig config = tensor_config(ranks, recipe);
    config.model.family = family;
    const int64_t steps = ranks == 2 ? 2 : 1;  // the larger layouts take seconds
    ProductFactors of_copies(ranks);
    ProductFactors of_values(ranks);
    const Outcome copies = run(config, steps, of_copies.options());
    config.train.fp8_gather = false;
    expect_same_bits(copies, run(config, steps, of_values.options()));
    EXPECT_EQ(of_copies.by_rank()[0].size(),
              static_cast<size_t>(12 * steps));  // matrices, products
    EXPECT_TRUE(of_copies.by_rank() == of_values.by_rank()) << recipe << " on " << ranks;
  }
}

TEST(Fp8, GathersCopiesInsteadOfValues) {
  RunConfig config = tensor_config(2, "block");
  const auto is_wide = [](DType dtype) { return dtype == DType::kBF16; };
  EXPECT_EQ(num_gathers_of(config, is_fp8), 8);  // x of qkv and fc1, dy of proj and fc2: two each
  EXPECT_EQ(num_gathers_of(config, is_wide), 0);
  config.train.fp8_gather = false;
  EXPECT_EQ(num_gathers_of(config, is_fp8), 0);
  EXPECT_GE(num_gathers_of(config, is_wide), 4);
  config.train.fp8_gather = true;
  config.train.fp8 = "tensor";  // no rank knows the scale of all
  EXPECT_EQ(num_gathers_of(config, is_fp8), 0);
}

TEST(Fp8, NoPassChangesABitOfGatheredCopies) {
  RunConfig config = tensor_config(2, "block");
  config.model.layers = 2;
  config.train.global_batch = 2;
  config.runtime.fuse_swiglu = "on";
  config.overlap.mode = "off";
  const Outcome off = run(config, 2);
  config.overlap.mode = "auto";
  expect_same_bits(off, run(config, 2));
  config.memory.recompute = "full";
  expect_same_bits(off, run(config, 2));
  config.parallel.ranks = 4;
  config.parallel.pipeline = 2;
  config.parallel.schedule = "zb-h1";
  const Outcome pipeline = run(config, 2);
  config.overlap.mode = "off";
  config.memory.recompute = "none";
  expect_same_bits(pipeline, run(config, 2));
}

/// Layers of which only the feed-forward is FP8, over tensor ranks and two pipeline stages.
RunConfig pipeline_config() {
  RunConfig config = tensor_config(2, "block");
  config.model.layers = 4;
  config.model.width = 128;
  config.train.global_batch = 2;
  config.parallel.ranks = 4;
  config.parallel.pipeline = 2;
  return config;
}

/// Places of tasks of that op and phase at sites of that ending, in the step of the last rank.
std::vector<size_t> places_of(const RunConfig& config, const std::string& op, Phase phase,
                              const std::string& site_ending) {
  const RunPlan plan = plan_run(resolve_run(resolved(config), 50));
  const Program& program = plan.ranks.back().programs[0];
  std::vector<size_t> places;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Label& label = program.tasks[i].label;
    if (program.spec(program.tasks[i]).op == op && label.phase == phase && label.site.valid() &&
        program.sites[label.site.index()].ends_with(site_ending)) {
      places.push_back(i);
    }
  }
  return places;
}

// Both layers of a stage share the settings of fc2_wgrad, and the gathers of its columns share a
// stream. The weight gradients wait for the message to the stage before, so that the columns of
// both layers are there before either is read.
TEST(Fp8, DelayedWgradsOfTwoLayersReadTheirOwnColumns) {
  RunConfig config = pipeline_config();
  config.overlap.mode = "off";
  const Outcome off = run(config, 2);
  config.overlap.mode = "manual";
  config.overlap.tp_comm_overlap = true;
  config.overlap.tp_comm_overlap_ag = false;
  config.overlap.tp_comm_overlap_rs = false;
  config.overlap.overlap_p2p_comm = true;
  config.overlap.overlap_p2p_wgrad_delayed_layer_number = 2;
  config.overlap.overlap_p2p_with_transformer_layer_wgrad = true;
  const std::vector<size_t> sends = places_of(config, "send", Phase::kComm, "");
  const std::vector<size_t> wgrads =
      places_of(config, "scaled_linear_wgrad", Phase::kWgrad, "mlp.fc2");
  const std::vector<size_t> columns =
      places_of(config, "all_gather", Phase::kComm, "fc2.sum.column");
  ASSERT_EQ(sends.size(), 2u);  // one for each microbatch
  ASSERT_EQ(wgrads.size(), 4u);
  ASSERT_EQ(columns.size(), 4u);
  EXPECT_LT(columns[1], sends[0]);  // both layers' columns, then the message, then what reads them
  EXPECT_LT(sends[0], wgrads[0]);
  EXPECT_LT(sends[1], wgrads[2]);
  expect_same_bits(off, run(config, 2));
}

/// All products of layers beside communication in pieces, rings or chunks; none of the head, whose
/// bits are those of a BLAS library.
void cut_products(RunConfig& config) {
  config.overlap.mode = "manual";
  config.overlap.tp_comm_overlap = true;
  config.overlap.tp_comm_bulk_wgrad = false;
  config.overlap.tp_comm_overlap_sites = {"logits_fprop=none", "logits_dgrad=none"};
  std::vector<std::string> more = {"proj_fprop=chunked:2", "fc2_fprop=chunked:2",
                                   "qkv_dgrad=chunked:2", "fc1_dgrad=chunked:2"};
  if (config.parallel.sequence_parallel) {
    config.overlap.tp_comm_overlap_rs_dgrad = true;
    more = {"fc2_fprop=ring"};
  } else {
    config.overlap.tp_comm_overlap_ag = false;
    config.overlap.tp_comm_overlap_rs = false;
    config.overlap.tp_comm_bulk_dgrad = false;
  }
  config.overlap.tp_comm_overlap_sites.insert(config.overlap.tp_comm_overlap_sites.end(),
                                              more.begin(), more.end());
}

// An FP8 product of some rows or features has the bits of these of the whole.
TEST(Fp8, ProductsInPiecesChangeNoBit) {
  for (const auto& [ranks, recipe, scatters] :
       {std::tuple{2, "block", true}, std::tuple{3, "block", true}, std::tuple{2, "mxfp8", true},
        std::tuple{2, "tensor", true}, std::tuple{2, "block", false},
        std::tuple{2, "tensor", false}}) {
    SCOPED_TRACE(std::string(recipe) + " on " + std::to_string(ranks));
    RunConfig config = tensor_config(ranks, recipe);
    config.parallel.sequence_parallel = scatters;
    config.overlap.mode = "off";
    const Outcome whole = run(config, 1);
    const int64_t products = num_tasks_of(config, "scaled_linear");
    const int64_t dgrads = num_tasks_of(config, "scaled_linear_dgrad");
    cut_products(config);
    EXPECT_GT(num_tasks_of(config, "scaled_linear"), products);
    EXPECT_GT(num_tasks_of(config, "scaled_linear_dgrad"), dgrads);
    expect_same_bits(whole, run(config, 1));
  }
}

// Halves of forwards cut FP8 products of whole rows, and of values that ranks gather. Copies that
// they gather stay whole.
TEST(Fp8, HalvesOfForwardsChangeNoBit) {
  for (const auto& [scatters, gathers_copies] :
       {std::pair{false, true}, std::pair{true, false}, std::pair{true, true}}) {
    RunConfig config = tensor_config(2, "block");
    config.model.width = 128;
    config.train.microbatch = 2;
    config.train.global_batch = 2;
    config.parallel.sequence_parallel = scatters;
    config.train.fp8_gather = gathers_copies;
    config.overlap.mode = "off";
    const Outcome whole = run(config, 1);
    const int64_t products = num_tasks_of(config, "scaled_linear");
    config.overlap.mode = "manual";
    config.overlap.pair_forward_backward = "forward_halves";
    EXPECT_EQ(num_tasks_of(config, "scaled_linear"),
              scatters && gathers_copies ? products : 2 * products);
    const Outcome halves = run(config, 1);
    EXPECT_EQ(halves.losses, whole.losses);
    EXPECT_NEAR(halves.grad_norms[0] / whole.grad_norms[0], 1.0, 1e-6);  // sums of norms' gradients
  }
}

}  // namespace
}  // namespace braid
