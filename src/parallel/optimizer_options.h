#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace braid {

/// What updates the weights. docs/optimizers.md compares them.
enum class OptimizerKind : uint8_t {
  kAdamw,
  kLion,
  kSgd,
  kMuon,  ///< Muon for matrices of layers, AdamW for all else (parallel/muon_tasks.h)
};

/// The factor of Muon's updates of a matrix [rows, columns].
enum class MuonScale : uint8_t {
  kMatchRmsAdamw,  ///< 0.2 sqrt(max(rows, columns)): elements are as large as AdamW's. Source: Liu
                   ///< et al., Muon is scalable for LLM training, 2025, section 2.2
  kOriginal,       ///< sqrt(max(1, rows / columns)). Source: Jordan et al., Muon, 2024
};

struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  int64_t num_steps = 5;  ///< of Newton-Schulz
  MuonScale scale = MuonScale::kMatchRmsAdamw;
  DType dtype = DType::kBF16;  ///< of Newton-Schulz: kF32 or kBF16
};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamw;
  double beta1 = 0.9;   ///< AdamW, Lion
  double beta2 = 0.95;  ///< AdamW, Lion
  double epsilon = 1e-8;
  double momentum = 0.9;  ///< SGD; 0: there is no moment
  bool nesterov = false;  ///< SGD
  MuonOptions muon = {};
  double weight_decay = 0.1;
  double max_grad_norm = 1.0;         ///< 0: no clipping
  DType moments_dtype = DType::kF32;  ///< kF32 or kBF16
  /// Of gradients, from the products that add them up to the update: kF32, or with bf16 weights
  /// kBF16. Not of f64 weights.
  DType main_grads_dtype = DType::kF32;
  double bias_update_rate = 0.0;  ///< of biases of routers: balance_update
  double ema = 0.0;               ///< decay of the averages of weights; 0: there are none
};

/// How one parameter is updated.
enum class UpdateRule : uint8_t { kAdamw, kLion, kSgd, kMuon };

/// `is_muon`: whether it is a matrix that Muon updates if that is the optimizer.
UpdateRule update_rule(OptimizerKind kind, bool is_muon);

/// The moments that it keeps of each element: exp_avg, then exp_avg_sq.
int num_moments(UpdateRule rule, const OptimizerOptions& options);

}  // namespace braid
