#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/momentum.h"
#include "ops/muon.h"
#include "ops/optimizer.h"
#include "ops/scaled_linear.h"
#include "support/grouped_copies_cases.h"
#include "support/grouped_linear_cases.h"
#include "support/kernel_harness.h"

/// Tasks that write bf16 main grads, and that read them.
namespace braid {

/// The case with other dtypes of some operands, and the same values where it reads.
inline KernelCase with_dtypes(const KernelCase& from, const std::vector<size_t>& operands,
                              DType dtype) {
  OpSpec spec = from.spec();
  for (const size_t operand : operands) {
    spec.operands[operand].dtype = dtype;
  }
  KernelCase made(spec);
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    if (reads(spec.operands[i].access)) {
      made.set(i, from.values(i));
    }
  }
  return made;
}

struct MainGradCase {
  KernelCase kernel;
  std::vector<size_t> grads;  ///< operands that are bf16 main grads
  int64_t terms = 1;          ///< of a sum, each of a size of about 1
  bool is_fp8 = false;
  std::string name() const {
    std::string text = kernel.spec().op;
    for (const OperandSpec& operand : kernel.spec().operands) {
      text += " " + to_string(operand.shape);
    }
    return text;
  }
  /// The same with gradients of this type.
  KernelCase with_grads(DType dtype) const { return with_dtypes(kernel, grads, dtype); }
};

/// One rounding to bf16, and those of an fp32 sum before it.
inline Tolerance sum_rounded_once(int64_t terms) {
  return {.absolute = 4.0 * static_cast<double>(terms + 2) * rounding_error(DType::kF32),
          .relative = 1.0001 * rounding_error(DType::kBF16)};
}

inline KernelCase narrow_wgrad_case(int64_t rows, int64_t in, int64_t out, bool has_bias,
                                    bool accumulate) {
  std::vector<OperandSpec> operands = {read(DType::kBF16, {rows, in}),
                                       read(DType::kBF16, {rows, out}),
                                       gradient(accumulate, DType::kBF16, {out, in})};
  if (has_bias) {
    operands.push_back(gradient(accumulate, DType::kBF16, {out}));
  }
  return KernelCase(
      {"linear_wgrad",
       to_attributes(LinearWgradAttributes{.has_bias = has_bias, .accumulate = accumulate}),
       operands});
}

inline KernelCase narrow_slice_case(bool accumulate) {
  const FeatureSlice slice{16, 53};
  return KernelCase(
      {"linear_wgrad",
       to_attributes(
           LinearWgradAttributes{.has_bias = true, .accumulate = accumulate, .features = slice}),
       {read(DType::kBF16, {37, 24}), read(DType::kBF16, {37, 53}),
        gradient(accumulate, DType::kBF16, {37, 24}), gradient(accumulate, DType::kBF16, {53})}});
}

/// Tokens repeat; `begin`: of a part of a vocabulary of `vocabulary` tokens.
inline KernelCase narrow_table_case(int64_t rows, int64_t width, int64_t vocabulary, int64_t begin,
                                    int64_t count, bool accumulate) {
  KernelCase kernel(
      {"embedding_wgrad",
       to_attributes(EmbeddingWgradAttributes{.accumulate = accumulate,
                                              .vocabulary = count == vocabulary ? 0 : vocabulary,
                                              .vocabulary_begin = begin}),
       {read(DType::kI32, {rows}), read(DType::kBF16, {rows, width}),
        gradient(accumulate, DType::kBF16, {count, width})}});
  TestRandom random(17);
  std::vector<double> tokens(static_cast<size_t>(rows));
  std::ranges::generate(tokens, [&] {
    const int64_t token = random.below(vocabulary);
    return static_cast<double>(random.below(3) == 0 ? vocabulary / 2 : token);
  });
  kernel.set(0, tokens);
  return kernel;
}

/// Factors of E4M3 and E5M2 with powers of two as scales.
inline KernelCase narrow_scaled_case(int64_t rows, int64_t in, int64_t out, int64_t block,
                                     bool accumulate) {
  const ScaleLayout layout{.block = block};
  KernelCase kernel(
      {"scaled_linear_wgrad",
       to_attributes(ScaledLinearWgradAttributes{.block = block, .accumulate = accumulate}),
       {read(DType::kF8E4M3, {in, rows}), read(layout.dtype(), layout.shape({in, rows})),
        read(DType::kF8E5M2, {out, rows}), read(layout.dtype(), layout.shape({out, rows})),
        gradient(accumulate, DType::kBF16, {out, in})}});
  TestRandom random(19);
  for (const size_t scales : {1, 3}) {
    std::vector<double> powers(static_cast<size_t>(kernel.num_elems(scales)));
    std::ranges::generate(powers,
                          [&] { return std::ldexp(1.0, -static_cast<int>(random.below(3))); });
    kernel.set(scales, powers);
  }
  return kernel;
}

