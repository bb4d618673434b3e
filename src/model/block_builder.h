#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/forward.h"
#include "model/parameters.h"
#include "ops/adapter.h"
#include "ops/norm.h"

namespace braid {

/// Used by blocks to build their forward: the graph of one stage as one tensor and context rank
/// runs it, and matrices whose weights tensor ranks share. Sites and names are relative to the
/// scope of the graph ("layers.3").
class BlockBuilder {
 public:
  /// All arguments must outlive the builder.
  BlockBuilder(StageGraph& graph, const ModelSpec& spec, const ForwardOptions& options,
               const StageSlice& stage);

  const ModelSpec& spec() const { return spec_; }
  const TensorShard& tensor() const { return options_.tensor; }
  const ContextShard& context() const { return options_.context; }
  const ExpertShard& experts() const { return options_.experts; }
  const RouterLosses& router_losses() const { return options_.router_losses; }
  RoutingUse routing() const { return options_.routing; }
  /// A tally "<scope>.<name>" i64 [elems] of the step; nothing if rows of experts are not counted.
  std::optional<ValueId> expert_tally(std::string_view name, int64_t elems);
  /// The same; nothing if rows are not counted that come to a rank.
  std::optional<ValueId> room_tally(std::string_view name, int64_t elems);
  DType dtype() const { return options_.dtype; }
  GraphBuilder& graph() { return builder_; }

  NormOffset norm_offset() const { return {static_cast<double>(spec_.norm_offset)}; }

  int64_t sequence() const { return options_.sequence; }  ///< of all context ranks
  /// Tokens of a sequence on this rank.
  int64_t local_sequence() const { return options_.sequence / options_.context.size; }
  int64_t rows() const { return options_.microbatch * local_sequence(); }
  /// Rows whose positions ops count together, and their positions. With a cache each row alone is
  /// at the last one, from which its start is subtracted.
  int64_t positioned_rows() const { return options_.cache ? 1 : local_sequence(); }
  TokenPositions positions() const;
  /// The scaling of rotary frequencies for sequences of as many tokens as there are, or as the
  /// cache has room for.
  RopeScaling rope_scaling() const;
  const AttentionDocuments& documents() const { return options_.documents; }
  /// Nothing: the rows are whole sequences.
  std::optional<CacheOperands> cache();
  /// The starts of documents of this rank's rows (with a cache: what gives their positions), and of
  /// the rows that attention works on after context ranks have exchanged heads; nothing if
  /// sequences are one document.
  std::optional<ValueId> document_starts();
  std::optional<ValueId> attention_starts();
  /// An input of integers of that name.
  ValueId row_input(std::string_view name, int64_t rows);

  /// A matrix of a product (Parameter::matrices), and its columns of this rank's result.
  struct Matrix {
    std::string_view name;
    AdaptedColumns columns = {};
  };

  /// Multiplies [N, in], or this rank's rows of it, and returns this rank's columns of [N, out].
  /// Rows of the weight are split. Adds the bias "<site>.bias" and the adapters of `matrices` if
  /// the model has them.
  ValueId column_linear(ValueId x, std::string_view site,
                        std::initializer_list<Matrix> matrices = {});
  /// Multiplies this rank's columns of [N, in] and returns [N, out], or this rank's rows of it.
  /// Columns of the weight are split. All ranks hold the bias; one adds it.
  ValueId row_linear(ValueId x, std::string_view site, std::initializer_list<Matrix> matrices = {});

  /// Input of a matrix whose rows are split: all ranks need all of x, and each adds to its
  /// gradient.
  ValueId to_all(ValueId x, std::string_view site);
  /// Output of a matrix whose columns are split: y is the sum of one addend per rank.
  ValueId sum_of_all(ValueId y, std::string_view site);

  /// The input "loss_scale" f32 [1]: 1 / labels of the step.
  ValueId loss_scale();

  /// A parameter of the stage by its full name, and by its name in the scope.
  ValueId param(const std::string& name);
  ValueId scoped_param(std::string_view name);
  /// "<site>.bias", if the model has it.
  std::optional<ValueId> bias(std::string_view site);

 private:
  ValueId tally(std::string_view name, int64_t elems);
  struct Bias {
    std::optional<ValueId> value = {};
    bool split_columns = false;  ///< of the weight: one rank adds the bias
  };
  /// The product of x, with the adapters that the matrices have.
  ValueId adapted_linear(ValueId x, std::string_view site, const Bias& bias,
                         std::initializer_list<Matrix> matrices);
  std::vector<Adapter> adapters_of(ValueId x, std::string_view site,
                                   std::span<const Matrix> matrices);
  ValueId squares_of(ValueId weight, std::string_view site, std::span<const Matrix> matrices,
                     bool split_columns);

  const ModelSpec& spec_;
  const ForwardOptions& options_;
  GraphBuilder builder_;
  std::unordered_map<std::string, Parameter> parameters_;  // with the shapes of this rank's shards
};

/// The group of tensor ranks.
inline constexpr std::string_view kTensorGroup = "tensor";

}  // namespace braid
