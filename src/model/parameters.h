#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/shape.h"
#include "model/model_spec.h"

namespace braid {

enum class ParameterInit : uint8_t {
  kNormal,
  kOnes,
  kZeros,
  // With u uniform in (Parameter::init_low, Parameter::init_high):
  kUniform,              ///< u
  kLogOfUniform,         ///< log(u)
  kSoftplusIsLogUniform  ///< its softplus is exp(u') with u' uniform between the limits' logarithms
};

/// How the ranks of a tensor-parallel group share a parameter (model/parameter_shard.h).
enum class TensorSplit : uint8_t {
  kWhole,  ///< each holds all of it and computes all of its gradient: positions, biases that
           ///< are added to a sum over ranks
  kNorm,   ///< the same, but its gradient is over the rank's rows: part of it if rows are split
  kPartialSum,  ///< each holds all of it and computes a part of its gradient: norms of heads
  kExperts,     ///< of the experts' domain: an equal run of experts for each expert rank, of which
                ///< expert tensor ranks have equal runs of the rows of each expert
  kExpertColumns,  ///< the same, but runs of columns
  kRows,           ///< an equal run of rows each
  kColumns,        ///< an equal run of columns each
  kHeads,          ///< rows of heads: Parameter::heads
  kVocabulary,     ///< an equal run of the rows of the padded vocabulary
};

/// Which ranks hold copies of a parameter and reduce its gradients (parallel/parameter_domain.h):
/// those with other tokens, or, for experts, those that hold the same experts.
enum class DomainKind : uint8_t { kDense, kExpert };

/// Consecutive rows of a parameter that belong to heads of a block, `rows` to each. Each tensor
/// rank holds an equal run of heads. If there are fewer heads than ranks, neighbouring ranks hold
/// the same head, and each sees only a part of the head's work.
struct HeadRows {
  int64_t heads = 0;
  int64_t rows = 0;

  friend bool operator==(const HeadRows&, const HeadRows&) = default;
};

/// One weight of a model. Matrices are [out, in].
struct Parameter {
  std::string name;  ///< "layers.3.attention.qkv.weight"
  Shape shape;
  ParameterInit init = ParameterInit::kNormal;
  double init_std = 0.02;
  double init_low = 0.0;
  double init_high = 0.0;
  bool weight_decay = true;      ///< matrices and embeddings decay; norms and biases do not
  double rate = 1.0;             ///< factor of the learning rate
  bool vocabulary_rows = false;  ///< dimension 0 is the padded vocabulary
  /// Bias of a router: balance_update changes it (ops/optimizer.h), and its main grad is no
  /// gradient.
  bool balances = false;
  /// Rows of a gate and an up projection alternate: gate_0, up_0, gate_1, up_1, ..., which is the
  /// column order of swiglu (ops/activation.h). A run of whole pairs is a valid shard.
  bool gate_up_rows = false;
  /// Names of the matrices that the rows of a weight belong to, each of which may have an adapter
  /// (LoraSpec): "q", "k", "v" as in `heads`; "gate", "up" in turns; "proj". Empty: none may.
  std::vector<std::string_view> matrices;
  bool frozen = false;  ///< training does not change it
  TensorSplit split = TensorSplit::kWhole;
  std::vector<HeadRows> heads;  ///< of TensorSplit::kHeads: all rows, one run behind the other
  DomainKind domain = DomainKind::kDense;
  int32_t layer = -1;  ///< -1: embedding and head; for multi-token prediction: mtp_layer_number
  std::string unit;  ///< what is gathered, reduced and updated together, with others of its domain:
                     ///< "embedding", "layers.3", "head", "mtp.0", "layers.3.lora"
};

/// All parameters in forward order.
std::vector<Parameter> model_parameters(const ModelSpec& spec);

/// Elements [begin, begin + out.size()) of the initial value, row-major. They depend on seed, name
/// and index only, so any layout gets the same model. Rows past the vocabulary are 0.
void initial_values(const Parameter& parameter, int64_t vocabulary, uint64_t seed, int64_t begin,
                    std::span<float> out);

}  // namespace braid
