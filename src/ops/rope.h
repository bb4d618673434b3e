#pragma once

#include <optional>

#include "ops/documents.h"
#include "ops/graph.h"
#include "ops/op.h"
#include "ops/positions.h"
#include "ops/rope_scaling.h"

namespace braid {

/// The first elements of a head that are rotated. Absent: all.
struct RotatedElements {
  int64_t rotated = 0;  ///< 0: all
  friend bool operator==(const RotatedElements&, const RotatedElements&) = default;
  void fields(auto&& visit) { visit("rotated", rotated); }
};

/// rope: qkv [N,(H+2K)*D] -> out of the same shape. A row holds H query heads, then K key heads,
/// then K value heads of D elements. Query and key heads are rotated, value heads copied. Row n is
/// at position p = positions.of(n % sequence). Of a head, the first R elements are rotated (`part`;
/// R = D without it) and the others copied. Pairs are (i, i + R/2), as in Hugging Face's Llama:
/// angle p * f_i, where f_i = theta^(-2i/R) unless `scaling` changes it, which may also multiply
/// cosines and sines by an amplitude (rope_scaling.h). `inverse` rotates by the negative angle,
/// with the same amplitude, which is the backward. With `documents`, starts (documents.h) follow
/// qkv and are subtracted from positions. Source: Su et al., RoFormer, 2021.
struct RopeAttributes {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t sequence = 0;
  double theta = 10000.0;
  bool inverse = false;
  TokenPositions positions = {};
  RopeScaling scaling = {};
  DocumentPositions documents = {};
  RotatedElements part = {};
  int64_t rotated() const { return part.rotated > 0 ? part.rotated : head_size; }
  void fields(auto&& visit) {
    visit("heads", heads);
    visit("kv_heads", kv_heads);
    visit("head_size", head_size);
    visit("sequence", sequence);
    visit("theta", theta);
    visit("inverse", inverse);
    visit.optional(positions);
    visit.optional(scaling);
    visit.optional(documents);
    visit.optional(part);
  }
};

extern const OpDefinition kRopeOp;

/// Sets `attributes.documents` from `starts`.
ValueId rope(GraphBuilder& builder, ValueId qkv, RopeAttributes attributes, std::string_view site,
             std::optional<ValueId> starts = {});

}  // namespace braid
