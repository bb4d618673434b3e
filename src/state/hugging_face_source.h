#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "hugging_face/tensor_folder.h"
#include "hugging_face/tensor_names.h"
#include "model/model_spec.h"
#include "parallel/parameter_layout.h"
#include "state/state_source.h"

namespace braid {

/// The weights of a Hugging Face folder as a state before its first step: bf16, f16 or f32 in the
/// files, converted exactly to fp32. Names of GPT-2 may lack "transformer.", as in its first files.
class HuggingFaceSource final : public StateSource {
 public:
  /// All arguments must outlive this object. Throws DataError naming file and tensor if one is
  /// missing, has another shape or an unsupported dtype, or does not belong to the model.
  HuggingFaceSource(const HfTensorFolder& files, const ParameterLayout& layout,
                    const ModelSpec& model);

  bool is_zero(StatePart part) const override { return part != StatePart::kWeights; }
  void read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
            WorkerPool& workers) const override;

 private:
  struct Part {
    HfTensor tensor;
    HfTensorFolder::Place place;
  };

  Part checked(const HfTensorFolder& files, HfTensor tensor) const;
  void check_tied_head(const HfTensorFolder& files) const;
  void check_nothing_else(const HfTensorFolder& files, const ModelSpec& model) const;
  void fill(const Parameter& parameter, int64_t first, std::span<float> values) const;

  const ParameterLayout& layout_;
  std::unordered_map<std::string, std::vector<Part>> parts_;  // by parameter
};

}  // namespace braid
