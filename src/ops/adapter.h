#pragma once

#include <span>
#include <vector>

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// Where the columns of one matrix lie among those of a product of several: `begin`, begin + step,
/// ... Query, key and value lie side by side (step 1), gate and up alternate (step 2).
struct AdaptedColumns {
  int64_t begin = 0;
  int64_t step = 1;
};

/// add_adapters: base [N,M], one to three z [N,S] -> y [N,M]; y = base, plus scale * z in the
/// columns of each z, rounded once. adapter_grad: dy [N,M] -> dz [N,S]; dz = scale * dy in the
/// columns of this z. The gradient of base is dy itself. Source: Hu et al., LoRA, 2021: z = (x A^T)
/// B^T and scale = alpha / rank.
struct AddAdaptersAttributes {
  double scale = 1.0;
  int64_t step = 1;
  int64_t begin = 0;         ///< of the first z
  int64_t second_begin = 0;  ///< 0 if there is none
  int64_t third_begin = 0;   ///< 0 if there is none
  void fields(auto&& visit) {
    visit("scale", scale);
    visit("step", step);
    visit("begin", begin);
    visit("second_begin", second_begin);
    visit("third_begin", third_begin);
  }
  int64_t begin_of(size_t adapter) const {
    return adapter == 0 ? begin : adapter == 1 ? second_begin : third_begin;
  }
};

struct AdapterGradAttributes {
  double scale = 1.0;
  int64_t step = 1;
  int64_t begin = 0;
  void fields(auto&& visit) {
    visit("scale", scale);
    visit("step", step);
    visit("begin", begin);
  }
};

inline constexpr size_t kMostAdapters = 3;  ///< of one product

extern const OpDefinition kAddAdaptersOp;
extern const OpDefinition kAdapterGradOp;

/// The columns of different adapters must not overlap.
struct Adapter {
  ValueId z;  ///< [N,S]
  AdaptedColumns columns;
};

/// Whether `size` columns from `begin` on, `step` apart, lie in a row of `width`.
bool are_in_row(int64_t begin, int64_t step, int64_t size, int64_t width);

/// Where the columns of one to three adapters of the same step are.
AddAdaptersAttributes adapters_attributes(std::span<const Adapter> adapters, double scale,
                                          std::string_view site);

/// All adapters have the same step.
ValueId add_adapters(GraphBuilder& builder, ValueId base, std::span<const Adapter> adapters,
                     double scale, std::string_view site);

}  // namespace braid
