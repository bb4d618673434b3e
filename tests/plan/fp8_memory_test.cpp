// What the backward keeps of the forward, in bytes, with FP8 products and without.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"
#include "plan/run_plan.h"

namespace braid {
namespace {

constexpr int64_t kTokens = 8192;
constexpr int32_t kLayer = 1;  // of two: one that reads the residual stream of another

/// One microbatch of two layers of the preset.
RunSpec layer_of(const std::string& preset, const std::string& recipe) {
  const std::vector<std::string> overrides{
      "model.preset=" + preset, "model.layers=2",         fmt::format("train.sequence={}", kTokens),
      "train.microbatch=1",     "train.global_batch=1",   "train.dtype=bfloat16",
      "train.fp8=" + recipe,    "runtime.fuse_swiglu=on", "logging.run_folder=none"};
  const RunConfig config = parse_config("", "fp8_memory", overrides);
  validate(config);
  return resolve_run(resolved(config), 128256);
}

/// Bytes of the buffers that a task of the layer writes in the forward and the backward reads.
int64_t kept_bytes(const RunSpec& run) {
  const RunPlan plan = plan_run(run, {.verify = false});
  const Program& program = plan.ranks[0].programs[kTrainProgram];
  std::vector<bool> is_made(program.buffers.size());  // in the layer's forward
  std::vector<bool> is_kept(program.buffers.size());
  for (const Task& task : program.tasks) {
    const OpSpec& spec = program.spec(task);
    const auto ranges = program.operands_of(task);
    for (size_t i = 0; i < ranges.size(); ++i) {
      const size_t buffer = ranges[i].buffer.index();
      if (program.buffers[buffer].role != BufferRole::kActivation) {
        continue;
      }
      if (task.label.phase == Phase::kForward) {
        is_made[buffer] =
            is_made[buffer] || (task.label.layer == kLayer && writes(spec.operands[i].access));
      } else if (is_made[buffer] && reads(spec.operands[i].access)) {
        is_kept[buffer] = true;
      }
    }
  }
  int64_t bytes = 0;
  for (size_t i = 0; i < is_kept.size(); ++i) {
    bytes += is_kept[i] ? program.buffers[i].size_bytes() : 0;
  }
  return bytes;
}

/// Bytes of a copy by columns of values of that width, with its scales: 4 bytes for 128 elements,
/// or 1 byte for 32.
int64_t copy_bytes(int64_t width) {
  return kTokens * width / 32 * 33;
}

// Columns replace the results of both norms and of the activation function, which only products
// read. The backward of attention reads its result, so that stays, and has no columns beside it.
TEST(Fp8Memory, KeepsEachInputOfAProductOnce) {
  for (const std::string preset : {"llama-8b", "llama-1b"}) {
    const RunSpec wide = layer_of(preset, "off");
    const int64_t wide_bytes = kept_bytes(wide);
    const ModelSpec& sizes = wide.model;
    const int64_t width = 2 * sizes.width + sizes.ffn;
    for (const std::string recipe : {"block", "mxfp8"}) {
      SCOPED_TRACE(preset + ", " + recipe);
      RunSpec narrow = layer_of(preset, recipe);
      const int64_t bytes = kept_bytes(narrow);
      EXPECT_EQ(wide_bytes - bytes, 2 * kTokens * width - copy_bytes(width));
      narrow.fp8->delays_columns = false;
      EXPECT_EQ(kept_bytes(narrow) - bytes, copy_bytes(sizes.heads * sizes.head_size));
      // Of the bytes per token of llama-8b, 139,400, copies take 22,528 less, and scales 704.
      EXPECT_LT(static_cast<double>(bytes), 0.845 * static_cast<double>(wide_bytes));
    }
  }
}

}  // namespace
}  // namespace braid
