#pragma once

#include <optional>

#include "ops/documents.h"
#include "ops/graph.h"
#include "ops/op.h"
#include "ops/positions.h"
#include "ops/rope_scaling.h"

namespace braid {

/// mla_qkv: q [N,H*(P+R)], kv [N,H*(P+V)], k_rope [N,R] -> qkv [N,3*H*D], rows for attention with H
/// query and H key/value heads of D >= max(P+R, V) elements. Parts of multi-head latent attention:
///   query head h  P plain elements of q, then R rotated ones, then zeros
///   key head h    P elements of kv, then k_rope rotated, the same for all heads, then zeros
///   value head h  the last V elements of kv's head h, then zeros
/// Zeros change neither scores nor the first V columns of attention's result. Row n is at position
/// p = positions.of(n % sequence). Rotated pairs are (2i, 2i+1), with angles and amplitude as for
/// rope (rope.h), R in place of D.
///
/// mla_qkv_backward: d_qkv [N,3*H*D] -> d_q, d_kv, d_k_rope of these shapes; d_k_rope is the sum
/// over heads, in their order, in f32 (f64 for f64 data). With `documents`, starts (documents.h)
/// are the last operand that both read, and are subtracted from positions. Source: DeepSeek-AI,
/// DeepSeek-V2, 2024, section 2.1; layout of pairs as in its published code.
struct MlaAttributes {
  int64_t heads = 0;      ///< H
  int64_t plain = 0;      ///< P
  int64_t rotated = 0;    ///< R
  int64_t value = 0;      ///< V
  int64_t head_size = 0;  ///< D
  int64_t sequence = 0;
  double theta = 10000.0;
  TokenPositions positions = {};
  RopeScaling scaling = {};
  DocumentPositions documents = {};
  void fields(auto&& visit) {
    visit("heads", heads);
    visit("plain", plain);
    visit("rotated", rotated);
    visit("value", value);
    visit("head_size", head_size);
    visit("sequence", sequence);
    visit("theta", theta);
    visit.optional(positions);
    visit.optional(scaling);
    visit.optional(documents);
  }
};

extern const OpDefinition kMlaQkvOp;
extern const OpDefinition kMlaQkvBackwardOp;

struct MlaOperands {
  ValueId q;
  ValueId kv;
  ValueId k_rope;
  std::optional<ValueId> starts = {};
};
/// Sets `attributes.documents` from the operands.
ValueId mla_qkv(GraphBuilder& builder, const MlaOperands& operands, MlaAttributes attributes,
                std::string_view site);

}  // namespace braid
