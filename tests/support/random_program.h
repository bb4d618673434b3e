#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ir/program.h"

namespace braid {

struct RandomProgramOptions {
  int num_tasks = 40;
  int num_buffers = 8;
  int num_streams = 1;      ///< the first is compute; tasks are spread over all of them
  int num_ranks = 1;        ///< if more, some all-reduces run over all of them
  int64_t max_elems = 12;   ///< of a buffer
  bool self_copies = true;  ///< some copies of a range onto itself
  /// Also all-gathers, reduce-scatters and shifts round a ring, gathered buffers, and the ops round
  /// which passes arrange these.
  bool more_communication = false;
};

/// A program of fill, copy, add and all_reduce on f32 buffers, the same for the same seed on any
/// machine. It has no events; otherwise it is valid: step buffers are written before they are read,
/// and no task writes what it reads, except copies of a range onto itself and all-reduces.
/// All-reduces have phase comm; some buffers are gradients; whole buffers and parts are both
/// frequent.
class RandomProgram {
 public:
  RandomProgram(uint64_t seed, const RandomProgramOptions& options)
      : options_(options), random_(seed), builder_("random", 0, options.num_ranks) {}

  Program make() {
    add_tables();
    for (int i = 0; i < options_.num_tasks; ++i) {
      add_task();
    }
    return builder_.take();
  }

 private:
  int64_t below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }
  bool one_in(int64_t n) { return below(n) == 0; }

  void add_tables() {
    for (int i = 0; i < options_.num_streams; ++i) {
      const auto kind = i == 0 ? StreamKind::kCompute : StreamKind::kComm;
      streams_.push_back(builder_.add_stream({"stream" + std::to_string(i), kind, 0}));
    }
    builder_.add_group({"alone", GroupKind::kTensor, {0}});
    if (options_.num_ranks > 1) {
      Group all{"all", GroupKind::kData, {}};
      for (int rank = 0; rank < options_.num_ranks; ++rank) {
        all.ranks.push_back(rank);
      }
      builder_.add_group(all);
      if (options_.more_communication) {
        builder_.add_group({"ring", GroupKind::kContext, all.ranks});
      }
    }
    constexpr BufferRole kRoles[] = {BufferRole::kActivation, BufferRole::kGrad,
                                     BufferRole::kMainGrad, BufferRole::kParam,
                                     BufferRole::kGathered};
    const int64_t num_roles = options_.more_communication ? 5 : 4;
    for (int i = 0; i < options_.num_buffers; ++i) {
      // Few different sizes, so that whole buffers are often copied and added.
      const int64_t num_elems = std::max<int64_t>(1, options_.max_elems / (1 + below(3)));
      const auto lifetime = one_in(3) ? Lifetime::kPersistent : Lifetime::kStep;
      buffers_.push_back(builder_.add_buffer({"buffer" + std::to_string(i),
                                              DType::kF32,
                                              {num_elems},
                                              kRoles[below(num_roles)],
                                              lifetime,
                                              Placement::kDevice}));
      is_written_.emplace_back(num_elems, lifetime == Lifetime::kPersistent);
    }
  }

  BufferRange any_range() {
    const auto buffer = buffers_[static_cast<size_t>(below(options_.num_buffers))];
    BufferRange range = builder_.whole(buffer);
    if (one_in(3)) {
      range.begin = below(range.end);
      range.end = range.begin + 1 + below(range.end - range.begin);
    }
    return range;
  }

  /// Any range of that many elements that does not overlap the other; that one if none is found.
  BufferRange range_of(int64_t count, const BufferRange& other) {
    for (int attempt = 0; attempt < 8; ++attempt) {
      BufferRange range =
          builder_.whole(buffers_[static_cast<size_t>(below(options_.num_buffers))]);
      if (range.end < count) {
        continue;
      }
      range.begin = one_in(2) ? 0 : below(range.end - count + 1);
      range.end = range.begin + count;
      if (!range.overlaps(other)) {
        return range;
      }
    }
    return other;
  }

