#include "ops/host_slots.h"

#include <algorithm>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"
#include "ops/expert_exchange.h"
#include "ops/partial_maps.h"

namespace braid {
namespace {

/// The tokens of one rank for one host, and their slots in the block between the two.
struct BlockOfTokens {
  const int32_t* experts = nullptr;  ///< of the rank's tokens
  int64_t first_expert = 0;          ///< of the host
  int64_t first_slot = 0;
};

struct SlotSizes {
  int64_t tokens = 1;
  int64_t per_token = 1;
  int64_t experts_of_host = 1;
  int64_t block_rows = 1;
  int64_t slots = 1;
  int32_t lacking = 0;  ///< the slot of a token without room

  bool is_of_host(int32_t expert, int64_t first) const {
    return expert >= first && expert < first + experts_of_host;
  }
  /// Of the token, on the host.
  int64_t num_experts(const BlockOfTokens& block, int64_t token) const {
    const int32_t* const experts = block.experts + token * per_token;
    return std::count_if(experts, experts + per_token,
                         [&](int32_t expert) { return is_of_host(expert, block.first_expert); });
  }
};

/// Calls visit(token, slot) for all tokens, with a slot beyond all where there is none. Returns the
/// number of tokens that should have one.
template <class Visit>
int64_t for_each_token(const SlotSizes& sizes, const BlockOfTokens& block, const Visit& visit) {
  int64_t wanted = 0;
  for (int64_t token = 0; token < sizes.tokens; ++token) {
    if (sizes.num_experts(block, token) == 0) {
      visit(token, static_cast<int32_t>(sizes.slots + kNoRow));
      continue;
    }
    visit(token, wanted < sizes.block_rows ? static_cast<int32_t>(block.first_slot + wanted)
                                           : sizes.lacking);
    ++wanted;
  }
  return wanted;
}

/// What a rank counts for its tally, in rows of experts.
struct RowCounts {
  int64_t most = 0;
  int64_t dropped = 0;
  int64_t came = 0;

  void add_to(const HostSlotsAttributes& attributes, int64_t equal, int64_t* tally) const {
    const int64_t beyond = std::max<int64_t>(0, came - attributes.rows);
    tally[RoomTally::kRows] += dropped + beyond;
    tally[RoomTally::kDropped] += dropped + beyond;
    tally[RoomTally::kMost] = std::max({tally[RoomTally::kMost], most, came});
    tally[RoomTally::kRoom] = attributes.rows;
    tally[RoomTally::kEqual] = equal;
  }
};

}  // namespace

CpuKernel make_host_slots(const OpSpec& spec, int /*num_workers*/) {
  const auto attributes = attributes_of<HostSlotsAttributes>(spec);
  const Shape& all = spec.operands[0].shape;
  const int64_t hosts = attributes.hosts;
  const int64_t slots = hosts * attributes.block_rows;
  const SlotSizes sizes{
      .tokens = all[0] / hosts,
      .per_token = all[1],
      .experts_of_host = attributes.experts / hosts,
      .block_rows = attributes.block_rows,
      .slots = slots,
      .lacking = static_cast<int32_t>(slots + (attributes.drops ? kNoRow : kLacksRoom))};
  return {.run = [=](const KernelArgs& args) {
    const auto* const experts = args.data<const int32_t>(0);
    auto* const slot_of = args.data<int32_t>(1);
    auto* const token_of = args.data<int32_t>(2);
    auto* const came_slot_of = args.data<int32_t>(3);
    auto* const came_token_of = args.data<int32_t>(4);
    auto* const choices = args.data<int32_t>(5);
    const int64_t of_rank = sizes.tokens * sizes.per_token;
    const int64_t own_first = attributes.member * sizes.experts_of_host;
    std::fill_n(token_of, slots, static_cast<int32_t>(sizes.tokens * hosts));
    std::fill_n(came_token_of, slots, static_cast<int32_t>(sizes.tokens * hosts));
    std::fill_n(choices, slots * sizes.per_token, static_cast<int32_t>(sizes.experts_of_host));
    RowCounts counts;
    for (int64_t host = 0; host < hosts; ++host) {
      const BlockOfTokens to{.experts = experts + attributes.member * of_rank,
                             .first_expert = host * sizes.experts_of_host,
                             .first_slot = host * sizes.block_rows};
      const int64_t wanted = for_each_token(sizes, to, [&](int64_t token, int32_t slot) {
        slot_of[token * hosts + host] = slot;
        if (slot < slots) {
          token_of[slot] = static_cast<int32_t>(token * hosts + host);
        } else {
          counts.dropped += sizes.num_experts(to, token);
        }
      });
      counts.most = std::max(counts.most,
                             (wanted * attributes.rows + sizes.block_rows - 1) / sizes.block_rows);
      const BlockOfTokens from{.experts = experts + host * of_rank,
                               .first_expert = own_first,
                               .first_slot = host * sizes.block_rows};
      for_each_token(sizes, from, [&](int64_t token, int32_t slot) {
        came_slot_of[host * sizes.tokens + token] = slot;
        if (slot < slots) {
          came_token_of[slot] = static_cast<int32_t>(host * sizes.tokens + token);
          for (int64_t j = 0; j < sizes.per_token; ++j) {
            const int32_t expert = from.experts[token * sizes.per_token + j];
            if (sizes.is_of_host(expert, own_first)) {
              choices[slot * sizes.per_token + j] = static_cast<int32_t>(expert - own_first);
              ++counts.came;
            }
          }
        }
      });
    }
    if (attributes.watch.watch) {
      counts.add_to(attributes, of_rank, args.data<int64_t>(6));
    }
  }};
}

}  // namespace braid
