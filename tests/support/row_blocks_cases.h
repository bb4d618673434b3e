#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ops/row_blocks.h"
#include "support/kernel_harness.h"
#include "support/row_exchange_cases.h"

/// Exchanges of rows of experts in blocks: kernels of all members, with the blocks that others
/// made.
namespace braid {

struct BlocksCase {
  Experts experts;
  int64_t block_rows = 1;
  DType dtype = DType::kF32;
  int64_t width = 3;
  int64_t spare_rows = 0;  ///< of each member: behind its last offset

  int64_t rows() const { return experts.rows() + spare_rows; }
  int64_t room() const { return experts.members() * block_rows; }
};

inline std::string name_of(const BlocksCase& c) {
  return fmt::format("{} members, {} experts on {} each, blocks of {} rows of {} {}{}",
                     c.experts.members(), c.experts.experts(), c.experts.copies, c.block_rows,
                     c.width, dtype_name(c.dtype), c.experts.drops ? ", drops" : "");
}

inline RowBlocksAttributes attributes_of(const BlocksCase& c, int64_t member, bool held,
                                         bool has_weights) {
  return {.member = member,
          .experts = c.experts.experts(),
          .copies = c.experts.copies,
          .rows = c.rows(),
          .block_rows = c.block_rows,
          .has_weights = has_weights,
          .held = held,
          .drops = c.experts.drops};
}

inline OperandSpec blocks_of(const BlocksCase& c, Access access, bool has_weights) {
  const auto bytes = static_cast<int64_t>(dtype_bytes(c.dtype));
  const auto weight_bytes = static_cast<int64_t>(dtype_bytes(wide(c.dtype)));
  const RowBlockLayout layout(c.width * bytes, has_weights ? weight_bytes : 0, c.block_rows);
  return {.dtype = DType::kU8, .access = access, .shape = {c.experts.members() * layout.bytes}};
}

inline std::vector<double> offsets_as_values(const BlocksCase& c) {
  const std::vector<int32_t> offsets = offsets_of_all(c.experts);
  return {offsets.begin(), offsets.end()};
}

/// A member's rows, and weights if it has them, go into blocks.
inline KernelCase pack_case(const BlocksCase& c, int64_t member, bool held, bool has_weights) {
  const int64_t rows = held ? c.room() : c.rows();
  std::vector<OperandSpec> operands{read(c.dtype, {rows, c.width})};
  if (has_weights) {
    operands.push_back(read(wide(c.dtype), {rows}));
  }
  const size_t offsets = operands.size();
  const std::vector<double> values = offsets_as_values(c);
  operands.push_back(read(DType::kI32, {std::ssize(values)}));
  operands.push_back(blocks_of(c, Access::kWrite, has_weights));
  KernelCase kernel(
      {"rows_to_blocks", to_attributes(attributes_of(c, member, held, has_weights)), operands},
      static_cast<uint64_t>(7 + 31 * member + (held ? 1000 : 0)));
  kernel.set(offsets, values);
  return kernel;
}

/// The rows come out of blocks; `watch` only with weights and `held`.
inline KernelCase unpack_case(const BlocksCase& c, int64_t member, bool held, bool has_weights,
                              bool watch = false) {
  RowBlocksAttributes attributes = attributes_of(c, member, held, has_weights);
  attributes.watch = {watch};
  const int64_t rows = held ? c.room() : c.rows();
  const std::vector<double> values = offsets_as_values(c);
  std::vector<OperandSpec> operands{blocks_of(c, Access::kRead, has_weights),
                                    read(DType::kI32, {std::ssize(values)}),
                                    write(c.dtype, {rows, c.width})};
  if (has_weights) {
    operands.push_back(write(wide(c.dtype), {rows}));
  }
  if (has_weights && held) {
    operands.push_back(write(DType::kI32, {c.experts.local() + 1}));
  }
  if (watch) {
    operands.push_back(tally_spec(RoomTally::kSize));
  }
  KernelCase kernel({"blocks_to_rows", to_attributes(attributes), operands});
  kernel.set(1, values);
  return kernel;
}

/// Runs a kernel on the CPU or on a device.
using RunKernel = std::function<void(KernelCase&)>;

/// The packing and unpacking kernels of an exchange, by member, after it.
struct Exchanged {
  std::vector<KernelCase> packed;
  std::vector<KernelCase> unpacked;
};

/// Rows go to where their experts are (`dispatches`), or come back from there.
inline Exchanged exchange_by_blocks(const BlocksCase& c, bool dispatches, bool has_weights,
                                    const RunKernel& run) {
  const int64_t members = c.experts.members();
  Exchanged all;
  std::vector<std::vector<double>> sent;
  for (int64_t m = 0; m < members; ++m) {
    all.packed.push_back(pack_case(c, m, /*held=*/!dispatches, has_weights));
    run(all.packed.back());
    sent.push_back(all.packed.back().values(all.packed.back().spec().operands.size() - 1));
  }
  for (int64_t m = 0; m < members; ++m) {
    all.unpacked.push_back(
        unpack_case(c, m, /*held=*/dispatches, has_weights, dispatches && has_weights));
    const auto block = static_cast<int64_t>(sent[0].size()) / members;
    std::vector<double> received;
    for (int64_t from = 0; from < members; ++from) {
      const auto begin = sent[static_cast<size_t>(from)].begin() + m * block;
      received.insert(received.end(), begin, begin + block);
    }
    all.unpacked.back().set(0, received);
    run(all.unpacked.back());
  }
  return all;
}

/// Random loads: most rows to a few experts, some experts and pairs without any.
inline Experts random_loads(int64_t members, int64_t local, int64_t copies, int64_t rows,
                            uint64_t seed) {
  TestRandom random(seed);
  const int64_t experts = members / copies * local;
  Experts given{.copies = copies};
  for (int64_t m = 0; m < members; ++m) {
    std::vector<int64_t> counts(static_cast<size_t>(experts), 0);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t favourite = random.below(std::min<int64_t>(experts, 3));
      ++counts[static_cast<size_t>(random.below(2) == 0 ? favourite : random.below(experts))];
    }
    given.counts.push_back(counts);
  }
  return given;
}

/// Blocks of one row, of fewer than some pairs have, and with room for all rows.
inline std::vector<BlocksCase> blocks_cases(DType dtype) {
  std::vector<Experts> loads = awkward_experts();
  loads.push_back(random_loads(4, 3, 1, 50, 1));
  loads.push_back(random_loads(6, 2, 2, 41, 2));
  loads.push_back(random_loads(16, 2, 1, 200, 3));
  std::vector<BlocksCase> cases;
  for (const Experts& experts : loads) {
    for (const int64_t block_rows : {int64_t{1}, (experts.rows() + 1) / 2, experts.rows()}) {
      cases.push_back({experts, block_rows, dtype});
    }
  }
  cases.push_back({loads.back(), 17, dtype, 8, 5});
  cases.push_back({loads[loads.size() - 2], 9, dtype, 40});
  return cases;
}

}  // namespace braid
