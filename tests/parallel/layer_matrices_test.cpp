#include "parallel/layer_matrices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace braid {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kWidth = 24;

ModelSpec llama() {
  return {.style = kLlamaStyle,
          .layers = 1,
          .width = kWidth,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 8,
          .ffn = 40,
          .vocabulary = 100};
}

struct Facts {
  int64_t begin = 0;  // in the parameter
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t pitch = 0;
  int64_t full_rows = 0;
  int64_t full_columns = 0;
  std::string group;

  friend bool operator==(const Facts&, const Facts&) = default;
};

void PrintTo(const Facts& facts, std::ostream* out) {
  *out << facts.begin << ": " << facts.rows << " x " << facts.columns << " by " << facts.pitch
       << " of " << facts.full_rows << " x " << facts.full_columns << " " << facts.group;
}

std::map<std::string, std::vector<Facts>> matrices_of(const Mesh& mesh) {
  ParallelOptions options;
  options.muon = true;
  const ParameterLayout layout = make_rank_layout(llama(), mesh, mesh.num_ranks() - 1, options);
  std::map<std::string, std::vector<Facts>> matrices;
  for (const LayerMatrix& matrix : layout.matrices) {
    EXPECT_TRUE(layout.units[matrix.unit].is_muon);
    const ParameterSlot& slot = layout.slots[matrix.parameter];
    matrices[layout.parameters[slot.parameter].name].push_back(
        {matrix.begin - slot.begin, matrix.rows, matrix.columns, matrix.row_pitch, matrix.full_rows,
         matrix.full_columns, std::string(matrix.group)});
  }
  return matrices;
}

TEST(LayerMatrices, OfQueryKeyAndValueAndOfGateAndUpAreTheirOwn) {
  const auto matrices = matrices_of(Mesh(MeshSizes{}));
  EXPECT_EQ(matrices.size(), 4u) << "no embedding, no head, no norm";
  EXPECT_THAT(matrices.at("layers.0.attention.qkv.weight"),
              ElementsAre(Facts{0, 32, 24, 24, 32, 24, ""}, Facts{32 * 24, 16, 24, 24, 16, 24, ""},
                          Facts{48 * 24, 16, 24, 24, 16, 24, ""}));
  EXPECT_THAT(matrices.at("layers.0.attention.proj.weight"),
              ElementsAre(Facts{0, 24, 32, 32, 24, 32, ""}));
  EXPECT_THAT(matrices.at("layers.0.mlp.fc1.weight"),
              ElementsAre(Facts{0, 40, 24, 48, 40, 24, ""}, Facts{24, 40, 24, 48, 40, 24, ""}));
  EXPECT_THAT(matrices.at("layers.0.mlp.fc2.weight"),
              ElementsAre(Facts{0, 24, 40, 40, 24, 40, ""}));
}

TEST(LayerMatrices, OfTensorRanksAreRunsOfRowsOrColumns) {
  const auto matrices = matrices_of(Mesh({.tensor = 2, .data = 2}));
  EXPECT_THAT(matrices.at("layers.0.attention.qkv.weight"),
              ElementsAre(Facts{0, 16, 24, 24, 32, 24, "tensor"},
                          Facts{16 * 24, 8, 24, 24, 16, 24, "tensor"},
                          Facts{24 * 24, 8, 24, 24, 16, 24, "tensor"}));
  EXPECT_THAT(
      matrices.at("layers.0.mlp.fc1.weight"),
      ElementsAre(Facts{0, 20, 24, 48, 40, 24, "tensor"}, Facts{24, 20, 24, 48, 40, 24, "tensor"}));
  EXPECT_THAT(matrices.at("layers.0.mlp.fc2.weight"),
              ElementsAre(Facts{0, 24, 20, 20, 24, 40, "tensor"}));
}

}  // namespace
}  // namespace braid
