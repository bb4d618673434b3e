#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "hugging_face/tensor_folder.h"
#include "model/model_spec.h"
#include "parallel/parameter_layout.h"
#include "state/state_source.h"

namespace braid {

/// lora.base of fresh weights.
inline constexpr std::string_view kInitialBase = "initial";

/// The weights that adapters adapt: of a Hugging Face folder, a run folder, a checkpoint, or
/// fresh ones ("initial").
class BaseWeights {
 public:
  /// `model` is the one that `path` must have; its adapters do not count. Throws ConfigError naming
  /// lora.base if `path` is empty, has another model or only adapters, and DataError as the
  /// sources.
  BaseWeights(const std::string& path, const ModelSpec& model, uint64_t seed);

  /// Of the model as one rank would hold it without adapters.
  const ParameterLayout& layout() const { return layout_; }
  const StateSource& source() const { return *source_; }

 private:
  void open_checkpoint(const std::string& path, const std::string& checkpoint);
  void open_hugging_face(const std::string& path);

  ModelSpec model_;
  ParameterLayout layout_;
  std::unique_ptr<LoadedCheckpoint> checkpoint_;
  std::unique_ptr<HfTensorFolder> files_;
  std::unique_ptr<StateSource> source_;
};

/// The state of a model with adapters: frozen units from the base, the others from `adapters`.
class AdaptedState final : public StateSource {
 public:
  /// `layout` is that of the whole model with adapters. All arguments must outlive this object.
  AdaptedState(const BaseWeights& base, const StateSource& adapters, const ParameterLayout& layout);

  bool is_zero(StatePart part) const override { return adapters_.is_zero(part); }
  void read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
            WorkerPool& workers) const override;

 private:
  const BaseWeights& base_;
  const StateSource& adapters_;
  const ParameterLayout& layout_;
  std::vector<size_t> base_units_;  // by unit; of those that are frozen
};

/// The model without adapters that computes the same: W + (alpha / rank) B A, with rows of the
/// trained lengths if they have such (ops/magnitude.h), in f64 and rounded once.
class MergedWeights final : public StateSource {
 public:
  /// `layout` and `state` are those of the model with adapters; `merged` is the layout without.
  /// All arguments must outlive this object.
  MergedWeights(const StateSource& state, const ParameterLayout& layout, const ModelSpec& model,
                const ParameterLayout& merged);

  bool is_zero(StatePart part) const override { return part != StatePart::kWeights; }
  void read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
            WorkerPool& workers) const override;

 private:
  struct Rows;
  /// `values` are elements from `first` on of a weight.
  void read_adapted(const Parameter& weight, std::span<const AdaptedMatrix> matrices, int64_t first,
                    std::span<float> values, WorkerPool& workers) const;
  void adapt(const AdaptedMatrix& matrix, Rows& rows, WorkerPool& workers) const;

  const StateSource& state_;
  const ParameterLayout& layout_;
  const LoraSpec& lora_;
  const ParameterLayout& merged_;
};

/// Elements [first, first + count) of a parameter's weights.
std::vector<float> read_weights(const StateSource& state, const ParameterLayout& layout,
                                const std::string& parameter, int64_t first, int64_t count,
                                WorkerPool& workers);

/// The trained lengths of the rows of a matrix, as peft stores them: |W_i| + change. `state` has
/// the base, too.
std::vector<float> row_magnitudes(const StateSource& state, const ParameterLayout& layout,
                                  const Parameter& weight, const AdaptedMatrix& matrix,
                                  WorkerPool& workers);

}  // namespace braid
