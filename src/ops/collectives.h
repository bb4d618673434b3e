#pragma once

#include "ops/op.h"

namespace braid {

/// all_reduce: x (rw); sum over the ranks of Program::groups[group], in group order, fp32
/// accumulation.
struct AllReduceAttributes {
  int64_t group = 0;
  void fields(auto&& visit) { visit("group", group); }
};

extern const OpDefinition kAllReduceOp;

}  // namespace braid
