#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "config/load.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

/// Overrides of the base configuration below, separated by blanks; keys without a section are of
/// [parallel].
struct Layout {
  std::string overrides;
};

void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.overrides;
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> list;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) {
      list.push_back(text.substr(at, end - at));
    }
    at = end + 1;
  }
  return list;
}

RunConfig config_of(const Layout& layout, const std::vector<std::string>& overlap) {
  std::vector<std::string> overrides = {"model.family=llama",
                                        "model.layers=4",
                                        "model.width=24",
                                        "model.heads=4",
                                        "model.kv_heads=2",
                                        "model.head_size=4",
                                        "model.ffn=24",
                                        "train.microbatch=1",
                                        "train.sequence=16",
                                        "train.global_batch=16",
                                        "eval.interval=0",
                                        "logging.run_folder=none",
                                        "optimizer.learning_rate=3e-3"};
  for (const std::string& word : words(layout.overrides)) {
    overrides.push_back(word.find('.') < word.find('=') ? word : "parallel." + word);
  }
  for (const std::string& word : overlap) {
    overrides.push_back("overlap." + word);
  }
  return parse_config("", "overlap", overrides);
}

/// Passes that find something to do.
std::vector<std::string> passes_of(const Layout& layout) {
  std::vector<std::string> passes = {"overlap_grad_reduce", "assign_streams"};
  if (layout.overrides.find("shard=") != std::string::npos) {
    passes.emplace_back("prefetch_parameters");
  }
  if (layout.overrides.find("context=") != std::string::npos) {
    passes.emplace_back("context_ring");
  }
  return passes;
}

class OverlapParity : public testing::TestWithParam<Layout> {};

// Orders and streams differ, the kernels and the order of every sum do not. The second step reads
// weights that the first has updated and, depending on the mode, not gathered yet.
TEST_P(OverlapParity, ChangesNoBit) {
  constexpr int64_t kSteps = 2;
  const Outcome off = run(config_of(GetParam(), {"mode=off"}), kSteps);
  expect_same_bits(run(config_of(GetParam(), {"mode=auto"}), kSteps), off);
  for (const std::string& pass : passes_of(GetParam())) {
    SCOPED_TRACE(pass);
    const std::string without = fmt::format("disable_passes=[\"{}\"]", pass);
    expect_same_bits(run(config_of(GetParam(), {"mode=auto", without}), kSteps), off);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, OverlapParity,
    testing::Values(
        Layout{"ranks=4"}, Layout{"ranks=4 shard=optimizer"}, Layout{"ranks=4 shard=gradients"},
        Layout{"ranks=4 shard=parameters"},
        Layout{"ranks=4 shard=optimizer grad_reduce_dtype=bfloat16 train.dtype=bfloat16"},
        Layout{"ranks=4 shard=gradients grad_reduce_dtype=bfloat16"},
        Layout{"ranks=4 grad_reduce_dtype=bfloat16"},
        Layout{"ranks=4 shard=parameters shard_replicas=2 bucket=virtual_stage"},
        Layout{"ranks=4 shard=parameters memory.recompute=full model.tied_embeddings=true"},
        Layout{"ranks=4 tensor=2 sequence_parallel=true shard=gradients"},
        Layout{"ranks=4 pipeline=2 shard=optimizer"}, Layout{"ranks=4 pipeline=2 shard=parameters"},
        Layout{"ranks=4 pipeline=2 virtual_stages=2 schedule=interleaved shard=gradients"},
        Layout{"ranks=4 pipeline=2 schedule=zb-h1 shard=parameters"}, Layout{"ranks=2 context=2"},
        Layout{"ranks=4 context=4 shard=parameters"},
        Layout{"ranks=2 context=2 context_method=all_gather"},
        Layout{"ranks=4 context=4 context_method=a2a+ring train.dtype=bfloat16"}));

}  // namespace
}  // namespace braid
