#pragma once

#include <string>
#include <vector>

#include "ops/attributes.h"
#include "ops/expert_exchange.h"
#include "ops/expert_rows.h"
#include "ops/host_slots.h"
#include "ops/quantize_gathered.h"
#include "support/sent_rows_cases.h"

/// Maps between pairs and rows that leave some of both out (ops/partial_maps.h).
namespace braid {

/// Rows with room for some of the pairs, of which some have no expert.
struct PartialRows {
  RowSizes sizes;
  int64_t rows = 1;
  bool drops = false;

  int64_t pairs() const { return sizes.rows(); }
};

inline std::string name_of(const PartialRows& c) {
  return fmt::format("{} tokens x {} of {} experts, width {}, {} rows{}", c.sizes.tokens,
                     c.sizes.per_token, c.sizes.experts, c.sizes.width, c.rows,
                     c.drops ? ", drops" : "");
}

/// Room for one row, for some, and for more than there are.
inline std::vector<PartialRows> partial_rows(const std::vector<RowSizes>& all) {
  std::vector<PartialRows> list;
  for (const RowSizes& s : all) {
    for (const int64_t rows : {int64_t{1}, s.rows() / 2 + 1, s.rows(), s.rows() + 9}) {
      for (const bool drops : {false, true}) {
        list.push_back({s, rows, drops});
      }
    }
  }
  return list;
}

/// A third of the pairs have no expert.
inline KernelCase sort_into_case(const PartialRows& c) {
  const RowSizes& s = c.sizes;
  KernelCase kernel({"sort_rows",
                     to_attributes(SortRowsAttributes{.room = {true, c.drops}}),
                     {read(DType::kI32, {s.tokens, s.per_token}),
                      write(DType::kI32, {s.tokens, s.per_token}), write(DType::kI32, {c.rows}),
                      write(DType::kI32, {s.experts + 1}), write(DType::kF32, {s.experts})}});
  TestRandom random(5);
  std::vector<double> experts(static_cast<size_t>(s.rows()));
  std::ranges::generate(experts, [&] {
    return static_cast<double>(random.below(3) == 0 ? s.experts : random.below(s.experts));
  });
  kernel.set(0, experts);
  return kernel;
}

/// row_of and pair_of of that sort, with the rows in another order: those of no pair are anywhere.
struct PartialRowMaps {
  explicit PartialRowMaps(const PartialRows& c) {
    KernelCase sorted = sort_into_case(c);
    sorted.run();
    const auto place = [&](int64_t row) { return (row * 7 + 3) % c.rows; };
    const bool moves = c.rows % 7 != 0;
    pair_of.resize(static_cast<size_t>(c.rows));
    const std::vector<double> pairs = sorted.values(2);
    for (int64_t row = 0; row < c.rows; ++row) {
      pair_of[static_cast<size_t>(moves ? place(row) : row)] = pairs[static_cast<size_t>(row)];
    }
    for (const double row : sorted.values(1)) {
      const auto at = static_cast<int64_t>(row);
      row_of.push_back(static_cast<double>(moves && at < c.rows ? place(at) : at));
    }
  }
  std::vector<double> row_of;
  std::vector<double> pair_of;
};

inline PartialMaps priced_maps(const PartialRows& c) {
  return {.expected_rows = (c.rows + 1) / 2};
}

inline std::vector<Attribute> partial_attributes(const PartialRows& c) {
  return to_attributes(MovedRowsAttributes{.partial = priced_maps(c)});
}

inline KernelCase partial_gather_case(DType dtype, const PartialRows& c) {
  const RowSizes& s = c.sizes;
  KernelCase kernel(
      {"gather_rows",
       partial_attributes(c),
       {read(dtype, {s.tokens, s.width}), read(DType::kI32, {c.rows}),
        read(DType::kI32, {s.tokens, s.per_token}), write(dtype, {c.rows, s.width})}});
  const PartialRowMaps maps(c);
  kernel.set(1, maps.pair_of);
  kernel.set(2, maps.row_of);
  return kernel;
}

inline KernelCase partial_sum_case(DType dtype, const PartialRows& c) {
  const RowSizes& s = c.sizes;
  KernelCase kernel({"sum_rows",
                     partial_attributes(c),
                     {read(dtype, {c.rows, s.width}), read(DType::kI32, {s.tokens, s.per_token}),
                      read(DType::kI32, {c.rows}), write(dtype, {s.tokens, s.width})}});
  const PartialRowMaps maps(c);
  kernel.set(1, maps.row_of);
  kernel.set(2, maps.pair_of);
  return kernel;
}

/// Elements of pairs in the order of rows, or (`back`) those of rows in the order of pairs.
inline KernelCase partial_permute_case(DType dtype, const PartialRows& c, bool back) {
  const Shape pairs{c.sizes.tokens, c.sizes.per_token};
  const Shape rows{c.rows};
  KernelCase kernel({"permute_elems",
                     partial_attributes(c),
                     {read(dtype, back ? rows : pairs), read(DType::kI32, back ? pairs : rows),
                      read(DType::kI32, back ? rows : pairs), write(dtype, back ? pairs : rows)}});
  const PartialRowMaps maps(c);
  kernel.set(1, back ? maps.row_of : maps.pair_of);
  kernel.set(2, back ? maps.pair_of : maps.row_of);
  return kernel;
}

/// With a tally, operand 5.
inline KernelCase partial_quantize_case(DType dtype, const PartialRows& c) {
  const RowSizes& s = c.sizes;
  const Shape rows{c.rows, s.width};
  KernelCase kernel(
      {"quantize_gathered",
       to_attributes(QuantizeGatheredAttributes{.partial = priced_maps(c), .watch = {true}}),
       {read(dtype, {s.tokens, s.width}), read(DType::kI32, {c.rows}),
        read(DType::kI32, {s.tokens, s.per_token}), write(DType::kF8E4M3, rows),
        write(DType::kF32, scales_beside_rows(rows)), tally_spec(Fp8Tally::kSize)}});
  const PartialRowMaps maps(c);
  kernel.set(0, uneven_values(s.tokens * s.width, 11));
  kernel.set(1, maps.pair_of);
  kernel.set(2, maps.row_of);
  return kernel;
}

/// Tokens of ranks of several hosts.
struct SlotsCase {
  int64_t hosts = 2;
  int64_t tokens = 4;  ///< of each rank
  int64_t per_token = 2;
  int64_t experts = 4;
  int64_t block_rows = 4;
  int64_t member = 0;
  bool drops = false;
  int64_t rows = 5;

