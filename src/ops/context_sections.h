#pragma once

#include <cstdint>

#include "ops/graph.h"
#include "ops/op.h"

/// Ops that move what precedes or follows a rank's rows from other context ranks, for layers that
/// carry a state along the sequence.
namespace braid {

/// How context ranks share Mamba-2 layers.
enum class MambaContext : uint8_t {
  kHeads,   ///< they exchange heads for sequence around the states
  kStates,  ///< each keeps its rows, and gets the states in front of them
};

/// One rank's place among context ranks that each hold `sections` sections of every sequence: runs
/// of as many consecutive rows each, in order of position. Ranks hold positions as ContextShard
/// (model/context_shard.h) deals them out; `inner` is the same as there.
struct ContextSections {
  int64_t ranks = 1;
  int64_t index = 0;
  int64_t inner = 1;
  int64_t sections = 1;  ///< 1 or 2
  void fields(auto&& visit) {
    visit("ranks", ranks);
    visit("index", index);
    visit("inner", inner);
    visit("sections", sections);
  }

  int64_t count() const { return ranks * sections; }  ///< of a sequence
  /// Which section of the sequence it is, by position.
  int64_t place(int64_t rank, int64_t section) const {
    const int64_t outer = ranks / inner;
    if (outer == 1) {
      return section * ranks + rank;
    }
    const int64_t per_chunk = sections * inner / 2;
    const int64_t at = rank % inner * sections + section;
    const int64_t first = rank / inner;
    return at < per_chunk ? first * per_chunk + at
                          : (2 * outer - 1 - first) * per_chunk + at - per_chunk;
  }
  bool is_valid() const {
    return ranks > 0 && index >= 0 && index < ranks && inner > 0 && ranks % inner == 0 &&
           (sections == 1 || sections == 2) && (ranks == inner || sections * inner % 2 == 0);
  }

  friend bool operator==(const ContextSections&, const ContextSections&) = default;
};

/// In the operands of both ops, blocks are [rank, sequence of the batch, section] where they are
/// gathered, and [sequence of the batch, section] on a rank.
///
/// neighbour_sections: x [ranks*N,W], `rows` rows per section -> y [N,W]: for each section of the
/// rank, the rows of the section before it, or with `later` of the one behind it; zeros where there
/// is none.
struct NeighbourSectionsAttributes {
  ContextSections context;
  int64_t rows = 1;
  bool later = false;
  void fields(auto&& visit) {
    context.fields(visit);
    visit("rows", rows);
    visit("later", later);
  }
};

/// carry_states: x [ranks*N,H*(E+1)], f32 or f64, one row per section: for each of H heads what the
/// section adds to a state of E elements, then for each head what it multiplies the state by ->
/// y [N,H*E]: the states in front of each section of the rank, where a sequence begins with 0; with
/// `later` behind each of them, going back from the end of the sequence, where they are 0. Computed
/// one section after the other, so all ranks have the same bits.
struct CarryStatesAttributes {
  ContextSections context;
  int64_t heads = 1;
  bool later = false;
  void fields(auto&& visit) {
    context.fields(visit);
    visit("heads", heads);
    visit("later", later);
  }
};

extern const OpDefinition kNeighbourSectionsOp;
extern const OpDefinition kCarryStatesOp;

ValueId neighbour_sections(GraphBuilder& builder, ValueId x,
                           const NeighbourSectionsAttributes& attributes, std::string_view site);
ValueId carry_states(GraphBuilder& builder, ValueId x, const CarryStatesAttributes& attributes,
                     std::string_view site);

}  // namespace braid
