#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// A pair of neighbours that becomes one token; of pairs in a word, the first in the list of merges
/// is merged first.
struct BpeMerge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t merged = 0;
};

struct BpeOptions {
  /// A word that is a token becomes this token, whether or not merges lead to it ("ignore_merges"
  /// of a tokenizer.json; Llama 3).
  bool takes_whole_words = false;
};

/// Byte pair encoding over bytes (Sennrich et al. 2016; Radford et al. 2019). Immutable,
/// thread-safe. Memory: about 60 bytes per token and merge.
class BpeModel {
 public:
  /// `tokens`: bytes by id; an empty one has no bytes and never results from text. `merges`: in
  /// their order, of ids of `tokens`. Each of the 256 bytes must be a token. If two tokens have the
  /// same bytes, the one with the lower id is found.
  BpeModel(const std::vector<std::string>& tokens, const std::vector<BpeMerge>& merges,
           const BpeOptions& options);

  /// Appends the ids of a word. Time: n log n in its bytes, constant if the word is a token.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  using Rank = uint32_t;  // place in the list of merges

  /// Ids by bytes: open addressing over one block of bytes.
  class WordTable {
   public:
    explicit WordTable(const std::vector<std::string>& tokens);
    /// -1 if there is none.
    int32_t find(std::string_view word) const;
    std::string_view bytes(size_t id) const {
      return std::string_view(bytes_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
    }

   private:
    struct Slot {
      uint32_t hash = 0;
      int32_t id = -1;
    };
    std::string bytes_;
    std::vector<size_t> offsets_;  // by id, and the end
    std::vector<Slot> slots_;
    size_t mask_ = 0;
  };

  /// Ranks by pairs of ids: open addressing.
  class MergeTable {
   public:
    explicit MergeTable(const std::vector<BpeMerge>& merges);
    /// kNoRank if the pair is not merged.
    Rank find(int32_t left, int32_t right) const;

   private:
    struct Slot {
      uint64_t pair = kNoPair;
      Rank rank = kNoRank;
    };
    static constexpr uint64_t kNoPair = ~uint64_t{0};
    std::vector<Slot> slots_;
    size_t mask_ = 0;
  };

  static constexpr Rank kNoRank = ~Rank{0};

  void merge(std::string_view word, std::vector<int32_t>& ids) const;
  void merge_short(std::string_view word, std::vector<int32_t>& ids) const;
  void merge_long(std::string_view word, std::vector<int32_t>& ids) const;

  WordTable words_;
  MergeTable ranks_;
  std::vector<int32_t> merged_;  // by rank
  std::array<int32_t, 256> byte_ids_{};
  std::vector<bool> is_whole_;  // by id: its bytes, as a word, become this id
};

}  // namespace braid
