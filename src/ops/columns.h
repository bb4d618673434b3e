#pragma once

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// take_columns: x [N,runs*width] -> y [N,runs*size]. A row of x holds `runs` equal runs of
/// columns; y has columns [begin, begin + size) of each. put_columns: dy [N,runs*size] -> dx
/// [N,runs*width], the opposite direction, which is the backward: all other columns are 0.
struct ColumnsAttributes {
  int64_t runs = 1;
  int64_t width = 0;
  int64_t begin = 0;
  int64_t size = 0;
  void fields(auto&& visit) {
    visit("runs", runs);
    visit("width", width);
    visit("begin", begin);
    visit("size", size);
  }
};

extern const OpDefinition kTakeColumnsOp;
extern const OpDefinition kPutColumnsOp;

/// Returns x itself if that is all of it.
ValueId take_columns(GraphBuilder& builder, ValueId x, const ColumnsAttributes& attributes,
                     std::string_view site);

}  // namespace braid
