#pragma once

#include <cstdint>
#include <string>

#include "model/blocks/block.h"
#include "model/model_spec.h"
#include "model/parameter_list.h"

namespace braid {

// Multi-token prediction (MTP): ModelSpec::mtp_depth more layers behind the model, of which layer k
// (from 1) predicts for each token i the one k + 1 places later:
//     h_k = layer(P_e norm(embedding(t_{i+k})) + P_h norm(h_{k-1}))
// h_0 is the result of the model's last norm, and h_k that of the layer's own last norm. All share
// the model's embedding and output projection. [P_e P_h] is the eh_proj of DeepSeek-V3's files.
// The loss of depth k is the mean of the cross entropies with t_{i+k+1} over the labels that exist:
// rows whose label lies behind the end of the sequence are ignored, and a token behind it is token
// 0. The step's gradient is that of loss + mtp_loss_weight / mtp_depth * (sum of these losses).
// Sources: DeepSeek-V3 technical report, 2024, section 2.2 (which divides each sum by the sequence
// length instead); Megatron-LM, multi_token_prediction.py.

/// The layer of every depth: of the kind of the model's last one.
const LayerSpec& mtp_layer(const ModelSpec& spec);

/// "mtp.0": the unit and the scope of depth `index` + 1.
std::string mtp_unit(int64_t index);

/// Parameter::layer of depth `index` + 1: it continues the numbers of the model's layers.
int32_t mtp_layer_number(const ModelSpec& spec, int64_t index);

/// The names of a depth's values that the host writes or reads: "mtp.0.tokens" i32 [N],
/// "mtp.0.labels" i32 [N], "mtp.0.loss_scale" f32 [1], "mtp.0.loss" f32 [1] and with
/// ForwardOptions::z_loss "mtp.0.z_loss" f32 [1].
std::string mtp_value(int64_t index, std::string_view name);

/// mtp_loss_weight / mtp_depth: the weight of the loss of one depth.
double mtp_weight(const ModelSpec& spec);

/// Throws ConfigError naming the key if the model cannot have these depths.
void check_mtp(const ModelSpec& spec);

/// Adds the parameters of all depths. Tensor ranks hold both projections whole: each works on the
/// rows that it has.
void add_mtp_parameters(ParameterList& list, const ModelSpec& spec);

/// Cost of all depths, with their use of the output projection.
BlockCost mtp_cost(const ModelSpec& spec, int64_t sequence);

/// The model without MTP, as it generates and evaluates.
ModelSpec without_mtp(ModelSpec spec);

}  // namespace braid
