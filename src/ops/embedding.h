#pragma once

#include <optional>

#include "ops/documents.h"
#include "ops/graph.h"
#include "ops/op.h"
#include "ops/positions.h"

namespace braid {

/// embedding: tokens i32 [N], table [V,C], optionally positions [P,C] -> out [N,C]. out[n] =
/// table[tokens[n]] (+ positions[p], p = at.of(n % sequence)). With `documents`, which needs
/// positions, starts (documents.h) follow them, and p is at.of(n % sequence) - starts[n]. A token
/// outside [0, V) is a DeviceError naming it on the CPU, and a row of NaN on a GPU, which cannot
/// stop inside a graph.
///
/// Split over ranks: the table is rows [vocabulary_begin, + V) of a table for tokens [0,
/// vocabulary). Tokens of other rows give zeros, so that the sum of `out` over the ranks is the
/// embedding; one rank adds the positions, whose gradient all ranks compute. Tokens outside [0,
/// vocabulary) are handled as above.
struct EmbeddingAttributes {
  int64_t sequence = 0;  ///< T; N is a multiple of it
  bool has_positions = false;
  bool adds_positions = true;    ///< false: positions are an operand only for their gradient
  int64_t vocabulary = 0;        ///< tokens of all ranks together; 0: the table is whole
  int64_t vocabulary_begin = 0;  ///< token of the table's first row
  TokenPositions at = {};
  DocumentPositions documents = {};
  void fields(auto&& visit) {
    visit("sequence", sequence);
    visit("has_positions", has_positions);
    visit("adds_positions", adds_positions);
    visit("vocabulary", vocabulary);
    visit("vocabulary_begin", vocabulary_begin);
    visit.optional(at);
    visit.optional(documents);
  }
};

/// embedding_wgrad: tokens i32 [N], d_out [N,C] -> d_table f32 [V,C]; rows are summed in ascending
/// n (deterministic). With `accumulate` the result is added to the gradient, otherwise it
/// overwrites the whole gradient (rows without a token become 0). For bf16 d_out, d_table may be
/// bf16: the sum of a token's rows is fp32 and is rounded once, with what it is added to. The
/// vocabulary is split as above: tokens of other ranks' rows are skipped.
struct EmbeddingWgradAttributes {
  bool accumulate = true;
  int64_t vocabulary = 0;
  int64_t vocabulary_begin = 0;
  void fields(auto&& visit) {
    visit("accumulate", accumulate);
    visit("vocabulary", vocabulary);
    visit("vocabulary_begin", vocabulary_begin);
  }
};

/// position_embedding_wgrad: d_out [N,C] -> d_positions f32 [P,C]; rows at positions without a
/// token get no gradient. `accumulate`, `at` and `documents` as above; starts follow d_out.
struct PositionEmbeddingWgradAttributes {
  int64_t sequence = 0;
  bool accumulate = true;
  TokenPositions at = {};
  DocumentPositions documents = {};
  void fields(auto&& visit) {
    visit("sequence", sequence);
    visit("accumulate", accumulate);
    visit.optional(at);
    visit.optional(documents);
  }
};

/// The mapping from tokens to rows of an op's table.
struct TableRows {
  int64_t vocabulary = 0;  ///< known tokens: [0, vocabulary)
  int64_t begin = 0;       ///< token of the table's first row
  int64_t count = 0;       ///< rows of the table

  TableRows(int64_t attribute_vocabulary, int64_t vocabulary_begin, int64_t table_rows)
      : vocabulary(attribute_vocabulary != 0 ? attribute_vocabulary : table_rows),
        begin(vocabulary_begin),
        count(table_rows) {}

  /// Whether the table has the rows of all tokens.
  bool is_whole() const { return begin == 0 && count >= vocabulary; }
};

extern const OpDefinition kEmbeddingOp;
extern const OpDefinition kEmbeddingWgradOp;
extern const OpDefinition kPositionEmbeddingWgradOp;

struct EmbeddingOperands {
  ValueId tokens;
  ValueId table;
  std::optional<ValueId> positions = {};
  std::optional<ValueId> starts = {};  ///< only with positions
};

/// Sets `attributes.has_positions` and `attributes.documents` from the operands.
ValueId embedding(GraphBuilder& builder, const EmbeddingOperands& operands,
                  EmbeddingAttributes attributes, std::string_view site);
ValueId embedding(GraphBuilder& builder, ValueId tokens, ValueId table,
                  std::optional<ValueId> positions, int64_t sequence, std::string_view site);

}  // namespace braid