  bool is_readable(const BufferRange& range) const {
    const auto& written = is_written_[range.buffer.index()];
    return std::all_of(written.begin() + range.begin, written.begin() + range.end,
                       [](bool it) { return it; });
  }

  void add_task() {
    const BufferRange x = any_range();
    if (!is_readable(x) || one_in(8)) {
      emit("fill", {{"value", static_cast<double>(below(100))}}, {}, x, Access::kWrite);
      return;
    }
    if (options_.more_communication && one_in(3) && add_arranged(x)) {
      return;
    }
    if (one_in(4)) {
      const auto groups = static_cast<int64_t>(builder_.program().groups.size());
      emit("all_reduce", {{"group", below(groups)}}, {}, x, Access::kReadWrite);
      return;
    }
    if (options_.self_copies && one_in(10)) {
      emit("copy", {}, {x}, x, Access::kWrite);
      return;
    }
    const BufferRange y = range_of(x.end - x.begin, x);
    if (y == x) {
      emit("fill", {{"value", static_cast<double>(below(100))}}, {}, x, Access::kWrite);
      return;
    }
    const BufferRange other = range_of(x.end - x.begin, x);
    if (one_in(2) && other != x && is_readable(other) && !other.overlaps(y)) {
      emit("add", {}, {x, other}, y, Access::kWrite);
    } else {
      emit("copy", {}, {x}, y, Access::kWrite);
    }
  }

  /// False if there is no place for it.
  bool add_arranged(const BufferRange& x) {
    const int64_t count = x.end - x.begin;
    const auto num_ranks = static_cast<int64_t>(options_.num_ranks);
    const char* const ops[] = {"all_gather", "reduce_scatter", "ring_shift", "pack_kv",
                               "linear_other"};
    const int64_t which = below(5);
    if (num_ranks == 1 && which < 3) {
      return false;
    }
    if (which == 1 && count % num_ranks != 0) {
      return false;
    }
    const BufferRange y = range_of(which == 0   ? count * num_ranks
                                   : which == 1 ? count / num_ranks
                                                : count,
                                   x);
    if (y == x) {
      return false;
    }
    std::vector<Attribute> attributes;
    if (which < 3) {
      attributes.push_back({"group", int64_t{which == 2 ? 2 : 1}});
    }
    emit(ops[which], std::move(attributes), {x}, y, Access::kWrite);
    return true;
  }

  static bool communicates(const std::string& op) {
    return op == "all_reduce" || op == "all_gather" || op == "reduce_scatter" || op == "ring_shift";
  }

  void emit(const char* op, std::vector<Attribute> attributes, std::vector<BufferRange> operands,
            const BufferRange& target, Access access) {
    OpSpec spec{op, std::move(attributes), {}};
    for (const BufferRange& range : operands) {
      spec.operands.push_back({DType::kF32, Access::kRead, {range.end - range.begin}});
    }
    spec.operands.push_back({DType::kF32, access, {target.end - target.begin}});
    operands.push_back(target);
    constexpr Phase kPhases[] = {Phase::kForward, Phase::kDgrad, Phase::kWgrad, Phase::kOptimizer};
    Label label;
    label.phase = communicates(spec.op) ? Phase::kComm : kPhases[below(4)];
    label.microbatch = static_cast<int32_t>(below(3)) - 1;
    label.layer = static_cast<int32_t>(below(4)) - 1;
    if (one_in(2)) {
      label.site = builder_.site("site" + std::to_string(below(3)));
    }
    builder_.add_task(spec, operands, streams_[static_cast<size_t>(below(options_.num_streams))],
                      label);
    std::fill(is_written_[target.buffer.index()].begin() + target.begin,
              is_written_[target.buffer.index()].begin() + target.end, true);
  }

  RandomProgramOptions options_;
  std::mt19937_64 random_;
  ProgramBuilder builder_;
  std::vector<StreamId> streams_;
  std::vector<BufferId> buffers_;
  std::vector<std::vector<bool>> is_written_;  // by buffer, by element
};

inline Program random_program(uint64_t seed, const RandomProgramOptions& options = {}) {
  return RandomProgram(seed, options).make();
}

}  // namespace braid
