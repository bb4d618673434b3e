#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace braid {

/// Groups ranks into kinds. Ranks of one kind are equal in what the caller compares: their
/// programs, the calls that other ranks see, or what a simulation can distinguish. One rank
/// represents each kind.
struct AlikeRanks {
  std::vector<uint32_t> kind_of;  ///< by rank
  std::vector<int> stand_ins;     ///< by kind: the rank that represents it

  bool empty() const { return kind_of.empty(); }
  size_t num_kinds() const { return stand_ins.size(); }
  int stand_in(int rank) const { return stand_ins[kind_of[static_cast<size_t>(rank)]]; }

  friend bool operator==(const AlikeRanks&, const AlikeRanks&) = default;
};

/// Ranks with equal keys are of one kind; the first of them represents it. Kinds are numbered in
/// order of their first ranks. `keys` is by rank.
template <class Key>
AlikeRanks alike_ranks(const std::vector<Key>& keys) {
  AlikeRanks ranks;
  std::map<Key, uint32_t> kinds;
  for (const Key& key : keys) {
    const auto [kind, is_new] = kinds.try_emplace(key, static_cast<uint32_t>(kinds.size()));
    if (is_new) {
      ranks.stand_ins.push_back(static_cast<int>(ranks.kind_of.size()));
    }
    ranks.kind_of.push_back(kind->second);
  }
  return ranks;
}

}  // namespace braid
