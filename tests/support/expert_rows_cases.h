#pragma once

#include "ops/attributes.h"
#include "ops/expert_rows.h"
#include "support/kernel_harness.h"

/// Rows in the order of their experts, by a random routing.
namespace braid {

struct RowSizes {
  int64_t tokens;
  int64_t per_token;
  int64_t experts;
  int64_t width;

  int64_t rows() const { return tokens * per_token; }
};

// One token; one expert; as many experts per token as there are; experts that nobody chooses.
inline constexpr RowSizes kAwkwardRows[] = {{1, 1, 1, 1},  {1, 3, 3, 5},   {7, 2, 5, 33},
                                            {64, 4, 4, 3}, {5, 2, 512, 7}, {19, 8, 64, 700}};

inline KernelCase sort_rows_case(const RowSizes& s) {
  return KernelCase({"sort_rows",
                     {},
                     {read(DType::kI32, {s.tokens, s.per_token}),
                      write(DType::kI32, {s.tokens, s.per_token}), write(DType::kI32, {s.rows()}),
                      write(DType::kI32, {s.experts + 1}), write(DType::kF32, {s.experts})}});
}

/// The same with a tally, operand 5.
inline KernelCase watched_rows_case(const RowSizes& s) {
  OpSpec spec = sort_rows_case(s).spec();
  spec.attributes = to_attributes(SortRowsAttributes{.watch = {true}});
  spec.operands.push_back(tally_spec(s.experts));
  return KernelCase(spec);
}

inline KernelCase with_random_experts(KernelCase kernel, const RowSizes& s) {
  TestRandom random(3);
  std::vector<double> experts(static_cast<size_t>(s.rows()));
  std::ranges::generate(experts, [&] { return static_cast<double>(random.below(s.experts)); });
  kernel.set(0, experts);
  return kernel;
}

/// row_of and pair_of of a random routing.
struct RowMaps {
  explicit RowMaps(const RowSizes& s) {
    KernelCase sorted = with_random_experts(sort_rows_case(s), s);
    sorted.run();
    row_of = sorted.values(1);
    pair_of = sorted.values(2);
  }
  std::vector<double> row_of;
  std::vector<double> pair_of;
};

inline KernelCase gather_rows_case(DType dtype, const RowSizes& s) {
  KernelCase kernel(
      {"gather_rows",
       {},
       {read(dtype, {s.tokens, s.width}), read(DType::kI32, {s.rows()}),
        read(DType::kI32, {s.tokens, s.per_token}), write(dtype, {s.rows(), s.width})}});
  const RowMaps maps(s);
  kernel.set(1, maps.pair_of);
  kernel.set(2, maps.row_of);
  return kernel;
}

inline KernelCase sum_rows_case(DType dtype, const RowSizes& s) {
  KernelCase kernel({"sum_rows",
                     {},
                     {read(dtype, {s.rows(), s.width}), read(DType::kI32, {s.tokens, s.per_token}),
                      read(DType::kI32, {s.rows()}), write(dtype, {s.tokens, s.width})}});
  const RowMaps maps(s);
  kernel.set(1, maps.row_of);
  kernel.set(2, maps.pair_of);
  return kernel;
}

inline KernelCase permute_elems_case(DType dtype, const RowSizes& s) {
  KernelCase kernel({"permute_elems",
                     {},
                     {read(dtype, {s.tokens, s.per_token}), read(DType::kI32, {s.rows()}),
                      read(DType::kI32, {s.tokens, s.per_token}), write(dtype, {s.rows()})}});
  const RowMaps maps(s);
  kernel.set(1, maps.pair_of);
  kernel.set(2, maps.row_of);
  return kernel;
}

/// The same op where rows from `end` on are of dropped pairs.
inline KernelCase with_dropped_rows(const KernelCase& whole, int64_t end) {
  OpSpec spec = whole.spec();
  spec.attributes = to_attributes(MovedRowsAttributes{.dropped = {true}});
  spec.operands.insert(spec.operands.begin() + 3, read(DType::kI32, {3}));
  KernelCase kernel(spec);
  for (const size_t operand : {0, 1, 2}) {
    kernel.set(operand, whole.values(operand));
  }
  kernel.set(3, {0, static_cast<double>(end / 3), static_cast<double>(end)});
  return kernel;
}

/// The weights of rows in the order of pairs, as a backward has them.
inline KernelCase permute_back_case(DType dtype, const RowSizes& s) {
  KernelCase kernel({"permute_elems",
                     {},
                     {read(dtype, {s.rows()}), read(DType::kI32, {s.tokens, s.per_token}),
                      read(DType::kI32, {s.rows()}), write(dtype, {s.tokens, s.per_token})}});
  const RowMaps maps(s);
  kernel.set(1, maps.row_of);
  kernel.set(2, maps.pair_of);
  return kernel;
}

/// Ends of the rows that are computed: none, some, all.
inline std::vector<int64_t> ends_of_rows(const RowSizes& s) {
  return {0, s.rows() / 2, s.rows() - 1, s.rows()};
}

/// Offsets of two experts that have `used` of the rows.
inline std::vector<double> offsets_to(int64_t used) {
  return {0, static_cast<double>(used / 3), static_cast<double>(used)};
}

/// The activations of experts' rows.
struct RoutedActivation {
  std::string name;
  int64_t elems;  ///< of the input for each of the result
};
inline const RoutedActivation kRoutedActivations[] = {{"routed_swiglu", 2}, {"routed_relu2", 1}};

inline KernelCase routed_case(const RoutedActivation& activation, DType dtype, const RowSizes& s) {
  KernelCase kernel(
      {activation.name,
       {},
       {read(dtype, {s.rows(), activation.elems * s.width}), read(wide(dtype), {s.rows()}),
        read(DType::kI32, {3}), write(dtype, {s.rows(), s.width})}});
  kernel.set(2, offsets_to(s.rows()));
  return kernel;
}

inline KernelCase routed_backward_case(const RoutedActivation& activation, DType dtype,
                                       const RowSizes& s) {
  const Shape x{s.rows(), activation.elems * s.width};
  KernelCase kernel(
      {activation.name + "_backward",
       {},
       {read(dtype, x), read(wide(dtype), {s.rows()}), read(dtype, {s.rows(), s.width}),
        read(DType::kI32, {3}), write(dtype, x), write(wide(dtype), {s.rows()})}});
  kernel.set(3, offsets_to(s.rows()));
  return kernel;
}

}  // namespace braid
