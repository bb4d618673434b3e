#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "base/temp_folder.h"
#include "base/worker_pool.h"
#include "generate/causal_model.h"
#include "hugging_face/model_config.h"
#include "hugging_face/tensor_folder.h"
#include "model/parameters.h"
#include "state/hugging_face_source.h"
#include "support/hugging_face_model.h"

namespace braid {

/// f32 here, f64 there: some hundred roundings of 1e-7 in logits of about 1.
inline constexpr double kTolerance = 1e-5;
/// Most tokens of a forward.
inline constexpr int64_t kWindow = 6;

/// A Hugging Face model of loops over doubles, and ours with its weights.
class TinyModel : public ::testing::Test {
 protected:
  std::unique_ptr<CausalModel> load(bool computes_loss = false) const {
    theirs_.write(folder_ / "m", DType::kF32);
    const HfTensorFolder files(folder_ / "m");
    const ModelSpec model = parse_hf_config(theirs_.config, "config.json").model;
    const ParameterLayout layout = make_parameter_layout(model_parameters(model));
    return std::make_unique<CausalModel>(
        model, HuggingFaceSource(files, layout, model), kWindow,
        CausalModelOptions{.threads = 1, .computes_loss = computes_loss});
  }

  /// ln of the probability of the last token after the others.
  double logprob_of(std::span<const int32_t> tokens) const {
    const std::vector<double> logits = theirs_.logits(tokens.first(tokens.size() - 1));
    double sum = 0;
    for (const double logit : logits) {
      sum += std::exp(logit);
    }
    return logits[static_cast<size_t>(tokens.back())] - std::log(sum);
  }

  TinyHfModel theirs_ = TinyHfModel::make_llama(false);
  TempFolder folder_;
  WorkerPool workers_{2};
  // Three windows: two of 6 tokens to predict, and one of 3.
  const std::vector<int32_t> stream_ = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
};

}  // namespace braid
