#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_spec.h"
#include "model/parameters.h"

namespace braid {

/// Appends the parameters of one unit at a time; names are "<unit>.<name>".
class ParameterList {
 public:
  explicit ParameterList(const ModelSpec& spec);

  /// Sets the unit and the layer (-1: none) of the parameters that follow.
  void enter(std::string unit, int32_t layer);

  /// [rows, width].
  void embedding(std::string_view name, int64_t rows, bool vocabulary_rows);
  /// Weight 1, with ModelSpec::norm_offset 0, and bias 0 if the model has LayerNorms.
  void norm(std::string_view name);

  struct Linear {
    int64_t out = 0;
    int64_t in = 0;
    bool bias = false;
    TensorSplit split = TensorSplit::kRows;
    std::vector<HeadRows> heads = {};  ///< of TensorSplit::kHeads
    double std_scale = 1.0;
    bool gate_up_rows = false;
    std::vector<std::string_view> matrices = {};  ///< Parameter::matrices
  };

  /// Weight [out, in], normal, and bias 0; and the adapters of its matrices.
  void linear(std::string_view name, const Linear& facts);

  struct Experts {
    int64_t experts = 0;
    int64_t out = 0;
    int64_t in = 0;
    TensorSplit split = TensorSplit::kExperts;
    double std_scale = 1.0;
    bool gate_up_rows = false;
  };

  /// Weight [experts out, in], normal: one matrix per expert, one behind the other.
  void experts(std::string_view name, const Experts& facts);

  /// Weight [size] 1, of heads: each tensor rank has all of it, and a part of its gradient.
  void head_norm(std::string_view name, int64_t size);

  /// Weight [size] 1 of a norm of latents, which all tensor ranks hold.
  void latent_norm(std::string_view name, int64_t size);

  /// Bias [size] 0 that is added to the logits of a router.
  void logit_bias(std::string_view name, int64_t size);

  /// Bias [size] 0 of the experts of a router (Parameter::balances).
  void router_bias(std::string_view name, int64_t size);

  /// Any other one; sets its name, layer and unit.
  void add(std::string_view name, Parameter parameter);

  /// 1/sqrt(blocks of the model), as in GPT-2. Matrices whose results are added to the residual
  /// stream are initialised smaller by this factor.
  double residual_scale() const { return residual_scale_; }

  std::vector<Parameter> take() { return std::move(list_); }

 private:
  std::string scoped(std::string_view name) const;
  /// A weight that changes nothing.
  ParameterInit norm_init() const;
  void add(Parameter parameter);
  void adapters(const Parameter& weight);
  void adapter(Parameter parameter);
  void vector(std::string_view name, int64_t size, ParameterInit init, TensorSplit split,
              std::vector<HeadRows> heads = {});

  const ModelSpec& spec_;
  double residual_scale_;
  std::string unit_;
  int32_t layer_ = -1;
  std::vector<Parameter> list_;
};

}  // namespace braid
