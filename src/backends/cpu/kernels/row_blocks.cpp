#include "ops/row_blocks.h"

#include <cstring>
#include <vector>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "ops/row_map.h"

namespace braid {
namespace {

/// In all bytes: NaN in every floating-point type.
constexpr int kNanByte = 0xFF;

/// target = the sum of the sources in their order, rounded once.
template <class T>
void sum_as(const std::vector<const std::byte*>& sources, std::byte* target, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    auto sum = static_cast<Wide<T>>(reinterpret_cast<const T*>(sources[0])[i]);
    for (size_t copy = 1; copy < sources.size(); ++copy) {
      sum += static_cast<Wide<T>>(reinterpret_cast<const T*>(sources[copy])[i]);
    }
    store(reinterpret_cast<T*>(target), i, sum);
  }
}

void sum_rows(DType dtype, const std::vector<const std::byte*>& sources, std::byte* target,
              int64_t bytes) {
  const int64_t count = bytes / static_cast<int64_t>(dtype_bytes(dtype));
  switch (dtype) {
    case DType::kF64:
      return sum_as<double>(sources, target, count);
    case DType::kF32:
      return sum_as<float>(sources, target, count);
    case DType::kBF16:
      return sum_as<BFloat16>(sources, target, count);
    default:
      throw_internal_error("no sums of rows of {}", dtype_name(dtype));
  }
}

/// The rows or the weights of an operand, and where they lie in a block.
struct Part {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_bytes = 0;
  int64_t at = 0;

  std::byte* row(int64_t index) const { return data + index * row_bytes; }
};

/// One call: the rows of this member, and its blocks.
class RowBlocksCall {
 public:
  RowBlocksCall(const RowBlocks& it, DType dtype, const KernelArgs& args)
      : it_(it),
        layout_(it.layout()),
        map_(args.data<const int32_t>(it.offsets_of_all),
             {.members = it.members,
              .experts = it.attributes.experts,
              .copies = it.attributes.copies,
              .room = it.members * it.attributes.block_rows,
              .most_of_pair = it.attributes.block_rows}),
        blocks_(args.operands[it.blocks]) {
    parts_.push_back({args.operands[it.rows], dtype, it.row_bytes, 0});
    if (it.attributes.has_weights) {
      const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
      parts_.push_back({args.operands[it.weights], wide, it.weight_bytes, layout_.weights_at});
    }
  }

  void pack() const {
    for_each_in_block([&](const Part& part, int64_t row, std::byte* in_block, int64_t count) {
      std::memcpy(in_block, part.row(row), static_cast<size_t>(count * part.row_bytes));
    });
  }

  void unpack_held() const {
    for_each_in_block([&](const Part& part, int64_t row, std::byte* in_block, int64_t count) {
      std::memcpy(part.row(row), in_block, static_cast<size_t>(count * part.row_bytes));
    });
  }

  /// The sums over copies, and what dropped rows bring back.
  void unpack_own() const {
    for (int64_t holder = 0; holder < map_.members(); holder += map_.copies()) {
      map_.for_each_range(holder, [&](int64_t source, int64_t expert, const RowRange& range) {
        if (source == it_.attributes.member) {
          const int64_t all = map_.count(source, map_.first_expert(holder) + expert);
          for (const Part& part : parts_) {
            sum_copies(part, holder, range);
            std::memset(part.row(range.source_row + range.count),
                        it_.attributes.drops ? 0 : kNanByte,
                        static_cast<size_t>((all - range.count) * part.row_bytes));
          }
        }
      });
    }
  }

  void write_offsets(int32_t* offsets, int64_t* tally) const {
    int64_t kept = 0;
    offsets[0] = 0;
    const int64_t came = map_.for_each_range(it_.attributes.member,
                                             [&](int64_t, int64_t expert, const RowRange& range) {
                                               kept += range.count;
                                               offsets[expert + 1] = static_cast<int32_t>(kept);
                                             });
    if (tally != nullptr) {
      add_to_tally(came, kept, tally);
    }
  }

 private:
  std::byte* in_block(int64_t member, const Part& part, int64_t in_pair) const {
    return blocks_ + member * layout_.bytes + part.at + in_pair * part.row_bytes;
  }

  /// Calls visit(part, row, place in a block, number of rows) for the rows of this member that are
  /// in blocks.
  template <class Visit>
  void for_each_in_block(Visit&& visit) const {
    const int64_t member = it_.attributes.member;
    const auto visit_parts = [&](int64_t other, int64_t row, const RowRange& range) {
      for (const Part& part : parts_) {
        visit(part, row, in_block(other, part, range.in_pair), range.count);
      }
    };
    if (it_.attributes.held) {
      map_.for_each_range(member, [&](int64_t source, int64_t, const RowRange& range) {
        visit_parts(source, range.holder_row, range);
      });
      return;
    }
    for (int64_t holder = 0; holder < map_.members(); ++holder) {
      map_.for_each_range(holder, [&](int64_t source, int64_t, const RowRange& range) {
        if (source == member) {
          visit_parts(holder, range.source_row, range);
        }
      });
    }
  }

  void sum_copies(const Part& part, int64_t holder, const RowRange& range) const {
    std::vector<const std::byte*> sources;
    for (int64_t i = 0; i < map_.copies(); ++i) {
      sources.push_back(in_block(holder + i, part, range.in_pair));
    }
    std::byte* target = part.row(range.source_row);
    const int64_t bytes = range.count * part.row_bytes;
    if (map_.copies() == 1) {
      std::memcpy(target, sources[0], static_cast<size_t>(bytes));
      return;
    }
    sum_rows(part.dtype, sources, target, bytes);
  }

  /// The most rows of a pair count as if all pairs had as many: then there is room for them exactly
  /// if a block has room for those of the pair.
  void add_to_tally(int64_t came, int64_t kept, int64_t* tally) const {
    const int64_t member = it_.attributes.member;
    int64_t most = came;
    for (int64_t source = 0; source < map_.members(); ++source) {
      most = std::max(most, map_.members() * map_.count_of_pair(source, member));
    }
    if (member % map_.copies() == 0) {
      tally[RoomTally::kRows] += came;
      tally[RoomTally::kDropped] += came - kept;
    }
    tally[RoomTally::kMost] = std::max(tally[RoomTally::kMost], most);
    tally[RoomTally::kRoom] = map_.room();
    tally[RoomTally::kEqual] = it_.attributes.rows * map_.copies();
  }

  const RowBlocks& it_;
  RowBlockLayout layout_;
  RowMap map_;
  std::byte* blocks_;
  std::vector<Part> parts_;
};

}  // namespace

CpuKernel make_rows_to_blocks(const OpSpec& spec, int /*num_workers*/) {
  return {.run = [it = RowBlocks(spec), dtype = spec.operands[0].dtype](const KernelArgs& args) {
    RowBlocksCall(it, dtype, args).pack();
  }};
}

CpuKernel make_blocks_to_rows(const OpSpec& spec, int /*num_workers*/) {
  return {.run = [it = RowBlocks(spec), dtype = spec.operands[2].dtype](const KernelArgs& args) {
    const RowBlocksCall call(it, dtype, args);
    if (!it.attributes.held) {
      return call.unpack_own();
    }
    call.unpack_held();
    if (it.offsets != 0) {
      call.write_offsets(args.data<int32_t>(it.offsets),
                         it.tally != 0 ? args.data<int64_t>(it.tally) : nullptr);
    }
  }};
}

}  // namespace braid
