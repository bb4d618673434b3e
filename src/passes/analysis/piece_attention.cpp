#include "passes/analysis/piece_attention.h"

#include <algorithm>

#include "passes/analysis/mixed_hash.h"

namespace braid {
namespace {

uint64_t with(uint64_t hash, int64_t number) {
  return mixed_hash(hash, static_cast<uint64_t>(number));
}

/// Rows [begin, end) of queries, from one piece of queries, and their own keys from one piece.
struct Run {
  int64_t begin = 0;
  int64_t end = 0;
  uint64_t value = 0;
  int64_t first_row = 0;  ///< of the queries, in their value
};

class Runs {
 public:
  Runs(const AttentionStepAttributes& step, std::span<const ValuePiece> queries,
       std::span<const ValuePiece> kv)
      : step_(step),
        query_width_((step.heads + 2 * step.kv_heads) * step.head_size),
        kv_width_(2 * step.kv_heads * step.head_size),
        queries_(queries),
        kv_(kv) {}

  std::vector<Run> find(uint64_t hash) const {
    std::vector<int64_t> borders = {0, step_.queries};
    for (const ValuePiece& piece : queries_) {
      borders.push_back(piece.end / query_width_);
    }
    for (const ValuePiece& piece : kv_) {
      borders.push_back(std::clamp<int64_t>(piece.end / kv_width_ - earlier_keys(), 0, step_.queries));
    }
    std::ranges::sort(borders);
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    std::vector<Run> runs;
    for (size_t i = 1; i < borders.size(); ++i) {
      runs.push_back(run_of(hash, borders[i - 1], borders[i]));
    }
    return runs;
  }

 private:
  /// Keys before that of the first query.
  int64_t earlier_keys() const { return step_.keys - step_.queries; }

  Run run_of(uint64_t hash, int64_t begin, int64_t end) const {
    const ValuePiece query = part_of(*std::ranges::upper_bound(queries_, begin * query_width_, {},
                                                               &ValuePiece::end),
                                     begin * query_width_, end * query_width_);
    const int64_t key = begin + earlier_keys();
    hash = with(mixed_hash(hash, query.value), query.first - key * query_width_);
    for (const ValuePiece& piece : kv_) {
      const bool is_behind = piece.end > key * kv_width_;
      hash = with(mixed_hash(hash, piece.value), piece.first - piece.begin);
      if (is_behind) {
        break;  // its keys up to that of each query
      }
      hash = with(hash, piece.end);
    }
    return {.begin = begin, .end = end, .value = hash, .first_row = query.first / query_width_};
  }

  const AttentionStepAttributes& step_;
  int64_t query_width_;
  int64_t kv_width_;
  std::span<const ValuePiece> queries_;
  std::span<const ValuePiece> kv_;
};

}  // namespace

AttentionValues attention_values(uint64_t hash, const AttentionStepAttributes& step,
                                 std::span<const ValuePiece> queries,
                                 std::span<const ValuePiece> kv) {
  const std::vector<Run> runs = Runs(step, queries, kv).find(hash);
  const int64_t width = step.heads * step.head_size;
  AttentionValues values;
  for (const Run& run : runs) {
    append_piece(values.sum, {.begin = run.begin * width,
                              .end = run.end * width,
                              .value = mixed_hash(run.value, 1),
                              .first = run.first_row * width});
  }
  for (int64_t head = 0; head < step.heads; ++head) {
    for (const Run& run : runs) {
      append_piece(values.lse, {.begin = head * step.queries + run.begin,
                                .end = head * step.queries + run.end,
                                .value = with(mixed_hash(run.value, 2), head),
                                .first = run.first_row});
    }
  }
  return values;
}

}  // namespace braid