  int64_t slots() const { return hosts * block_rows; }
};

inline std::string name_of(const SlotsCase& c) {
  return fmt::format("host {} of {}, {} tokens x {} of {} experts, blocks of {}{}", c.member,
                     c.hosts, c.tokens, c.per_token, c.experts, c.block_rows,
                     c.drops ? ", drops" : "");
}

/// Blocks with room for one token, for some, and for all.
inline std::vector<SlotsCase> slots_cases() {
  std::vector<SlotsCase> list;
  for (const SlotsCase& sizes :
       {SlotsCase{2, 1, 1, 2}, SlotsCase{2, 9, 2, 4}, SlotsCase{3, 40, 4, 12},
        SlotsCase{4, 700, 3, 64}, SlotsCase{8, 513, 8, 256}}) {
    for (const int64_t block_rows : {int64_t{1}, sizes.tokens / 2 + 1, sizes.tokens}) {
      for (const int64_t member : {int64_t{0}, sizes.hosts - 1}) {
        SlotsCase c = sizes;
        c.block_rows = block_rows;
        c.member = member;
        c.drops = block_rows % 2 == 0;
        list.push_back(c);
      }
    }
  }
  return list;
}

inline KernelCase slots_case(const SlotsCase& c) {
  KernelCase kernel({"host_slots",
                     to_attributes(HostSlotsAttributes{.member = c.member,
                                                       .hosts = c.hosts,
                                                       .experts = c.experts,
                                                       .block_rows = c.block_rows,
                                                       .rows = c.rows,
                                                       .drops = c.drops,
                                                       .watch = {true}}),
                     {read(DType::kI32, {c.hosts * c.tokens, c.per_token}),
                      write(DType::kI32, {c.tokens, c.hosts}), write(DType::kI32, {c.slots()}),
                      write(DType::kI32, {c.hosts * c.tokens, 1}), write(DType::kI32, {c.slots()}),
                      write(DType::kI32, {c.slots(), c.per_token}), tally_spec(RoomTally::kSize)}});
  TestRandom random(static_cast<uint64_t>(c.tokens));
  std::vector<double> experts(static_cast<size_t>(c.hosts * c.tokens * c.per_token));
  std::ranges::generate(experts, [&] { return static_cast<double>(random.below(c.experts)); });
  kernel.set(0, experts);
  kernel.set(6, {100, 10, 1, 0, 0});
  return kernel;
}

}  // namespace braid
