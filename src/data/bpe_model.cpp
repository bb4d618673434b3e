#include "data/bpe_model.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>

#include "base/errors.h"

namespace braid {
namespace {

/// Words up to this size are merged by looking at all pairs again after each merge, which for few
/// bytes is faster than a queue.
constexpr size_t kShortBytes = 128;

uint64_t hash_of(std::string_view word) {
  return XXH3_64bits(word.data(), word.size());
}

uint64_t pair_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

/// Spreads pairs of small numbers over 64 bits; the upper ones are the best (Knuth, 6.4).
uint64_t hash_of_pair(uint64_t pair) {
  const uint64_t product = pair * 0x9E3779B97F4A7C15u;
  return product ^ product >> 32;
}

size_t slots_for(size_t count) {
  return std::bit_ceil(2 * count + 1);
}

}  // namespace

BpeModel::WordTable::WordTable(const std::vector<std::string>& tokens) : offsets_{0} {
  slots_.resize(slots_for(tokens.size()));
  mask_ = slots_.size() - 1;
  for (const std::string& token : tokens) {
    bytes_ += token;
    offsets_.push_back(bytes_.size());
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty() || find(tokens[id]) >= 0) {
      continue;
    }
    const uint64_t hash = hash_of(tokens[id]);
    size_t slot = hash & mask_;
    while (slots_[slot].id >= 0) {
      slot = (slot + 1) & mask_;
    }
    slots_[slot] = {.hash = static_cast<uint32_t>(hash >> 32), .id = static_cast<int32_t>(id)};
  }
}

int32_t BpeModel::WordTable::find(std::string_view word) const {
  const uint64_t hash = hash_of(word);
  const auto upper = static_cast<uint32_t>(hash >> 32);
  for (size_t slot = hash & mask_; slots_[slot].id >= 0; slot = (slot + 1) & mask_) {
    if (slots_[slot].hash == upper && bytes(static_cast<size_t>(slots_[slot].id)) == word) {
      return slots_[slot].id;
    }
  }
  return -1;
}

BpeModel::MergeTable::MergeTable(const std::vector<BpeMerge>& merges) {
  slots_.resize(slots_for(merges.size()));
  mask_ = slots_.size() - 1;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    size_t slot = hash_of_pair(pair) & mask_;
    while (slots_[slot].pair != kNoPair && slots_[slot].pair != pair) {
      slot = (slot + 1) & mask_;
    }
    slots_[slot] = {.pair = pair,
                    .rank = static_cast<Rank>(rank)};  // the last of equal ones counts
  }
}

BpeModel::Rank BpeModel::MergeTable::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (size_t slot = hash_of_pair(pair) & mask_;; slot = (slot + 1) & mask_) {
    if (slots_[slot].pair == pair) {
      return slots_[slot].rank;
    }
    if (slots_[slot].pair == kNoPair) {
      return kNoRank;
    }
  }
}

BpeModel::BpeModel(const std::vector<std::string>& tokens, const std::vector<BpeMerge>& merges,
                   const BpeOptions& options)
    : words_(tokens), ranks_(merges), is_whole_(tokens.size(), options.takes_whole_words) {
  for (const BpeMerge& merge : merges) {
    merged_.push_back(merge.merged);
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto text = static_cast<char>(byte);
    byte_ids_[byte] = words_.find(std::string_view(&text, 1));
    check(byte_ids_[byte] >= 0, "no token for byte {}", byte);
  }
  std::vector<int32_t> ids;
  for (size_t id = 0; id < tokens.size() && !options.takes_whole_words; ++id) {
    ids.clear();
    merge(tokens[id], ids);
    is_whole_[id] = ids.size() == 1 && ids.front() == static_cast<int32_t>(id);
  }
}

void BpeModel::encode(std::string_view word, std::vector<int32_t>& ids) const {
  const int32_t id = words_.find(word);
  if (id >= 0 && is_whole_[static_cast<size_t>(id)]) {
    ids.push_back(id);
  } else {
    merge(word, ids);
  }
}

void BpeModel::merge(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() <= kShortBytes) {
    merge_short(word, ids);
  } else {
    merge_long(word, ids);
  }
}

void BpeModel::merge_short(std::string_view word, std::vector<int32_t>& ids) const {
  std::array<int32_t, kShortBytes> parts;
  std::array<Rank, kShortBytes> ranks;  // of the pair that begins with the part
  size_t count = word.size();
  for (size_t i = 0; i < count; ++i) {
    parts[i] = byte_ids_[static_cast<unsigned char>(word[i])];
    if (i > 0) {
      ranks[i - 1] = ranks_.find(parts[i - 1], parts[i]);
    }
  }
  while (count > 1) {
    const auto end = ranks.begin() + static_cast<std::ptrdiff_t>(count - 1);
    const auto first = std::min_element(ranks.begin(), end);
    if (*first == kNoRank) {
      break;
    }
    const auto at = static_cast<size_t>(first - ranks.begin());
    parts[at] = merged_[*first];
    std::copy(parts.begin() + at + 2, parts.begin() + count, parts.begin() + at + 1);
    std::copy(first + 1, end, first);
    --count;
    if (at + 1 < count) {
      ranks[at] = ranks_.find(parts[at], parts[at + 1]);
    }
    if (at > 0) {
      ranks[at - 1] = ranks_.find(parts[at - 1], parts[at]);
    }
  }
  ids.insert(ids.end(), parts.begin(), parts.begin() + count);
}

/// The parts are a list with links, and pairs wait in a queue: by rank, equal ones from the left. A
/// pair that has changed since is passed over.
void BpeModel::merge_long(std::string_view word, std::vector<int32_t>& ids) const {
  struct Part {
    int32_t id = 0;  // -1: merged into the part before
    size_t before = 0;
    size_t after = 0;
  };
  struct Pair {
    Rank rank = 0;
    size_t at = 0;
    int32_t left = 0;
    int32_t right = 0;
    bool operator>(const Pair& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  const size_t end = word.size();
  std::vector<Part> parts(end);
  std::priority_queue<Pair, std::vector<Pair>, std::greater<>> pairs;
  const auto add_pair = [&](size_t at) {
    if (parts[at].after == end) {
      return;
    }
    const int32_t left = parts[at].id;
    const int32_t right = parts[parts[at].after].id;
    if (const Rank rank = ranks_.find(left, right); rank != kNoRank) {
      pairs.push({.rank = rank, .at = at, .left = left, .right = right});
    }
  };
  for (size_t i = 0; i < end; ++i) {
    parts[i] = {.id = byte_ids_[static_cast<unsigned char>(word[i])],
                .before = i == 0 ? end : i - 1,
                .after = i + 1};
  }
  for (size_t i = 0; i < end; ++i) {
    add_pair(i);
  }
  while (!pairs.empty()) {
    const Pair pair = pairs.top();
    pairs.pop();
    Part& left = parts[pair.at];
    if (left.id != pair.left || left.after == end || parts[left.after].id != pair.right) {
      continue;
    }
    Part& right = parts[left.after];
    left.id = merged_[pair.rank];
    right.id = -1;
    left.after = right.after;
    if (left.after != end) {
      parts[left.after].before = pair.at;
    }
    add_pair(pair.at);
    if (left.before != end) {
      add_pair(left.before);
    }
  }
  for (size_t i = 0; i < end; i = parts[i].after) {
    ids.push_back(parts[i].id);
  }
}

}  // namespace braid
