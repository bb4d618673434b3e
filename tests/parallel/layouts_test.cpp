#include <gtest/gtest.h>

#include <map>
#include <string>

#include "config/choices.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "parallel/pipeline_layout.h"
#include "parallel/step_program.h"
#include "support/thinned.h"

namespace braid {
namespace {

struct Layout {
  std::string name;
  MeshSizes mesh;
  ParallelOptions parallel;
};

void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

ModelSpec tiny(const ModelStyle& style) {
  return {.style = style,
          .layers = 4,
          .width = 24,
          .heads = 4,
          .kv_heads = style == kGpt2Style ? 4 : 2,
          .head_size = 6,
          .ffn = 40,
          .vocabulary = 100,
          .max_positions = 16,
          .tied_embeddings = style == kGpt2Style,
          .qkv_bias = style == kGpt2Style};
}

ParallelOptions pipelined(const MeshSizes& mesh, ScheduleKind kind, int virtual_stages,
                          ParallelOptions options = {}) {
  options.schedule = kind;
  options.virtual_stages = virtual_stages;
  options.stages = make_pipeline_layout(
      {.layers = 4,
       .schedule = {.kind = kind, .num_ranks = mesh.pipeline, .virtual_stages = virtual_stages},
       .layout = "even"});
  return options;
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const ShardKind shard :
       {ShardKind::kNone, ShardKind::kOptimizer, ShardKind::kGradients, ShardKind::kParameters}) {
    const std::string name(choice_name(shard));
    all.push_back({"data_4_" + name, {.data = 4}, {.shard = shard}});
    all.push_back({"tensor_2_data_2_" + name,
                   {.tensor = 2, .data = 2},
                   {.sequence_parallel = true, .shard = shard}});
    const MeshSizes three{.tensor = 2, .data = 2, .pipeline = 2};
    all.push_back({"tensor_2_data_2_pipeline_2_" + name, three,
                   pipelined(three, ScheduleKind::kInterleaved, 2, {.shard = shard})});
  }
  all.push_back({"replicas",
                 {.data = 4, .replicas = 2},
                 {.shard = ShardKind::kGradients, .reduce_dtype = DType::kBF16}});
  all.push_back({"buckets",
                 {.data = 2},
                 {.shard = ShardKind::kOptimizer, .buckets = {.kind = BucketKind::kVirtualStage}}});
  all.push_back({"whole_units", {.data = 2}, {.shard = ShardKind::kParameters, .whole_units = 2}});
  all.push_back({"tensor_4", {.tensor = 4, .kv_replicas = 2}, {}});
  const MeshSizes two{.pipeline = 2};
  all.push_back({"1f1b", two, pipelined(two, ScheduleKind::kOneForwardOneBackward, 1)});
  all.push_back({"gpipe", two, pipelined(two, ScheduleKind::kGpipe, 1)});
  all.push_back({"zb_h1", two, pipelined(two, ScheduleKind::kZbH1, 1)});
  all.push_back({"zb_v", two, pipelined(two, ScheduleKind::kZbV, 2)});
  all.push_back({"dualpipe_v", two, pipelined(two, ScheduleKind::kDualpipeV, 2)});
  return all;
}

class StepProgramOf : public testing::TestWithParam<std::tuple<Layout, ModelStyle, DType>> {
 protected:
  Program train(int rank) const {
    const auto& [layout, style, dtype] = GetParam();
    const ModelSpec model = tiny(style);
    MeshSizes sizes = layout.mesh;
    if (style == kGpt2Style) {
      sizes.kv_replicas = 1;
    }
    const Mesh mesh(sizes);
    return build_train_program(model, make_rank_layout(model, mesh, rank, layout.parallel), mesh,
                               rank,
                               {.microbatch = 2,
                                .sequence = 8,
                                .num_microbatches = 4,
                                .dtype = dtype,
                                .parallel = layout.parallel});
  }
  int num_ranks() const { return std::get<0>(GetParam()).mesh.num_ranks(); }
};

TEST_P(StepProgramOf, IsGoodOnEveryRank) {
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const Program program = train(rank);
    const auto faults = verify(program, 1, Ordering::kProgramOrder);
    ASSERT_TRUE(faults.empty()) << "rank " << rank << ": " << faults.front().message;
    const std::string text = print_program(program);
    ASSERT_EQ(print_program(parse_program(text)), text);
  }
}

// Each weight of the model is updated on as many ranks as hold a copy of its state.
TEST_P(StepProgramOf, UpdatesEveryWeight) {
  const auto& [layout, style, dtype] = GetParam();
  const ModelSpec model = tiny(style);
  int64_t updated = 0;
  int64_t owned = 0;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const Program program = train(rank);
    for (const Task& task : program.tasks) {
      if (program.spec(task).op == "adamw") {
        updated += program.spec(task).operands[0].shape.num_elems();
      }
    }
    for (const Buffer& buffer : program.buffers) {
      if (buffer.name.starts_with("exp_avg.")) {
        owned += buffer.num_elems();
      }
    }
  }
  EXPECT_EQ(updated, owned);
  EXPECT_GE(owned, num_parameters(model));
}

INSTANTIATE_TEST_SUITE_P(Layouts, StepProgramOf,
                         testing::Combine(testing::ValuesIn(thinned(layouts(), 4)),
                                          testing::Values(kLlamaStyle, kGpt2Style),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& layout) {
                           return std::get<0>(layout.param).name +
                                  (std::get<1>(layout.param) == kLlamaStyle ? "_llama_"
                                                                            : "_gpt2_") +
                                  std::string(dtype_name(std::get<2>(layout.param)));
                         });

}  // namespace
}  // namespace braid
