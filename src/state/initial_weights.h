#pragma once

#include <cstdint>
#include <span>

#include "model/model_spec.h"
#include "parallel/parameter_layout.h"
#include "state/state_source.h"

namespace braid {

/// A model before its first step: `initial_values` of each parameter, optimizer state zero. The
/// same for every layout and any number of workers.
class InitialWeights final : public StateSource {
 public:
  /// `layout` must outlive this object.
  InitialWeights(const ParameterLayout& layout, const ModelSpec& model, uint64_t seed)
      : layout_(layout), vocabulary_(model.vocabulary), seed_(seed) {}

  bool is_zero(StatePart part) const override { return part != StatePart::kWeights; }
  void read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
            WorkerPool& workers) const override;

 private:
  const ParameterLayout& layout_;
  int64_t vocabulary_ = 0;
  uint64_t seed_ = 0;
};

}  // namespace braid
