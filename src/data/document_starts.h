#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace braid {

/// Where the document of each token begins, for sequences of `sequence_tokens` tokens: the position
/// in its sequence of the first token of the document (ops/documents.h). A document ends with
/// `eod`, and at the end of its sequence. Source: get_ltor_masks_and_position_ids of Megatron-LM.
std::vector<int32_t> document_starts(std::span<const int32_t> tokens, int64_t sequence_tokens,
                                     int32_t eod);

}  // namespace braid