/// Of all ops that write bf16 main grads: overwriting and adding, awkward shapes, and shapes that
/// GPUs have fast kernels for.
inline std::vector<MainGradCase> main_grad_cases() {
  std::vector<MainGradCase> list;
  for (const bool accumulate : {false, true}) {
    for (const auto& [rows, in, out] :
         {std::array<int64_t, 3>{1, 1, 1}, {13, 31, 17}, {67, 48, 101}, {1030, 264, 136}}) {
      list.push_back({narrow_wgrad_case(rows, in, out, false, accumulate), {2}, rows});
      list.push_back({narrow_wgrad_case(rows, in, out, true, accumulate), {2, 3}, rows});
    }
    list.push_back({narrow_slice_case(accumulate), {2, 3}, 37});
    std::vector<Groups> groups = awkward_groups();
    groups.push_back({{0, 128, 0, 1, 385, 127, 0}, 264, 200, 70});
    for (const Groups& g : groups) {
      list.push_back(
          {with_dtypes(grouped_wgrad_case(DType::kBF16, g, accumulate), {3}, DType::kBF16),
           {3},
           g.rows()});
    }
    list.push_back({narrow_table_case(200, 33, 50, 0, 50, accumulate), {2}, 200});
    list.push_back({narrow_table_case(1, 8, 5, 0, 5, accumulate), {2}, 1});
    list.push_back({narrow_table_case(777, 1032, 300, 100, 150, accumulate), {2}, 777});
    for (const int64_t block : {0, 32, 128}) {
      list.push_back({narrow_scaled_case(300, 48, 17, block, accumulate), {4}, 300, true});
      list.push_back({narrow_scaled_case(512, 256, 128, block, accumulate), {4}, 512, true});
    }
    const Groups blocks{.counts = {0, 200, 1, 128}, .in = 128, .out = 256, .unused_rows = 3};
    list.push_back({with_dtypes(scaled_grouped_wgrad_case(blocks, accumulate, {}, DType::kF8E4M3),
                                {5}, DType::kBF16),
                    {5},
                    300 * blocks.rows(),  // elements and scales are larger than 1
                    true});
    for (const DType from : {DType::kF32, DType::kBF16}) {
      if (accumulate) {
        list.push_back(
            {KernelCase({"accumulate", {}, {read(from, {4099}), read_write(DType::kBF16, {4099})}}),
             {1},
             1});
      }
    }
  }
  return list;
}

/// Scalars of a step, and their last one for the rounding of bf16 moments.
inline void set_step(KernelCase& kernel) {
  kernel.set(1, {0.75});
  std::vector<double> scalars{0.01, 0.1, 0.05, 3};
  scalars.resize(static_cast<size_t>(kernel.num_elems(2)));
  kernel.set(2, scalars);
}

/// Ops that read gradients, in bf16, with fp32 and bf16 moments, and the operands of both types.
inline std::vector<MainGradCase> gradient_reader_cases() {
  constexpr int64_t kCount = 4103;
  std::vector<MainGradCase> list;
  const auto add = [&](std::string op, std::vector<Attribute> attributes, int num_moments,
                       DType moments, bool has_param) {
    const bool is_narrow = num_moments > 0 && moments == DType::kBF16;
    std::vector<OperandSpec> operands = {read(DType::kBF16, {kCount}), read(DType::kF32, {1}),
                                         read(DType::kF32, {is_narrow ? 4 : 3}),
                                         read_write(DType::kF32, {kCount})};
    for (int i = 0; i < num_moments; ++i) {
      operands.push_back(read_write(moments, {kCount}));
    }
    if (has_param) {
      operands.push_back(write(DType::kBF16, {kCount}));
    }
    KernelCase kernel({std::move(op), std::move(attributes), operands});
    set_step(kernel);
    if (num_moments == 2) {  // a mean of squares
      std::vector<double> squares = kernel.values(5);
      std::ranges::transform(squares, squares.begin(), [](double value) { return value * value; });
      kernel.set(5, squares);
    }
    list.push_back({std::move(kernel), {0}});
  };
  for (const DType moments : {DType::kF32, DType::kBF16}) {
    for (const bool has_param : {false, true}) {
      add("adamw", to_attributes(AdamwAttributes{.weight_decay = 0.1, .has_param = has_param}), 2,
          moments, has_param);
      add("lion", to_attributes(LionAttributes{.weight_decay = 0.1, .has_param = has_param}), 1,
          moments, has_param);
      add("sgd", to_attributes(SgdAttributes{.momentum = 0.9, .has_param = has_param}), 1, moments,
          has_param);
      add("sgd", to_attributes(SgdAttributes{.momentum = 0.0, .has_param = has_param}), 0, moments,
          has_param);
    }
    for (const DType update : {DType::kF32, DType::kBF16}) {
      KernelCase kernel({"muon_mean",
                         to_attributes(MuonMeanAttributes{.momentum = 0.95, .nesterov = true}),
                         {read(DType::kBF16, {kCount}), read(DType::kF32, {1}),
                          read(DType::kF32, {moments == DType::kBF16 ? 4 : 3}),
                          read_write(moments, {kCount}), write(update, {kCount})}});
      set_step(kernel);
      list.push_back({std::move(kernel), {0}});
    }
  }
  KernelCase balance({"balance_update",
                      to_attributes(BalanceUpdateAttributes{.rate = 0.001, .has_param = true}),
                      {read(DType::kBF16, {300}), read(DType::kF32, {1}),
                       read_write(DType::kF32, {300}), write(DType::kBF16, {300})}});
  list.push_back({std::move(balance), {0}});
  KernelCase norm({"squared_norm", {}, {read(DType::kBF16, {70001}), write(DType::kF64, {1})}});
  list.push_back({std::move(norm), {0}});
  return list;
}

/// Of a case of `gradient_reader_cases` and the same with fp32 gradients, after both have run: all
/// results have the same bits. Sums of squares are in f64 in another order.
inline void expect_same_results(const MainGradCase& narrow, const KernelCase& wide) {
  const OpSpec& spec = narrow.kernel.spec();
  for (size_t i = 1; i < spec.operands.size(); ++i) {
    if (spec.op == kSquaredNormOp.name) {
      expect_close(narrow.kernel.values(i), wide.values(i), {.relative = 1e-13}, narrow.name());
    } else {
      EXPECT_TRUE(narrow.kernel.bytes(i) == wide.bytes(i)) << narrow.name() << ": operand " << i;
    }
  }
}

}  // namespace braid
