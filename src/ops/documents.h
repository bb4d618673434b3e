#pragma once

#include <cstddef>
#include <cstdint>

#include "ir/op_spec.h"
#include "ops/operand_checker.h"

/// Documents that share a sequence. An op that separates them reads `starts` i32 [N], for each row
/// the position in its sequence at which the row's document begins. Along ascending positions,
/// starts do not descend, and none lies behind its row. Positions of rope and of learned embeddings
/// then count from the start of the document, and attention sees no key before it. The host makes
/// the starts (data/document_starts.h), so documents differ from step to step and the program does
/// not. Absent: a sequence is one document.
namespace braid {

/// For ops that only need positions.
struct DocumentPositions {
  bool documents = false;  ///< whether the op reads starts
  friend bool operator==(const DocumentPositions&, const DocumentPositions&) = default;
  void fields(auto&& visit) { visit("documents", documents); }
};

/// For attention.
struct AttentionDocuments {
  bool documents = false;       ///< whether the op reads starts
  int64_t document_length = 0;  ///< mean, for cost models; 0: that of a sequence
  friend bool operator==(const AttentionDocuments&, const AttentionDocuments&) = default;
  void fields(auto&& visit) {
    visit("documents", documents);
    visit("document_length", document_length);
  }
  /// The mean number of tokens of a document, at most `tokens`.
  int64_t mean_tokens(int64_t tokens) const {
    return documents && document_length > 0 && document_length < tokens ? document_length : tokens;
  }
};

/// The next operand are the starts of `rows` rows.
inline void expect_starts(OperandChecker& operands, int64_t rows) {
  operands.expect("starts", Access::kRead, DType::kI32, {rows});
}

/// For OpDefinition::integers of ops whose only i32 operand are starts: a sequence of one document.
inline IntegerNeed one_document(const OpSpec& /*spec*/, size_t /*operand*/) {
  return {.limit = 1};
}

}  // namespace braid
