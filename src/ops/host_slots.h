#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ops/graph.h"
#include "ops/op.h"
#include "ops/tally.h"

namespace braid {

/// Which tokens go to which host, where ranks of several hosts hold different experts and a host
/// gets one copy of a token, however many of its experts the token has. H ranks, one of each host,
/// exchange blocks of tokens (all_to_all): B slots for each pair, so S = H B of a rank. They hold E
/// experts with the other ranks of their hosts, E / H on each host in a row.
///
/// host_slots: experts_of_all i32 [H T, K], the choices of T tokens of each of these ranks, by
/// all_gather -> slot_of i32 [T,H], token_of i32 [S], came_slot_of i32 [H T, 1], came_token_of i32
/// [S], choices i32 [S,K], tally i64 [5] with `watch`.
///
/// A token goes to each host of which it has an expert. Block h of a rank has its tokens for host h
/// in ascending order: slot_of[t,h] is the slot of token t for host h, and token_of[s] = t H + h.
/// came_slot_of, came_token_of: the same of what comes to this rank, where token t of rank r is
/// r T + t. choices: of what comes, the experts among those of this host, or E / H for an expert
/// of another host and for a slot without a token.
///
/// All four maps are partial (ops/partial_maps.h). A token that does not fit its block lacks room.
///
/// The tally is a RoomTally (ops/expert_exchange.h) for R rows of the experts of tokens that come:
/// the most rows are those that came, or R / B times the tokens of a full block that are sent, so
/// that there is room for them exactly if all tokens fit. Of sums it has only what is dropped: the
/// pairs of tokens without a slot, and those that came beyond R.
///
/// Source: DeepSeek-V3 (arXiv 2412.19437, 3.2.2), which sends a token once to a node, too; there
/// with messages of exact sizes.
struct HostSlotsAttributes {
  int64_t member = 0;      ///< this rank's host
  int64_t hosts = 1;       ///< H
  int64_t experts = 1;     ///< E
  int64_t block_rows = 1;  ///< B
  int64_t rows = 1;        ///< R, which only the tally needs
  bool drops = false;      ///< tokens without room, instead of making the step invalid
  WatchAttribute watch = {};
  void fields(auto&& visit) {
    visit("member", member);
    visit("hosts", hosts);
    visit("experts", experts);
    visit("block_rows", block_rows);
    visit("rows", rows);
    visit("drops", drops);
    visit.optional(watch);
  }
};

extern const OpDefinition kHostSlotsOp;

/// The maps of tokens and slots; sent ones, then those that come.
struct HostSlots {
  ValueId slot_of;        ///< i32 [T,H]
  ValueId token_of;       ///< i32 [S]
  ValueId came_slot_of;   ///< i32 [H T, 1]
  ValueId came_token_of;  ///< i32 [S]
  ValueId choices;        ///< i32 [S,K]
};

/// `tally`: i64 [RoomTally::kSize], a value of kind kTally; nothing: tokens are not counted.
HostSlots host_slots(GraphBuilder& builder, ValueId experts_of_all, HostSlotsAttributes attributes,
                     std::optional<ValueId> tally, std::string_view site);

}  // namespace braid
