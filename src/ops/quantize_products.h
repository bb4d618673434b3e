#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ops/graph.h"
#include "ops/quantize.h"
#include "ops/scaled_linear.h"

namespace braid {

/// A recipe for FP8 products.
struct Fp8Recipe {
  int64_t block = 128;                 ///< elements that share a scale, see ScaleLayout
  bool square_weights = true;          ///< blocks of weights are squares; needed for 128
  DType forward = DType::kF8E4M3;      ///< of inputs and weights
  DType gradient = DType::kF8E4M3;     ///< of gradients of outputs
  std::vector<std::string> keep = {};  ///< sites that stay as they are; `*` and `?` as in a shell
  bool head = false;                   ///< also the product that makes the logits
  bool experts = false;                ///< also those of experts; needs blocks of 128
  EmulatedSums sums = {};              ///< on the CPU
  bool dispatches_copies = false;      ///< rows go to experts as FP8; see dispatch_copies.h
  bool watch = false;                  ///< count what the copies lose; see quantize_products
  bool gathers_copies = true;  ///< ranks gather FP8 copies, not the values; see quantize_products
  bool fuses_copies = false;   ///< ops that make values make their copies; see fuse_copies.h
  bool delays_columns = true;  ///< of values that the backward keeps; see delay_columns.h

  /// One scale for a whole tensor, with the wider range of E5M2 for gradients.
  static Fp8Recipe tensor() { return {.block = 0, .gradient = DType::kF8E5M2}; }
  /// 1 x 128 elements; 128 x 128 for weights. Source: DeepSeek-V3 (arXiv 2412.19437, 3.3).
  static Fp8Recipe blocks() { return {.block = 128}; }
  /// 1 x 32 elements with E8M0 scales. Source: OCP Microscaling Formats 1.0.
  static Fp8Recipe mx() { return {.block = 32, .square_weights = false}; }

  /// How scales of a weight are found.
  ScaleLayout weight_scales() const {
    return {.block = block, .square = square_weights && block != 0};
  }

  friend bool operator==(const Fp8Recipe&, const Fp8Recipe&) = default;
};

/// The factor of a product that other ranks send (expert_exchange.h).
enum class SentFactor : uint8_t { kNone, kX, kDy };

/// A product x w^T of the graph, and whether it is done in FP8.
struct ProductSite {
  std::string site;
  int64_t rows = 0;      ///< of x
  int64_t features = 0;  ///< of w
  int64_t depth = 0;
  int64_t experts = 0;  ///< that share the rows, each with a w; 0: it is no product of experts
  SentFactor sent = SentFactor::kNone;
  std::string reason;  ///< why it stays as it is; empty: it is FP8
};

/// Makes products of a differentiated graph FP8: the three products of each `linear` in a layer
/// whose sizes fit and that the recipe does not keep; and those of the head if it says so.
///
///   before: linear(x, w -> y)             ...  linear_dgrad(dy, w -> dx)  linear_wgrad(x, dy ->
///   dw) after:  quantize(x -> x8, x8t)
///           scaled_linear(x8, w8 -> y)    ...  quantize(dy -> dy8, dy8t, db)
///                                              scaled_linear_dgrad(dy8, w8t -> dx)
///                                              scaled_linear_wgrad(x8t, dy8t -> dw)
///   and in StageGraph::weights: quantize_weight(w -> w8, w8t)
///
/// If x or dy is an all_gather of the parts of tensor ranks, and nothing but products reads it,
/// each rank quantises its part (`gathers_copies`). Rows are gathered for the product, columns for
/// the weight gradient, with half the bytes and the same bits:
///
///   before: all_gather(part -> x)  quantize(x -> x8, x8t)
///   after:  quantize(part -> p8, p8t)  all_gather(p8 -> x8)  all_gather(its scales)  join_blocks
///           ... all_gather(p8t)  join_blocks(-> x8t)  all_gather(its scales)  scaled_linear_wgrad
///
/// Scales of blocks of a part are those of the whole if parts are whole blocks; one scale for all
/// is not known to a rank, so there values are gathered. Values are also gathered where the copies
/// of dy come with the gradient of a bias. Source: Transformer Engine, PR 1982, which gathers
/// columns of MXFP8 gradients under dgrad.
///
/// With `experts`, products of experts are FP8 in the same way, if features and depth are whole
/// blocks. Their rows may be any number, because no block of columns has rows of two experts
/// (quantize_grouped.h):
///
///   before: grouped_linear(x, w, offsets -> y)
///           ...  grouped_linear_dgrad(dy, w, offsets -> dx)
///           grouped_linear_wgrad(x, dy, offsets -> dw)
///   after:  quantize_grouped(x, offsets -> x8, x8t)  scaled_grouped_linear(x8, w8, offsets -> y)
///           ...  quantize_grouped(dy, offsets -> dy8, dy8t)
///           scaled_grouped_linear_dgrad(dy8, w8t, offsets -> dx)
///           scaled_grouped_linear_wgrad(x8t, dy8t, offsets -> dw)
///
/// With `watch`, each of these nodes adds to a tally (Fp8Tally), a value of kind kTally that is
/// named by site and factor, for example "layers.0.attention.qkv.dy".
///
/// x and dy are quantised once each, in both directions, in front of their first use. So x itself
/// is not kept for the backward, unless something else reads it there; with `delays_columns`, the
/// backward then makes the columns of x (delay_columns.h). With `fuses_copies`, copies of the
/// result of an activation function or a norm are made in its node (fuse_copies.h). With
/// `dispatches_copies`, rows go to experts of other ranks as FP8 (dispatch_copies.h). A graph
/// without backward gets copies by rows only. Returns all products of layers, in forward order.
std::vector<ProductSite> quantize_products(StageGraph& graph, const Fp8Recipe& recipe);

}  // namespace braid
