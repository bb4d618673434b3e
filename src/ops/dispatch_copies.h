#pragma once

#include "ops/graph.h"

namespace braid {

/// Makes rows that go to experts of other ranks FP8 (expert_exchange.h): x in the forward, and dy
/// in the backward of combine_rows. They are rounded where they are gathered, so 1 byte travels per
/// element, and a scale per 128, instead of values:
///
///   before: gather_rows(x -> rows)  dispatch_rows(rows, weights -> y, ...)
///           quantize_grouped(y -> y8, y8t)
///   after:  quantize_gathered(x -> rows8)  dispatch_rows(rows8, weights, scales -> y8, ...)
///           transpose_grouped(y8 -> y8t)
///
/// Where a host gets one copy of a token (host_slots.h), the rows are rounded before they go there,
/// and their scales go with them: quantize_gathered, then all_to_all and gather_rows twice.
///
/// Where something else reads rows or y, nothing changes. The copy by rows, which the forward and
/// the dgrad read, has the same bits as before. The one by columns is made of it, so elements that
/// are subnormal in one of the two copies may be rounded otherwise (transpose_grouped.h). Changes
/// graphs whose products are FP8 already (quantize_products.h). Source: DeepSeek-V3 (arXiv
/// 2412.19437, 3.3.2).
void dispatch_copies(StageGraph& graph);

}  // namespace braid
