#pragma once

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/activation.h"
#include "ops/adapter.h"
#include "ops/attention.h"
#include "ops/attention_step.h"
#include "ops/cached_attention.h"
#include "ops/cached_mamba2.h"
#include "ops/collectives.h"
#include "ops/columns.h"
#include "ops/context_attention.h"
#include "ops/context_layout.h"
#include "ops/context_sections.h"
#include "ops/cross_entropy.h"
#include "ops/drop_rows.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/expert_exchange.h"
#include "ops/expert_rows.h"
#include "ops/grouped_linear.h"
#include "ops/head_norm.h"
#include "ops/host_slots.h"
#include "ops/linear.h"
#include "ops/magnitude.h"
#include "ops/mamba2.h"
#include "ops/mamba2_section.h"
#include "ops/mla_qkv.h"
#include "ops/momentum.h"
#include "ops/muon.h"
#include "ops/norm.h"
#include "ops/operand_checker.h"
#include "ops/optimizer.h"
#include "ops/preference.h"
#include "ops/quantize.h"
#include "ops/quantize_gathered.h"
#include "ops/quantize_grouped.h"
#include "ops/quantize_part.h"
#include "ops/rope.h"
#include "ops/router.h"
#include "ops/row_blocks.h"
#include "ops/scaled_grouped_linear.h"
#include "ops/scaled_linear.h"
#include "ops/specs.h"
#include "ops/transpose_grouped.h"

namespace braid {

/// A size that no other operand and no attribute decides: `axis` of operand `operand`.
struct FreeSize {
  size_t operand;
  int axis;
  friend bool operator==(const FreeSize&, const FreeSize&) = default;
};

/// One form that an op's header declares.
struct DeclaredForm {
  OpSpec spec;
  std::vector<std::string> names;  ///< of the operands, as in the header
  std::vector<FreeSize> free_sizes = {};
  bool any_type = false;    ///< the only operand may have any dtype and shape
  bool any_rank = false;    ///< the only operand may have any number of dimensions
  bool any_number = false;  ///< there may be more operands before the last
};

/// The declared forms of all ops on data of one floating-point dtype; sizes are all different.
class DeclaredForms {
 public:
  explicit DeclaredForms(DType data) : data_(data), wide_(accumulator_dtype(data)) {
    add_linear();
    add_norm();
    add_head_norm();
    add_router();
    add_attention();
    add_latent_attention();
    add_mamba();
    add_mamba_sections();
    add_caches();
    add_attention_steps();
    add_context_layout();
    add_activation();
    add_embedding();
    add_loss();
    add_elementwise();
    add_blocks();
    add_optimizer();
    add_communication();
    add_offload();
    add_experts();
  }

  const std::vector<DeclaredForm>& list() const { return list_; }

 private:
  static constexpr int64_t kRows = 24;
  static constexpr int64_t kBlockRows = 14;
  static constexpr int64_t kSequence = 12;
  static constexpr int64_t kWidth = 10;
  static constexpr int64_t kOut = 14;
  static constexpr int64_t kVocabulary = 50;

  void add(DeclaredForm form) { list_.push_back(std::move(form)); }

  OperandSpec grad(bool accumulate, Shape shape) const {
    return accumulate ? read_write(wide_, shape) : write(wide_, shape);
  }

  void add_linear() {
    const OperandSpec x = read(data_, {kRows, kWidth});
    const OperandSpec w = read(data_, {kOut, kWidth});
    const OperandSpec dy = read(data_, {kRows, kOut});
    add({{"linear", to_attributes(LinearAttributes{}), {x, w, write(data_, {kRows, kOut})}},
         {"x", "w", "y"}});
    for (const bool adds_bias : {false, true}) {
      add({{"linear",
            to_attributes(LinearAttributes{.has_bias = true, .adds_bias = adds_bias}),
            {x, w, read(data_, {kOut}), write(data_, {kRows, kOut})}},
           {"x", "w", "bias", "y"}});
    }
    for (const bool accumulate : {false, true}) {
      OperandSpec dx = write(data_, {kRows, kWidth});
      dx.access = accumulate_access(accumulate);
      add({{"linear_dgrad",
            to_attributes(LinearDgradAttributes{.accumulate = accumulate}),
            {dy, w, dx}},
           {"dy", "w", "dx"}});
      const OperandSpec dw = grad(accumulate, {kOut, kWidth});
      add({{"linear_wgrad",
            to_attributes(LinearWgradAttributes{.has_bias = false, .accumulate = accumulate}),
            {x, dy, dw}},
           {"x", "dy", "dw"}});
      add({{"linear_wgrad",
            to_attributes(LinearWgradAttributes{.has_bias = true, .accumulate = accumulate}),
            {x, dy, dw, grad(accumulate, {kOut})}},
           {"x", "dy", "dw", "db"}});
      const FeatureSlice slice{.first_feature = 1, .end_feature = kOut};
      add({{"linear_wgrad",
            to_attributes(LinearWgradAttributes{
                .has_bias = false, .accumulate = accumulate, .features = slice}),
            {x, dy, grad(accumulate, {kOut - 1, kWidth})}},
           {"x", "dy", "dw"},
           {{1, 1}}});
    }
    add_linear_swiglu();
    if (data_ != DType::kF64) {
      add_quantize();
      add_quantize_of_sources();
      add_parts();
    }
    if (data_ == DType::kF32 || data_ == DType::kBF16) {
      add_scaled_linear();
      add_scaled_grouped_linear();
      add_magnitudes();
    }
  }

  void add_quantize() {
    const Shape row{kRows, kWidth};
    const Shape column{kWidth, kRows};
    for (const char* const op : {"quantize", "quantize_weight"}) {
      for (const QuantizeAttributes& attributes :
           {QuantizeAttributes{}, QuantizeAttributes{.square = true},
            QuantizeAttributes{.block = 32, .square = true}, QuantizeAttributes{.block = 0},
            QuantizeAttributes{.block = 32, .row = false},
            QuantizeAttributes{.column = false, .has_bias = true},
            QuantizeAttributes{.has_bias = true, .accumulate = false},
            QuantizeAttributes{.watch = {true}},
            QuantizeAttributes{.has_bias = true, .watch = {true}}}) {
        const ScaleLayout scales = attributes.scales();
        DeclaredForm form{{op, to_attributes(attributes), {read(data_, row)}}, {"x"}};
        const auto add_copy = [&](const std::string& name, const Shape& shape) {
          form.spec.operands.push_back(write(DType::kF8E4M3, shape));
          form.spec.operands.push_back(write(scales.dtype(), scales.shape(shape)));
          form.names.push_back(name);
          form.names.push_back(name + "_scales");
        };
        if (attributes.row) {
          add_copy("row", row);
        }
        if (attributes.column) {
          add_copy("column", column);
        }
        if (attributes.has_bias) {
          form.spec.operands.push_back(grad(attributes.accumulate, {kWidth}));
          form.names.emplace_back("db");
        }
        add_tally(attributes.watch, form);
        add(std::move(form));
      }
    }
  }

  /// Copies of the results of ops: of one and of two inputs, and of one that also writes others.
  void add_quantize_of_sources() {
    const OperandSpec x = read(data_, {kRows, kWidth});
    const OperandSpec w = read(data_, {kWidth});
    add_quantize_of({"gelu"}, {x}, {"x"});
    add_quantize_of({"gelu_backward"}, {x, x}, {"x", "dy"});
    add_quantize_of({"add_rmsnorm", to_attributes(NormAttributes{})},
                    {x, x, w, write(data_, x.shape), write(DType::kF32, {kRows})},
                    {"x", "residual", "w", "sum", "rstd"});
  }

  void add_quantize_of(const SourceAttribute& source, std::vector<OperandSpec> operands,
                       std::vector<std::string> names) {
    const Shape x{kRows, kWidth};
    const QuantizeAttributes attributes{.column = false, .source = source};
    DeclaredForm form{{"quantize", to_attributes(attributes), std::move(operands)},
                      std::move(names)};
    form.spec.operands.push_back(write(DType::kF8E4M3, x));
    form.spec.operands.push_back(write(DType::kF32, attributes.scales().shape(x)));
    form.names.insert(form.names.end(), {"row", "row_scales"});
    add(std::move(form));
  }

  static void add_tally(const WatchAttribute& watch, DeclaredForm& form) {
    if (watch.watch) {
      form.spec.operands.push_back(tally_spec(Fp8Tally::kSize));
      form.names.emplace_back("tally");
    }
  }

  void add_parts() {
    for (const int64_t block : {0, 128}) {
      QuantizePartAttributes part{.rows = kRows, .columns = kWidth, .block = block, .begin = 3};
      const auto attributes = to_attributes(part);
      const Shape blocks = magnitude_shape(kRows, kWidth, block);
      add({{"part_magnitudes", attributes, {read(data_, {37}), write(DType::kI32, blocks)}},
           {"x", "magnitudes"},
           {{0, 0}}});
      if (data_ == DType::kF32) {
        QuantizePartAttributes main = part;
        main.rounds = {true};
        add({{"part_magnitudes",
              to_attributes(main),
              {read(data_, {37}), write(DType::kI32, blocks)}},
             {"x", "magnitudes"},
             {{0, 0}}});
      }
      add({{"quantize_part",
            attributes,
            {read(data_, {37}), read(DType::kI32, blocks), write(DType::kF8E4M3, {37})}},
           {"x", "magnitudes", "part"}});
      part.watch = {true};
      DeclaredForm watched{
          {"quantize_part",
           to_attributes(part),
           {read(data_, {37}), read(DType::kI32, blocks), write(DType::kF8E4M3, {37})}},
          {"x", "magnitudes", "part"}};
      add_tally(part.watch, watched);
      add(std::move(watched));
    }
  }

  void add_magnitudes() {
    constexpr int64_t kLong = 300;
    const ScaleLayout scales = ScaleLayout::of_weight(128);
    add({{"scales_of_magnitudes",
          to_attributes(MagnitudeScalesAttributes{.rows = kLong, .columns = kOut}),
          {read(DType::kI32, magnitude_shape(kLong, kOut, 128)),
           write(DType::kF32, scales.shape({kLong, kOut})),
           write(DType::kF32, scales.shape({kOut, kLong}))}},
         {"magnitudes", "row_scales", "column_scales"}});
    add({{"transpose",
          {},
          {read(DType::kF8E4M3, {kRows, kWidth}), write(DType::kF8E4M3, {kWidth, kRows})}},
         {"x", "y"}});
    add({.spec = {"all_reduce_max",
                  to_attributes(CollectiveAttributes{.group = 1}),
                  {read_write(DType::kI32, {6, 5})}},
         .names = {"x"},
         .free_sizes = {{0, 0}, {0, 1}},
         .any_rank = true});
    const OperandSpec block = read(DType::kI32, {6, 5});
    add({{"largest_of_blocks", {}, {block, block, write(DType::kI32, {6, 5})}}, {"x", "x", "y"}});
    list_.back().any_number = true;
  }

  /// Both factors with their scales, and then `others`.
  static std::vector<OperandSpec> factors(int64_t block, const Shape& a, const Shape& b,
                                          bool is_weight, std::vector<OperandSpec> others) {
    const ScaleLayout of_a{.block = block};
    const ScaleLayout of_b{.block = block, .square = is_weight && block == 128};
    std::vector<OperandSpec> operands{read(DType::kF8E4M3, a), read(of_a.dtype(), of_a.shape(a)),
                                      read(DType::kF8E5M2, b), read(of_b.dtype(), of_b.shape(b))};
    operands.insert(operands.end(), others.begin(), others.end());
    return operands;
  }

  void add_scaled_linear() {
    for (const int64_t block : {0, 32, 128}) {
      const Shape x{kRows, kWidth};
      const Shape w{kOut, kWidth};
      const OperandSpec y = write(data_, {kRows, kOut});
      add({{"scaled_linear", to_attributes(ScaledLinearAttributes{.block = block}),
            factors(block, x, w, true, {y})},
           {"x", "x_scales", "w", "w_scales", "y"}});
      add({{"scaled_linear",
            to_attributes(ScaledLinearAttributes{.block = block, .has_bias = true}),
            factors(block, x, w, true, {read(data_, {kOut}), y})},
           {"x", "x_scales", "w", "w_scales", "bias", "y"}});
      add({{"scaled_linear_dgrad", to_attributes(ScaledLinearDgradAttributes{.block = block}),
            factors(block, {kRows, kOut}, {kWidth, kOut}, true, {write(data_, x)})},
           {"dy", "dy_scales", "w", "w_scales", "dx"}});
      for (const bool accumulate : {false, true}) {
        add({{"scaled_linear_wgrad",
              to_attributes(ScaledLinearWgradAttributes{.block = block, .accumulate = accumulate}),
              factors(block, {kWidth, kRows}, {kOut, kRows}, false, {grad(accumulate, w)})},
             {"x", "x_scales", "dy", "dy_scales", "dw"}});
      }
    }
  }

  /// Of 3 experts with 256 features of depth 128 each, and of the copies that they read.
  void add_scaled_grouped_linear() {
    constexpr int64_t kExperts = 3;
    const Shape x{kRows, 128};
    const Shape y{kRows, 256};
    const Shape w{kExperts * y[1], x[1]};
    const OperandSpec offsets = read(DType::kI32, {kExperts + 1});
    const auto add_product = [&](const char* op, std::vector<Attribute> attributes,
                                 std::vector<OperandSpec> operands, OperandSpec result,
                                 std::vector<std::string> names) {
      operands.push_back(offsets);
      operands.push_back(result);
      add({{op, std::move(attributes), std::move(operands)}, std::move(names)});
    };
    add_product("scaled_grouped_linear", to_attributes(ScaledGroupedLinearAttributes{}),
                factors(128, x, w, true, {}), write(data_, y),
                {"x", "x_scales", "w", "w_scales", "offsets", "y"});
    add_product("scaled_grouped_linear_dgrad", to_attributes(ScaledGroupedLinearAttributes{}),
                factors(128, y, {w[1], w[0]}, true, {}), write(data_, x),
                {"dy", "dy_scales", "w", "w_scales", "offsets", "dx"});
    const int64_t columns = GroupedColumns::width(kRows, kExperts);
    for (const bool accumulate : {false, true}) {
      add_product(
          "scaled_grouped_linear_wgrad",
          to_attributes(ScaledGroupedWgradAttributes{.rows = kRows, .accumulate = accumulate}),
          factors(128, {x[1], columns}, {y[1], columns}, false, {}), grad(accumulate, w),
          {"x", "x_scales", "dy", "dy_scales", "offsets", "dw"});
    }
    for (const auto& [row, column, watch] :
         {std::tuple{true, true, false}, {true, false, true}, {false, true, false}}) {
      add_quantize_grouped({.row = row, .column = column, .watch = {watch}}, offsets);
    }
    add_sent_rows(offsets);
  }

  /// FP8 rows that travel: 24 of 8 tokens.
  void add_sent_rows(const OperandSpec& offsets) {
    const Shape x{kRows, 128};
    const ScaleLayout scales = QuantizeGroupedAttributes::scales();
    for (const bool drops : {false, true}) {
      DeclaredForm form{
          {"quantize_gathered",
           to_attributes(QuantizeGatheredAttributes{.dropped = {drops}, .watch = {drops}}),
           {read(data_, {8, 128}), read(DType::kI32, {kRows}), read(DType::kI32, {8, 3})}},
          {"x", "pair_of", "row_of"}};
      if (drops) {
        form.spec.operands.push_back(offsets);
        form.names.emplace_back("offsets");
        form.free_sizes.push_back({3, 0});
      }
      form.spec.operands.push_back(write(DType::kF8E4M3, x));
      form.spec.operands.push_back(write(DType::kF32, scales_beside_rows(x)));
      form.names.insert(form.names.end(), {"y", "y_scales"});
      add_tally({drops}, form);
      add(std::move(form));
    }
    const std::vector<OperandSpec> rows{read(DType::kF8E4M3, x),
                                        read(DType::kF32, scales_beside_rows(x)), offsets,
                                        write(DType::kF32, scales.shape(x))};
    const std::vector<std::string> names{"x", "x_scales", "offsets", "row_scales"};
    add({{"transpose_grouped", to_attributes(TransposeGroupedAttributes{.column = false}), rows},
         names,
         {{2, 0}}});
    for (const bool watch : {false, true}) {
      DeclaredForm form{
          {"transpose_grouped", to_attributes(TransposeGroupedAttributes{.watch = {watch}}), rows},
          names};
      const Shape column{128, GroupedColumns::width(kRows, offsets.shape[0] - 1)};
      form.spec.operands.push_back(write(DType::kF8E4M3, column));
      form.spec.operands.push_back(write(DType::kF32, scales.shape(column)));
      form.names.insert(form.names.end(), {"column", "column_scales"});
      add_tally({watch}, form);
      add(std::move(form));
    }
    add_dispatch_of_fp8_rows();
  }

  void add_quantize_grouped(const QuantizeGroupedAttributes& attributes,
                            const OperandSpec& offsets) {
    const Shape x{kRows, kWidth};
    DeclaredForm form{{"quantize_grouped", to_attributes(attributes), {read(data_, x), offsets}},
                      {"x", "offsets"}};
    const auto add_copy = [&](const std::string& name, const Shape& shape) {
      form.spec.operands.push_back(write(DType::kF8E4M3, shape));
      form.spec.operands.push_back(write(DType::kF32, attributes.scales().shape(shape)));
      form.names.push_back(name);
      form.names.push_back(name + "_scales");
    };
    if (attributes.row) {
      add_copy("row", x);
    }
    if (attributes.column) {
      add_copy("column", {kWidth, GroupedColumns::width(kRows, offsets.shape[0] - 1)});
    } else {
      form.free_sizes.push_back({1, 0});
    }
    if (!attributes.row) {
      form.free_sizes.push_back({0, 0});  // as many columns
    }
    add_tally(attributes.watch, form);
    add(std::move(form));
  }

  /// The same between 2 ranks with 3 experts each, which have room for 40.
  void add_dispatch_of_fp8_rows() {
    const OperandSpec offsets = read(DType::kI32, {2 * 7});
    const OperandSpec fp8 = read(DType::kF8E4M3, {kRows, 128});
    const OperandSpec fp8_held = write(DType::kF8E4M3, {40, 128});
    const auto scaled = [](bool has_weights) {
      return to_attributes(
          ExpertExchangeAttributes{.experts = 6, .has_weights = has_weights, .scales = {true}});
    };
    add({{"dispatch_rows",
          scaled(true),
          {fp8, read(DType::kF32, {kRows}), read(DType::kF32, {kRows, 1}), offsets, fp8_held,
           write(DType::kF32, {40}), write(DType::kF32, {40, 1}), write(DType::kI32, {4})}},
         {"x", "weights", "scales", "offsets_of_all", "y", "y_weights", "y_scales", "offsets"}});
    add({{"dispatch_rows",
          scaled(false),
          {fp8, read(DType::kF32, {kRows, 1}), offsets, fp8_held, write(DType::kF32, {40, 1})}},
         {"x", "scales", "offsets_of_all", "y", "y_scales"}});
  }

  void add_linear_swiglu() {
    const OperandSpec gate_up = read(data_, {kRows, kOut});
    add({{"linear_swiglu",
          {},
          {read(data_, {kRows, kWidth}), read(data_, {kOut, kWidth}), write(data_, {kRows, kOut}),
           write(data_, {kRows, kOut / 2})}},
         {"x", "w", "gate_up", "y"}});
    add({{"linear_dgrad_swiglu_backward",
          {},
          {read(data_, {kRows, kWidth}), read(data_, {kWidth, kOut / 2}), gate_up,
           write(data_, {kRows, kOut})}},
         {"dy", "w", "gate_up", "d_gate_up"}});
  }

  void add_norm() {
    const OperandSpec x = read(data_, {kRows, kWidth});
    const OperandSpec w = read(data_, {kWidth});
    const OperandSpec y = write(data_, {kRows, kWidth});
    const OperandSpec stat = write(wide_, {kRows});
    const std::vector<Attribute> epsilon = to_attributes(NormAttributes{});
    add({{"rmsnorm", epsilon, {x, w, y, stat}}, {"x", "w", "y", "rstd"}});
    add({{"add_rmsnorm", epsilon, {x, x, w, y, y, stat}},
         {"x", "residual", "w", "sum", "y", "rstd"}});
    add({{"layernorm", epsilon, {x, w, w, y, stat, stat}}, {"x", "w", "b", "y", "mean", "rstd"}});
    add({{"add_layernorm", epsilon, {x, x, w, w, y, y, stat, stat}},
         {"x", "residual", "w", "b", "sum", "y", "mean", "rstd"}});
    for (const bool has_d_sum : {false, true}) {
      for (const bool accumulate : {false, true}) {
        add_norm_backward({.has_d_sum = has_d_sum, .accumulate = accumulate});
      }
    }
  }

  void add_norm_backward(const NormBackwardAttributes& attributes) {
    const OperandSpec x = read(data_, {kRows, kWidth});
    const OperandSpec w = read(data_, {kWidth});
    const OperandSpec stat = read(wide_, {kRows});
    const OperandSpec dw = grad(attributes.accumulate, {kWidth});
    DeclaredForm rms{{"rmsnorm_backward", to_attributes(attributes), {x, w, stat, x}},
                     {"x", "w", "rstd", "dy"}};
    DeclaredForm layer{{"layernorm_backward", to_attributes(attributes), {x, w, stat, stat, x}},
                       {"x", "w", "mean", "rstd", "dy"}};
    for (DeclaredForm* form : {&rms, &layer}) {
      if (attributes.has_d_sum) {
        form->spec.operands.push_back(x);
        form->names.push_back("d_sum");
      }
      form->spec.operands.push_back(write(data_, {kRows, kWidth}));
      form->names.push_back("dx");
      form->spec.operands.push_back(dw);
      form->names.push_back("dw");
    }
    layer.spec.operands.push_back(dw);
    layer.names.push_back("db");
    add(rms);
    add(layer);
  }

  void add_head_norm() {
    const OperandSpec qkv = read(data_, {kRows, (3 + 2 * 2) * 4});
    for (const bool whole : {false, true}) {
      const OperandSpec query_weight = read(data_, {whole ? 12 : 4});
      const OperandSpec key_weight = read(data_, {whole ? 8 : 4});
      const Shape norms{kRows, whole ? 2 : 5};
      add({{"head_norm",
            to_attributes(
                HeadNormAttributes{.heads = 3, .kv_heads = 2, .head_size = 4, .whole = whole}),
            {qkv, query_weight, key_weight, write(data_, qkv.shape), write(wide_, norms)}},
           {"qkv", "query_weight", "key_weight", "y", "rstd"}});
      for (const bool accumulate : {false, true}) {
        add({{"head_norm_backward",
              to_attributes(HeadNormBackwardAttributes{.heads = 3,
                                                       .kv_heads = 2,
                                                       .head_size = 4,
                                                       .whole = whole,
                                                       .accumulate = accumulate}),
              {qkv, query_weight, key_weight, read(wide_, norms), qkv, write(data_, qkv.shape),
               grad(accumulate, query_weight.shape), grad(accumulate, key_weight.shape)}},
             {"qkv", "query_weight", "key_weight", "rstd", "dy", "d_qkv", "d_query_weight",
              "d_key_weight"}});
      }
    }
  }

  void add_router() {
    const OperandSpec x = read(data_, {kRows, kWidth});
    const OperandSpec w = read(data_, {kOut, kWidth});
    const OperandSpec d_logits = read(wide_, {kRows, kOut});
    const OperandSpec logits = write(wide_, {kRows, kOut});
    add({{"router_linear", {}, {x, w, logits}}, {"x", "w", "logits"}});
    add({{"router_linear",
          to_attributes(RouterLinearAttributes{.bias = {.has_logit_bias = true}}),
          {x, w, read(wide_, {kOut}), logits}},
         {"x", "w", "logit_bias", "logits"}});
    for (const bool accumulate : {false, true}) {
      const auto attributes = to_attributes(RouterGradAttributes{.accumulate = accumulate});
      OperandSpec dx = write(data_, x.shape);
      dx.access = accumulate_access(accumulate);
      add({{"router_linear_dgrad", attributes, {d_logits, w, dx}}, {"d_logits", "w", "dx"}});
      add({{"router_linear_wgrad", attributes, {x, d_logits, grad(accumulate, w.shape)}},
           {"x", "d_logits", "dw"}});
      add({{"router_linear_wgrad",
            to_attributes(
                RouterWgradAttributes{.accumulate = accumulate, .bias = {.has_logit_bias = true}}),
            {x, d_logits, grad(accumulate, w.shape), grad(accumulate, {kOut})}},
           {"x", "d_logits", "dw", "d_logit_bias"}});
    }
    add_route();
    const std::vector<OperandSpec> inputs{d_logits, read(DType::kF32, {kOut}), read(wide_, {1})};
    for (const bool adds : {false, true}) {
      const auto attributes =
          to_attributes(RouterLossAttributes{.balance = 0.01, .z = 0.001, .adds = adds});
      add({{"router_losses", attributes, {inputs[0], inputs[1], inputs[2], write(wide_, {2})}},
           {"logits", "counts", "loss_scale", "losses"},
           {{0, 0}}});
      add({{"router_losses_backward",
            attributes,
            {inputs[0], inputs[1], inputs[2], write(wide_, {kRows, kOut})}},
           {"logits", "counts", "loss_scale", "d_logits"}});
    }
    add_sequence_losses(d_logits);
  }

  void add_sequence_losses(const OperandSpec& logits) {
    const SequenceRows rows{.sequence = kRows, .first = 2};
    const Shape counts{2, kOut};
    add({{"count_by_sequence",
          to_attributes(rows),
          {read(DType::kI32, {kRows, 3}), write(DType::kF32, counts)}},
         {"experts", "counts"},
         {{0, 0}, {0, 1}, {1, 0}, {1, 1}}});
    const auto attributes = to_attributes(RouterLossAttributes{.balance = 0.01, .rows = rows});
    const OperandSpec scale = read(wide_, {1});
    add({{"router_losses",
          attributes,
          {logits, read(DType::kF32, counts), scale, write(wide_, {2})}},
         {"logits", "counts", "loss_scale", "losses"},
         {{0, 0}, {1, 0}}});
    add({{"router_losses_backward",
          attributes,
          {logits, read(DType::kF32, counts), scale, write(wide_, {kRows, kOut})}},
         {"logits", "counts", "loss_scale", "d_logits"},
         {{1, 0}}});
  }

  void add_route() {
    const OperandSpec logits = read(wide_, {kRows, kOut});
    const Shape choice{kRows, 3};
    const RouterRule all{.per_token = 3};
    const RouterRule in_groups{.per_token = 3, .sigmoid = true, .groups = 7, .kept_groups = 2};
    add({{"route",
          to_attributes(RouteAttributes{.rule = all}),
          {logits, write(wide_, choice), write(DType::kI32, choice)}},
         {"logits", "weights", "experts"},
         {{0, 1}}});
    add({{"route",
          to_attributes(RouteAttributes{.rule = in_groups, .has_bias = true}),
          {logits, read(wide_, {kOut}), write(wide_, choice), write(DType::kI32, choice)}},
         {"logits", "bias", "weights", "experts"}});
    add({{"route",
          to_attributes(RouteAttributes{.rule = all, .choice = {.forced = true, .first = 2}}),
          {logits, write(wide_, choice), write(DType::kI32, choice)}},
         {"logits", "weights", "experts"},
         {{0, 1}}});
    add({{"route",
          to_attributes(
              RouteAttributes{.rule = in_groups, .has_bias = true, .source = {.given = true}}),
          {logits, read(wide_, {kOut}), read(DType::kI32, choice), write(wide_, choice),
           write(DType::kI32, choice)}},
         {"logits", "bias", "given", "weights", "experts"}});
    for (const RouterRule& rule : {all, in_groups}) {
      add({{"route_backward",
            to_attributes(rule),
            {logits, read(wide_, choice), read(DType::kI32, choice), read(wide_, choice),
             write(wide_, logits.shape)}},
           {"logits", "weights", "experts", "d_weights", "d_logits"}});
    }
    for (const bool accumulate : {false, true}) {
      add({{"count_choices",
            to_attributes(RouterGradAttributes{.accumulate = accumulate}),
            {read(DType::kI32, choice), grad(accumulate, {kOut})}},
           {"experts", "d_bias"},
           {{0, 0}, {0, 1}, {1, 0}}});
    }
  }

  void add_attention() {
    constexpr int64_t kHeads = 6;
    constexpr int64_t kKvHeads = 2;
    constexpr int64_t kHeadSize = 4;
    const Shape qkv{kRows, (kHeads + 2 * kKvHeads) * kHeadSize};
    const Shape out{kRows, kHeads * kHeadSize};
    const Shape lse{kRows / kSequence, kHeads, kSequence};
    const std::vector<Attribute> attributes = to_attributes(AttentionAttributes{
        .heads = kHeads, .kv_heads = kKvHeads, .head_size = kHeadSize, .sequence = kSequence});
    add({{"rope",
          to_attributes(RopeAttributes{.heads = kHeads,
                                       .kv_heads = kKvHeads,
                                       .head_size = kHeadSize,
                                       .sequence = kSequence}),
          {read(data_, qkv), write(data_, qkv)}},
         {"qkv", "out"}});
    add({{"rope",
          to_attributes(RopeAttributes{.heads = kHeads,
                                       .kv_heads = kKvHeads,
                                       .head_size = kHeadSize,
                                       .sequence = kSequence,
                                       .part = {2}}),
          {read(data_, qkv), write(data_, qkv)}},
         {"qkv", "out"}});
    add({{"attention", attributes, {read(data_, qkv), write(data_, out), write(wide_, lse)}},
         {"qkv", "out", "lse"}});
    add({{"attention_backward",
          attributes,
          {read(data_, qkv), read(data_, out), read(wide_, lse), read(data_, out),
           write(data_, qkv)}},
         {"qkv", "out", "lse", "d_out", "d_qkv"}});
    const std::vector<Attribute> in_windows =
        to_attributes(AttentionAttributes{.heads = kHeads,
                                          .kv_heads = kKvHeads,
                                          .head_size = kHeadSize,
                                          .sequence = kSequence,
                                          .window = {3}});
    add({{"attention", in_windows, {read(data_, qkv), write(data_, out), write(wide_, lse)}},
         {"qkv", "out", "lse"}});
    add({{"attention_backward",
          in_windows,
          {read(data_, qkv), read(data_, out), read(wide_, lse), read(data_, out),
           write(data_, qkv)}},
         {"qkv", "out", "lse", "d_out", "d_qkv"}});
    const OperandSpec starts = read(DType::kI32, {kRows});
    add({{"rope",
          to_attributes(RopeAttributes{.heads = kHeads,
                                       .kv_heads = kKvHeads,
                                       .head_size = kHeadSize,
                                       .sequence = kSequence,
                                       .documents = {.documents = true}}),
          {read(data_, qkv), starts, write(data_, qkv)}},
         {"qkv", "starts", "out"}});
    const std::vector<Attribute> of_documents =
        to_attributes(AttentionAttributes{.heads = kHeads,
                                          .kv_heads = kKvHeads,
                                          .head_size = kHeadSize,
                                          .sequence = kSequence,
                                          .documents = {.documents = true}});
    add({{"attention",
          of_documents,
          {read(data_, qkv), starts, write(data_, out), write(wide_, lse)}},
         {"qkv", "starts", "out", "lse"}});
    add({{"attention_backward",
          of_documents,
          {read(data_, qkv), read(data_, out), read(wide_, lse), read(data_, out), starts,
           write(data_, qkv)}},
         {"qkv", "out", "lse", "d_out", "starts", "d_qkv"}});
  }

  void add_latent_attention() {
    const OperandSpec qkv = write(data_, {kRows, 3 * 2 * 11});
    const std::vector<Attribute> attributes = to_attributes(MlaAttributes{
        .heads = 2, .plain = 3, .rotated = 4, .value = 5, .head_size = 11, .sequence = kSequence});
    const Shape q{kRows, 14};
    const Shape kv{kRows, 16};
    const Shape k_rope{kRows, 4};
    add({{"mla_qkv", attributes, {read(data_, q), read(data_, kv), read(data_, k_rope), qkv}},
         {"q", "kv", "k_rope", "qkv"}});
    add({{"mla_qkv_backward",
          attributes,
          {read(data_, qkv.shape), write(data_, q), write(data_, kv), write(data_, k_rope)}},
         {"d_qkv", "d_q", "d_kv", "d_k_rope"}});
    const std::vector<Attribute> of_documents =
        to_attributes(MlaAttributes{.heads = 2,
                                    .plain = 3,
                                    .rotated = 4,
                                    .value = 5,
                                    .head_size = 11,
                                    .sequence = kSequence,
                                    .documents = {.documents = true}});
    const OperandSpec starts = read(DType::kI32, {kRows});
    add({{"mla_qkv",
          of_documents,
          {read(data_, q), read(data_, kv), read(data_, k_rope), starts, qkv}},
         {"q", "kv", "k_rope", "starts", "qkv"}});
    add({{"mla_qkv_backward",
          of_documents,
          {read(data_, qkv.shape), starts, write(data_, q), write(data_, kv),
           write(data_, k_rope)}},
         {"d_qkv", "starts", "d_q", "d_kv", "d_k_rope"}});
    const std::vector<Attribute> columns =
        to_attributes(ColumnsAttributes{.runs = 3, .width = 5, .begin = 1, .size = 2});
    add({{"take_columns", columns, {read(data_, {kRows, 15}), write(data_, {kRows, 6})}},
         {"x", "y"}});
    add({{"put_columns", columns, {read(data_, {kRows, 6}), write(data_, {kRows, 15})}},
         {"dy", "dx"}});
  }

  void add_mamba() {
    const Mamba2Attributes a{.sequence = kSequence,
                             .heads = 4,
                             .head_size = 3,
                             .groups = 2,
                             .state = 5,
                             .chunk = 2,
                             .norm_groups = 2};
    const Shape rows{kRows, a.row_elems()};
    const Shape inner{kRows, a.inner()};
    const Shape rstd{kRows, a.norm_groups};
    const std::vector<Shape> weights = {{a.convolved(), 4}, {a.convolved()}, {a.heads},
                                        {a.heads},          {a.heads},       {a.inner()}};
    std::vector<OperandSpec> operands = {read(data_, rows)};
    for (const Shape& weight : weights) {
      operands.push_back(read(data_, weight));
    }
    std::vector<OperandSpec> forward = operands;
    forward.insert(forward.end(), {write(data_, inner), write(wide_, rstd), write(data_, inner)});
    add({.spec = {"mamba2", to_attributes(a), forward},
         .names = {"zxbcdt", "conv_weight", "conv_bias", "dt_bias", "a_log", "skip", "norm_weight",
                   "y", "rstd", "v"},
         .free_sizes = {{1, 1}}});
    operands.insert(operands.end(), {read(data_, inner), read(wide_, rstd), read(data_, inner),
                                     write(data_, rows)});
    for (const bool accumulate : {false, true}) {
      std::vector<OperandSpec> backward = operands;
      for (const Shape& weight : weights) {
        backward.push_back(grad(accumulate, weight));
      }
      add({{"mamba2_backward",
            to_attributes(Mamba2BackwardAttributes{.core = a, .accumulate = accumulate}), backward},
           {"zxbcdt", "conv_weight", "conv_bias", "dt_bias", "a_log", "skip", "norm_weight", "y",
            "rstd", "dv", "d_zxbcdt", "d_conv_weight", "d_conv_bias", "d_dt_bias", "d_a_log",
            "d_skip", "d_norm_weight"}});
    }
  }

  /// Sections of 6 rows, on one of 3 ranks with two of each sequence.
  void add_mamba_sections() {
    constexpr int64_t kSection = 6;
    constexpr int64_t kSections = kRows / kSection;
    constexpr int64_t kBefore = 3;
    const Mamba2Attributes a{.sequence = kSection,
                             .heads = 4,
                             .head_size = 3,
                             .groups = 2,
                             .state = 5,
                             .chunk = 2,
                             .norm_groups = 2};
    const ContextSections context{.ranks = 3, .index = 1, .sections = 2};
    const Shape rows{kRows, a.row_elems()};
    const Shape last{kSections * kBefore, a.convolved()};
    const Shape states{kSections, a.inner() * a.state};
    const Shape summaries{kSections, a.inner() * a.state + a.heads};
    const Mamba2InputsAttributes inputs{.inner = a.inner(), .sequence = kSection, .rows = kBefore};
    add({{"mamba2_last_inputs", to_attributes(inputs), {read(data_, rows), write(data_, last)}},
         {"zxbcdt", "last"},
         {{0, 1}, {1, 1}}});
    add({{"mamba2_add_inputs", to_attributes(inputs), {read(data_, last), read_write(data_, rows)}},
         {"d_last", "d_zxbcdt"},
         {{0, 1}, {1, 1}}});
    const std::vector<Shape> weights = {{a.convolved(), kBefore + 1},
                                        {a.convolved()},
                                        {a.heads},
                                        {a.heads},
                                        {a.heads},
                                        {a.inner()}};
    const auto operands = [&](std::initializer_list<OperandSpec> others) {
      std::vector<OperandSpec> list = {read(data_, rows)};
      for (const Shape& weight : weights) {
        list.push_back(read(data_, weight));
      }
      list.push_back(read(data_, last));
      list.insert(list.end(), others);
      return list;
    };
    const auto names = [](std::initializer_list<std::string> others) {
      std::vector<std::string> list = {"zxbcdt", "conv_weight", "conv_bias",   "dt_bias",
                                       "a_log",  "skip",        "norm_weight", "before"};
      list.insert(list.end(), others);
      return list;
    };
    const Shape inner{kRows, a.inner()};
    const Shape rstd{kRows, a.norm_groups};
    add({{"mamba2_section_states", to_attributes(a), operands({write(wide_, summaries)})},
         names({"states"})});
    add({{"mamba2_section", to_attributes(Mamba2SectionAttributes{.core = a, .context = context}),
          operands(
              {read(wide_, states), write(data_, inner), write(wide_, rstd), write(data_, inner)})},
         names({"initial", "y", "rstd", "v"})});
    add({{"mamba2_section_state_grads", to_attributes(a),
          operands({read(data_, inner), read(wide_, rstd), read(data_, inner),
                    write(wide_, summaries)})},
         names({"y", "rstd", "dv", "grads"})});
    for (const bool accumulate : {false, true}) {
      std::vector<OperandSpec> backward =
          operands({read(wide_, states), read(data_, inner), read(wide_, rstd), read(data_, inner),
                    read(wide_, states), write(data_, rows)});
      for (const Shape& weight : weights) {
        backward.push_back(grad(accumulate, weight));
      }
      backward.push_back(write(data_, last));
      add({{"mamba2_section_backward",
            to_attributes(Mamba2BackwardAttributes{.core = a, .accumulate = accumulate}), backward},
           names({"initial", "y", "rstd", "dv", "d_final", "d_zxbcdt", "d_conv_weight",
                  "d_conv_bias", "d_dt_bias", "d_a_log", "d_skip", "d_norm_weight", "d_before"})});
    }
    add({{"neighbour_sections",
          to_attributes(NeighbourSectionsAttributes{.context = context, .rows = kBefore}),
          {read(data_, {context.ranks * last[0], last[1]}), write(data_, last)}},
         {"x", "y"},
         {}});
    add({{"carry_states",
          to_attributes(CarryStatesAttributes{.context = context, .heads = a.heads}),
          {read(wide_, {context.ranks * kSections, summaries[1]}), write(wide_, states)}},
         {"x", "y"}});
  }

  void add_caches() {
    constexpr int64_t kSequences = kRows / kSequence;
    const OperandSpec spans = read(DType::kI32, {kSequences});
    const OperandSpec cache = read_write(data_, {kSequences, 20, 8});
    add({{"cached_attention",
          to_attributes(CachedAttentionAttributes{.heads = 6, .kv_heads = 2, .head_size = 4}),
          {read(data_, {kRows, 40}), spans, spans, cache, cache, write(data_, {kRows, 24})}},
         {"qkv", "begins", "counts", "keys", "values", "out"}});
    add({{"cached_attention",
          to_attributes(
              CachedAttentionAttributes{.heads = 6, .kv_heads = 2, .head_size = 4, .window = {3}}),
          {read(data_, {kRows, 40}), spans, spans, cache, cache, write(data_, {kRows, 24})}},
         {"qkv", "begins", "counts", "keys", "values", "out"}});
    const Mamba2Attributes a{.sequence = kSequence,
                             .heads = 4,
                             .head_size = 3,
                             .groups = 2,
                             .state = 5,
                             .chunk = 2,
                             .norm_groups = 2};
    add({{"cached_mamba2",
          to_attributes(a),
          {read(data_, {kRows, a.row_elems()}), read(data_, {a.convolved(), 4}),
           read(data_, {a.convolved()}), read(data_, {a.heads}), read(data_, {a.heads}),
           read(data_, {a.heads}), read(data_, {a.inner()}), spans, spans,
           read_write(data_, {kSequences, 4, a.convolved()}),
           read_write(wide_, {kSequences, a.heads, a.head_size, a.state}),
           write(data_, {kRows, a.inner()})}},
         {"zxbcdt", "conv_weight", "conv_bias", "dt_bias", "a_log", "skip", "norm_weight", "begins",
          "counts", "window", "states", "v"}});
  }

  void add_attention_steps() {
    const int64_t kv_rows = kRows / kSequence * 8;
    const OperandSpec qkv = read(data_, {kRows, 40});
    const OperandSpec kv = read(data_, {kv_rows, 16});
    const OperandSpec out = read(data_, {kRows, 24});
    const OperandSpec lse = read(wide_, {kRows / kSequence, 6, kSequence});
    for (const bool accumulate : {false, true}) {
      const AttentionStepAttributes step{.heads = 6,
                                         .kv_heads = 2,
                                         .head_size = 4,
                                         .sequence = kSequence,
                                         .kv_sequence = 8,
                                         .query_begin = 5,
                                         .queries = 4,
                                         .key_begin = 1,
                                         .keys = 7,
                                         .causal = true,
                                         .accumulate = accumulate};
      add({{"attention_step",
            to_attributes(step),
            {qkv, kv, grad(accumulate, out.shape), grad(accumulate, lse.shape)}},
           {"qkv", "kv", "sum", "lse"}});
      add({{"attention_step_backward",
            to_attributes(AttentionStepBackwardAttributes{
                .step = step, .accumulate_q = accumulate, .accumulate_kv = !accumulate}),
            {qkv, kv, out, lse, out, grad(accumulate, out.shape), grad(!accumulate, kv.shape)}},
           {"qkv", "kv", "out", "lse", "d_out", "d_q", "d_kv"}});
      AttentionStepAttributes in_windows = step;
      in_windows.window = {.limit = {5}, .query_positions = {.second_begin = 1}};
      add({{"attention_step",
            to_attributes(in_windows),
            {qkv, kv, grad(accumulate, out.shape), grad(accumulate, lse.shape)}},
           {"qkv", "kv", "sum", "lse"}});
      add({{"attention_step_backward",
            to_attributes(AttentionStepBackwardAttributes{
                .step = in_windows, .accumulate_q = accumulate, .accumulate_kv = !accumulate}),
            {qkv, kv, out, lse, out, grad(accumulate, out.shape), grad(!accumulate, kv.shape)}},
           {"qkv", "kv", "out", "lse", "d_out", "d_q", "d_kv"}});
      AttentionStepAttributes of_documents = step;
      of_documents.documents.documents = true;
      of_documents.key_positions = {.first_begin = 2, .second_begin = 20, .split = 4};
      const OperandSpec starts = read(DType::kI32, {kRows});
      add({{"attention_step",
            to_attributes(of_documents),
            {qkv, kv, starts, grad(accumulate, out.shape), grad(accumulate, lse.shape)}},
           {"qkv", "kv", "starts", "sum", "lse"}});
      add({{"attention_step_backward",
            to_attributes(AttentionStepBackwardAttributes{
                .step = of_documents, .accumulate_q = accumulate, .accumulate_kv = !accumulate}),
            {qkv, kv, out, lse, out, starts, grad(accumulate, out.shape),
             grad(!accumulate, kv.shape)}},
           {"qkv", "kv", "out", "lse", "d_out", "starts", "d_q", "d_kv"}});
    }
    add({{"attention_finish",
          to_attributes(AttentionFinishAttributes{.ranks = 3, .index = 2}),
          {read(wide_, out.shape), write(data_, out.shape)}},
         {"sum", "out"}});
  }

  void add_context_layout() {
    const Shape rows{kRows, 40};
    add({{"pack_kv", {}, {read(data_, rows), write(data_, {kRows, 16})}},
         {"qkv", "kv"},
         {{0, 1}, {1, 1}}});
    add({{"assemble_qkv",
          {},
          {read(wide_, {kRows, 24}), read(wide_, {kRows, 16}), write(data_, rows)}},
         {"d_q", "d_kv", "d_qkv"}});
    add({{"zigzag_order",
          to_attributes(ZigzagOrderAttributes{.ranks = 3, .sequence = 4}),
          {read(data_, rows), write(data_, rows)}},
         {"x", "y"}});
    for (const bool inverse : {false, true}) {
      const OperandSpec whole{
          .dtype = data_, .access = inverse ? Access::kWrite : Access::kRead, .shape = rows};
      const OperandSpec parts{.dtype = data_,
                              .access = inverse ? Access::kRead : Access::kWrite,
                              .shape = {2 * kRows, 20}};
      add({{"split_heads",
            to_attributes(SplitHeadsAttributes{
                .ranks = 2, .heads = 6, .kv_heads = 2, .head_size = 4, .inverse = inverse}),
            {inverse ? parts : whole, inverse ? whole : parts}},
           {"x", "y"}});
      // z and x of 4 heads of 2, B and C of 2 groups of 5, dt: 40 columns.
      add({{"split_heads",
            to_attributes(SplitHeadsAttributes{.ranks = 2,
                                               .heads = 4,
                                               .head_size = 2,
                                               .inverse = inverse,
                                               .states = {.groups = 2, .state = 5}}),
            {inverse ? parts : whole, inverse ? whole : parts}},
           {"x", "y"}});
    }
    add({{"swap_blocks",
          to_attributes(SwapBlocksAttributes{.outer = 3, .inner = 4}),
          {read(data_, rows), write(data_, rows)}},
         {"x", "y"}});
  }

  void add_activation() {
    const Shape half{kRows, kWidth};
    const Shape whole{kRows, 2 * kWidth};
    for (const char* const name : {"swiglu", "geglu"}) {
      add({{name, {}, {read(data_, whole), write(data_, half)}}, {"gate_up", "y"}});
      add({{fmt::format("{}_backward", name),
            {},
            {read(data_, whole), read(data_, half), write(data_, whole)}},
           {"gate_up", "dy", "d_gate_up"}});
    }
    for (const char* const name : {"gelu", "relu2"}) {
      add({{name, {}, {read(data_, half), write(data_, half)}}, {"x", "y"}});
      add({{fmt::format("{}_backward", name),
            {},
            {read(data_, half), read(data_, half), write(data_, half)}},
           {"x", "dy", "dx"}});
    }
  }

  void add_embedding() {
    const OperandSpec tokens = read(DType::kI32, {kRows});
    const OperandSpec table = read(data_, {kVocabulary, kWidth});
    const OperandSpec out = write(data_, {kRows, kWidth});
    const OperandSpec d_out = read(data_, {kRows, kWidth});
    add({{"embedding",
          to_attributes(EmbeddingAttributes{.sequence = kSequence}),
          {tokens, table, out}},
         {"tokens", "table", "out"},
         {{1, 0}}});
    add({{"embedding",
          to_attributes(EmbeddingAttributes{.sequence = kSequence, .has_positions = true}),
          {tokens, table, read(data_, {kSequence + 3, kWidth}), out}},
         {"tokens", "table", "positions", "out"},
         {{1, 0}, {2, 0}}});
    add({{"embedding",
          to_attributes(EmbeddingAttributes{.sequence = kSequence,
                                            .has_positions = true,
                                            .adds_positions = false,
                                            .vocabulary = 2 * kVocabulary,
                                            .vocabulary_begin = kVocabulary}),
          {tokens, table, read(data_, {kSequence + 3, kWidth}), out}},
         {"tokens", "table", "positions", "out"},
         {{1, 0}, {2, 0}}});
    add({{"embedding",
          to_attributes(EmbeddingAttributes{
              .sequence = kSequence, .has_positions = true, .documents = {.documents = true}}),
          {tokens, table, read(data_, {kSequence + 3, kWidth}), tokens, out}},
         {"tokens", "table", "positions", "starts", "out"},
         {{1, 0}, {2, 0}}});
    for (const bool accumulate : {false, true}) {
      add({{"position_embedding_wgrad",
            to_attributes(PositionEmbeddingWgradAttributes{
                .sequence = kSequence, .accumulate = accumulate, .documents = {.documents = true}}),
            {d_out, tokens, grad(accumulate, {kSequence + 3, kWidth})}},
           {"d_out", "starts", "d_positions"},
           {{2, 0}}});
      add({{"embedding_wgrad",
            to_attributes(EmbeddingWgradAttributes{.accumulate = accumulate}),
            {tokens, d_out, grad(accumulate, {kVocabulary, kWidth})}},
           {"tokens", "d_out", "d_table"},
           {{2, 0}}});
      add({{"position_embedding_wgrad",
            to_attributes(
                PositionEmbeddingWgradAttributes{.sequence = kSequence, .accumulate = accumulate}),
            {d_out, grad(accumulate, {kSequence + 3, kWidth})}},
           {"d_out", "d_positions"},
           {{1, 0}}});
    }
  }

  void add_loss() {
    const auto attributes = to_attributes(CrossEntropyAttributes{.vocabulary = kVocabulary - 2});
    const OperandSpec logits = read(data_, {kRows, kVocabulary});
    const OperandSpec labels = read(DType::kI32, {kRows});
    const OperandSpec scale = read(wide_, {1});
    // The forward may have more padding columns.
    add({{"cross_entropy",
          attributes,
          {logits, labels, scale, write(wide_, {1}), write(wide_, {kRows})}},
         {"logits", "labels", "loss_scale", "loss", "lse"},
         {{0, 1}}});
    const auto shard = to_attributes(CrossEntropyShardAttributes{.vocabulary = 3 * kVocabulary,
                                                                 .vocabulary_begin = kVocabulary});
    add({{"cross_entropy_partial", shard, {logits, labels, write(wide_, {kRows, 3})}},
         {"logits", "labels", "stats"},
         {{0, 1}}});
    add({{"cross_entropy_merge",
          {},
          {read(wide_, {2 * kRows, 3}), labels, scale, write(wide_, {1}), write(wide_, {kRows})}},
         {"stats", "labels", "loss_scale", "loss", "lse"}});
    add({{"cross_entropy_backward",
          shard,
          {logits, labels, scale, read(wide_, {kRows}), write(data_, {kRows, kVocabulary})}},
         {"logits", "labels", "loss_scale", "lse", "d_logits"}});
    add_z_losses(logits, labels, scale);
    add_preference_loss(logits, labels);
  }

  /// The loss of pairs of sequences, and the gradient with a scale for each sequence.
  void add_preference_loss(const OperandSpec& logits, const OperandSpec& labels) {
    constexpr int64_t kSequences = 2;
    add({{"sequence_losses",
          to_attributes(SequenceLossesAttributes{kSequences}),
          {read(wide_, {2 * kRows, 3}), labels, write(wide_, {kSequences}), write(wide_, {kRows})}},
         {"stats", "labels", "losses", "lse"}});
    add({{"preference_loss",
          to_attributes(PreferenceLossAttributes{}),
          {read(wide_, {kSequences}), read(wide_, {kSequences, 2}), write(wide_, {1}),
           write(wide_, {5}), write(wide_, {kSequences})}},
         {"losses", "reference", "loss", "figures", "d_losses"}});
    add({{"cross_entropy_backward",
          to_attributes(CrossEntropyBackwardAttributes{.shard = {.vocabulary = 3 * kVocabulary},
                                                       .scales = {kSequences}}),
          {logits, labels, read(wide_, {kSequences}), read(wide_, {kRows}),
           write(data_, {kRows, kVocabulary})}},
         {"logits", "labels", "loss_scale", "lse", "d_logits"}});
  }

  /// The same ops with a loss of the log-sum-exp.
  void add_z_losses(const OperandSpec& logits, const OperandSpec& labels,
                    const OperandSpec& scale) {
    const ZLoss z{1e-3};
    add({{"cross_entropy",
          to_attributes(CrossEntropyAttributes{.vocabulary = kVocabulary - 2, .z = z}),
          {logits, labels, scale, write(wide_, {1}), write(wide_, {kRows}), write(wide_, {1})}},
         {"logits", "labels", "loss_scale", "loss", "lse", "z"},
         {{0, 1}}});
    add({{"cross_entropy_merge",
          to_attributes(CrossEntropyMergeAttributes{z}),
          {read(wide_, {2 * kRows, 3}), labels, scale, write(wide_, {1}), write(wide_, {kRows}),
           write(wide_, {1})}},
         {"stats", "labels", "loss_scale", "loss", "lse", "z"}});
    add({{"cross_entropy_backward",
          to_attributes(CrossEntropyBackwardAttributes{
              .shard = {.vocabulary = 3 * kVocabulary, .vocabulary_begin = kVocabulary}, .z = z}),
          {logits, labels, scale, read(wide_, {kRows}), write(data_, {kRows, kVocabulary})}},
         {"logits", "labels", "loss_scale", "lse", "d_logits"}});
  }

  void add_elementwise() {
    const Shape shape{3, 5, 7};
    const DType other = data_ == DType::kF32 ? DType::kBF16 : DType::kF32;
    add({{"add", {}, {read(data_, shape), read(data_, shape), write(data_, shape)}},
         {"a", "b", "c"}});
    const OperandSpec rows = read(data_, {kRows, kWidth});
    const OperandSpec gate = read(wide_, {kRows, 1});
    add({{"add_gated", {}, {rows, rows, gate, write(data_, {kRows, kWidth})}},
         {"a", "x", "z", "y"}});
    add({{"add_gated_backward",
          {},
          {rows, gate, rows, write(data_, {kRows, kWidth}), write(wide_, {kRows, 1})}},
         {"x", "z", "dy", "dx", "dz"}});
    add({{"add_adapters",
          to_attributes(AddAdaptersAttributes{.scale = 2.0}),
          {rows, rows, write(data_, {kRows, kWidth})}},
         {"base", "z", "y"}});
    add({{"adapter_grad",
          to_attributes(AdapterGradAttributes{.scale = 2.0}),
          {rows, write(data_, {kRows, kWidth})}},
         {"dy", "dz"},
         {{0, 1}}});
    add_trained_lengths();
    add({{"cast", {}, {read(data_, shape), write(other, shape)}}, {"x", "y"}});
    add({{"cast", {}, {read(other, shape), write(data_, shape)}}, {"x", "y"}});
    add({{"accumulate", {}, {read(data_, shape), read_write(wide_, shape)}}, {"x", "y"}});
    add({{"copy", {}, {read(data_, shape), write(data_, shape)}}, {"x", "y"}});
    add({{"scale",
          to_attributes(ScaleAttributes{.factor = 1.5}),
          {read(data_, shape), write(data_, shape)}},
         {"x", "y"}});
    add({{"fill", to_attributes(FillAttributes{.value = 1.5}), {write(data_, shape)}},
         {"y"},
         {{0, 0}, {0, 1}, {0, 2}},
         true});
  }

  void add_trained_lengths() {
    const OperandSpec rows = read(data_, {kRows, kWidth});
    const OperandSpec row = read(data_, {kWidth});
    const OperandSpec squares = read(wide_, {2, kWidth});
    add({{"adapted_squares",
          to_attributes(AdaptedSquaresAttributes{{.scale = 2.0}}),
          {read(data_, {kWidth, 5}), read(data_, {3, 5}), read(data_, {kWidth, 3}),
           write(wide_, {2, kWidth})}},
         {"w", "a", "b", "squares"}});
    for (const bool has_bias : {false, true}) {
      DeclaredForm form{{"apply_magnitudes",
                         to_attributes(ApplyMagnitudesAttributes{.has_bias = has_bias}),
                         {rows, row, squares}},
                        {"v", "change", "squares"}};
      if (has_bias) {
        form.spec.operands.push_back(row);
        form.names.emplace_back("bias");
      }
      form.spec.operands.push_back(write(data_, {kRows, kWidth}));
      form.names.emplace_back("y");
      add(form);
    }
    for (const bool accumulate : {false, true}) {
      add({{"apply_magnitudes_backward",
            to_attributes(ApplyMagnitudesBackwardAttributes{.accumulate = accumulate}),
            {rows, row, squares, rows, write(data_, {kRows, kWidth}), grad(accumulate, {kWidth})}},
           {"v", "change", "squares", "dy", "dv", "dchange"}});
    }
  }

  void add_blocks() {
    const Shape shape{3, 5, 7};
    add({{"sum_blocks",
          {},
          {read(data_, shape), read(data_, shape), read(data_, shape), write(data_, shape)}},
         {"x", "x", "x", "y"}});
    list_.back().any_number = true;
    add({{"join_columns", {}, {read(data_, {3, 5}), read(data_, {3, 7}), write(data_, {3, 12})}},
         {"x", "x", "y"}});
    list_.back().any_number = true;
    add({{"join_blocks", {}, {read(data_, {6, 5}), write(data_, {2, 15})}}, {"x", "y"}});
  }

  void add_offload() {
    const Shape shape{3, 5, 7};
    for (const char* const op : {"offload", "reload"}) {
      add({{op, {}, {read(data_, shape), write(data_, shape)}}, {"x", "y"}});
    }
    add({{"undefine", {}, {write(data_, shape)}}, {"y"}, {{0, 0}, {0, 1}, {0, 2}}, true});
    add({{"await", {}, {read(data_, shape)}}, {"x"}, {{0, 0}, {0, 1}, {0, 2}}, true});
  }

  /// 24 rows of 8 tokens and 3 slots, 5 experts.
  void add_experts() {
    constexpr int64_t kExperts = 5;
    const OperandSpec maps[] = {read(DType::kI32, {8, 3}), read(DType::kI32, {kRows})};
    const OperandSpec offsets = read(DType::kI32, {kExperts + 1});
    const OperandSpec weights = read(wide_, {kRows});
    const OperandSpec x = read(data_, {kRows, kWidth});
    const OperandSpec dy = read(data_, {kRows, kOut});
    const OperandSpec w = read(data_, {kExperts * kOut, kWidth});
    const Shape gate_up{kRows, 2 * kWidth};
    add({{"sort_rows",
          {},
          {maps[0], write(DType::kI32, {8, 3}), write(DType::kI32, {kRows}),
           write(DType::kI32, {kExperts + 1}), write(DType::kF32, {kExperts})}},
         {"experts", "row_of", "pair_of", "offsets", "counts"}});
    add({{"sort_rows",
          to_attributes(SortRowsAttributes{.watch = {true}}),
          {maps[0], write(DType::kI32, {8, 3}), write(DType::kI32, {kRows}),
           write(DType::kI32, {kExperts + 1}), write(DType::kF32, {kExperts}),
           tally_spec(kExperts)}},
         {"experts", "row_of", "pair_of", "offsets", "counts", "tally"}});
    const OperandSpec to_maps[] = {write(DType::kI32, {8, 3}), write(DType::kI32, {kRows}),
                                   write(DType::kI32, {kExperts + 1})};
    for (const bool watch : {false, true}) {
      add({{"drop_rows",
            to_attributes(DropRowsAttributes{.capacity = 3, .watch = {watch}}),
            {read(wide_, {8, 3}), maps[0], maps[1], offsets, to_maps[0], to_maps[1], to_maps[2]}},
           {"weights", "row_of", "pair_of", "offsets", "kept_row_of", "kept_pair_of",
            "kept_offsets"}});
      if (watch) {
        list_.back().spec.operands.push_back(tally_spec(RoomTally::kSize));
        list_.back().names.emplace_back("tally");
      }
    }
    add({{"gather_rows",
          {},
          {read(data_, {8, kWidth}), maps[1], maps[0], write(data_, {kRows, kWidth})}},
         {"x", "pair_of", "row_of", "y"}});
    const auto drops = to_attributes(MovedRowsAttributes{.dropped = {true}});
    add({{"gather_rows",
          drops,
          {read(data_, {8, kWidth}), maps[1], maps[0], offsets, write(data_, {kRows, kWidth})}},
         {"x", "pair_of", "row_of", "offsets", "y"},
         {{3, 0}}});
    add({{"sum_rows", drops, {x, maps[0], maps[1], offsets, write(data_, {8, kWidth})}},
         {"x", "row_of", "pair_of", "offsets", "y"},
         {{3, 0}}});
    add({{"permute_elems",
          drops,
          {read(data_, {8, 3}), maps[1], maps[0], offsets, write(data_, {kRows})}},
         {"x", "order", "inverse", "offsets", "y"},
         {{3, 0}}});
    add({{"sum_rows", {}, {x, maps[0], maps[1], write(data_, {8, kWidth})}},
         {"x", "row_of", "pair_of", "y"}});
    add({{"permute_elems", {}, {read(data_, {8, 3}), maps[1], maps[0], write(data_, {kRows})}},
         {"x", "order", "inverse", "y"}});
    add_partial_maps();
    add({{"routed_swiglu",
          {},
          {read(data_, gate_up), weights, offsets, write(data_, {kRows, kWidth})}},
         {"gate_up", "weights", "offsets", "y"},
         {{2, 0}}});
    add({{"routed_swiglu_backward",
          {},
          {read(data_, gate_up), weights, x, offsets, write(data_, gate_up),
           write(wide_, {kRows})}},
         {"gate_up", "weights", "dy", "offsets", "d_gate_up", "d_weights"},
         {{3, 0}}});
    add({{"routed_relu2", {}, {x, weights, offsets, write(data_, {kRows, kWidth})}},
         {"x", "weights", "offsets", "y"},
         {{2, 0}}});
    add({{"routed_relu2_backward",
          {},
          {x, weights, x, offsets, write(data_, {kRows, kWidth}), write(wide_, {kRows})}},
         {"x", "weights", "dy", "offsets", "dx", "d_weights"},
         {{3, 0}}});
    add_exchanges(weights);
    add_blocks(weights);
    add({{"grouped_linear", {}, {x, w, offsets, write(data_, {kRows, kOut})}},
         {"x", "w", "offsets", "y"}});
    add({{"grouped_linear_dgrad", {}, {dy, w, offsets, write(data_, {kRows, kWidth})}},
         {"dy", "w", "offsets", "dx"}});
    const int64_t features = kOut / 2;
    add({{"grouped_linear_swiglu",
          {},
          {x, w, offsets, weights, write(data_, {kRows, kOut}), write(data_, {kRows, features})}},
         {"x", "w", "offsets", "weights", "gate_up", "y"}});
    add({{"grouped_linear_dgrad_swiglu_backward",
          {},
          {x, read(data_, {kExperts * kWidth, features}), offsets, read(data_, {kRows, kOut}),
           weights, write(data_, {kRows, kOut}), write(wide_, {kRows})}},
         {"dy", "w", "offsets", "gate_up", "weights", "d_gate_up", "d_weights"}});
    for (const bool accumulate : {false, true}) {
      add({{"grouped_linear_wgrad",
            to_attributes(GroupedWgradAttributes{.accumulate = accumulate}),
            {x, dy, offsets, grad(accumulate, {kExperts * kOut, kWidth})}},
           {"x", "dy", "offsets", "dw"}});
    }
  }

  /// Of 24 rows between 2 ranks with 3 experts each, which have room for 40.
  void add_exchanges(const OperandSpec& weights) {
    const OperandSpec offsets = read(DType::kI32, {2 * 7});
    const OperandSpec own = read(data_, {kRows, kWidth});
    const OperandSpec held = read(data_, {40, kWidth});
    const auto attributes = [](bool has_weights) {
      return to_attributes(
          ExpertExchangeAttributes{.experts = 6, .copies = 1, .has_weights = has_weights});
    };
    add({{"dispatch_rows",
          attributes(true),
          {own, weights, offsets, write(data_, {40, kWidth}), write(wide_, {40}),
           write(DType::kI32, {4})}},
         {"x", "weights", "offsets_of_all", "y", "y_weights", "offsets"}});
    add({{"dispatch_rows",
          to_attributes(ExpertExchangeAttributes{.experts = 6, .watch = {true}}),
          {own, weights, offsets, write(data_, {40, kWidth}), write(wide_, {40}),
           write(DType::kI32, {4}), tally_spec(RoomTally::kSize)}},
         {"x", "weights", "offsets_of_all", "y", "y_weights", "offsets", "tally"}});
    add({{"dispatch_rows", attributes(false), {own, offsets, write(data_, {40, kWidth})}},
         {"x", "offsets_of_all", "y"},
         {{0, 0}, {2, 0}}});
    add({{"combine_rows",
          attributes(true),
          {held, read(wide_, {40}), offsets, write(data_, {kRows, kWidth}), write(wide_, {kRows})}},
         {"x", "weights", "offsets_of_all", "y", "y_weights"}});
    add({{"combine_rows", attributes(false), {held, offsets, write(data_, {kRows, kWidth})}},
         {"x", "offsets_of_all", "y"},
         {{0, 0}, {2, 0}}});
  }

  /// 24 pairs of 8 tokens, and room for 20 rows; 2 hosts with 4 tokens each and blocks of 3.
  void add_partial_maps() {
    constexpr int64_t kRoom = 20;
    const OperandSpec pair_of = read(DType::kI32, {kRoom});
    const OperandSpec row_of = read(DType::kI32, {8, 3});
    const auto partial = to_attributes(MovedRowsAttributes{.partial = {16}});
    add({{"sort_rows",
          to_attributes(SortRowsAttributes{.room = {.is_limited = true}}),
          {row_of, write(DType::kI32, {8, 3}), write(DType::kI32, {kRoom}), write(DType::kI32, {6}),
           write(DType::kF32, {5})}},
         {"experts", "row_of", "pair_of", "offsets", "counts"},
         {{2, 0}}});
    add({{"gather_rows",
          partial,
          {read(data_, {8, kWidth}), pair_of, row_of, write(data_, {kRoom, kWidth})}},
         {"x", "pair_of", "row_of", "y"},
         {{2, 1}}});
    add({{"sum_rows",
          partial,
          {read(data_, {kRoom, kWidth}), row_of, pair_of, write(data_, {8, kWidth})}},
         {"x", "row_of", "pair_of", "y"},
         {{1, 1}}});
    add({{"permute_elems", partial, {read(data_, {8, 3}), pair_of, row_of, write(data_, {kRoom})}},
         {"x", "order", "inverse", "y"}});
    for (const bool watch : {false, true}) {
      add({{"host_slots",
            to_attributes(HostSlotsAttributes{
                .member = 1, .hosts = 2, .experts = 6, .block_rows = 3, .watch = {watch}}),
            {row_of, write(DType::kI32, {4, 2}), write(DType::kI32, {6}),
             write(DType::kI32, {8, 1}), write(DType::kI32, {6}), write(DType::kI32, {6, 3})}},
           {"experts_of_all", "slot_of", "token_of", "came_slot_of", "came_token_of", "choices"}});
      if (watch) {
        list_.back().spec.operands.push_back(tally_spec(RoomTally::kSize));
        list_.back().names.emplace_back("tally");
      }
    }
  }

  /// The same in blocks of 14 rows.
  void add_blocks(const OperandSpec& weights) {
    const OperandSpec offsets = read(DType::kI32, {2 * 7});
    const OperandSpec own = read(data_, {kRows, kWidth});
    const OperandSpec held = read(data_, {2 * kBlockRows, kWidth});
    const auto attributes = [](bool has_weights, bool is_held, bool watch = false) {
      return to_attributes(RowBlocksAttributes{.member = 1,
                                               .experts = 6,
                                               .rows = kRows,
                                               .block_rows = kBlockRows,
                                               .has_weights = has_weights,
                                               .held = is_held,
                                               .watch = {watch}});
    };
    const auto blocks = [&](Access access, bool has_weights) {
      const auto bytes = static_cast<int64_t>(dtype_bytes(data_));
      const auto weight_bytes = static_cast<int64_t>(dtype_bytes(wide_));
      const RowBlockLayout layout(kWidth * bytes, has_weights ? weight_bytes : 0, kBlockRows);
      return OperandSpec{.dtype = DType::kU8, .access = access, .shape = {2 * layout.bytes}};
    };
    add({{"rows_to_blocks",
          attributes(true, false),
          {own, weights, offsets, blocks(Access::kWrite, true)}},
         {"x", "weights", "offsets_of_all", "blocks"}});
    add({{"rows_to_blocks",
          attributes(false, true),
          {held, offsets, blocks(Access::kWrite, false)}},
         {"x", "offsets_of_all", "blocks"}});
    add({{"blocks_to_rows",
          attributes(true, true),
          {blocks(Access::kRead, true), offsets, write(data_, {2 * kBlockRows, kWidth}),
           write(wide_, {2 * kBlockRows}), write(DType::kI32, {4})}},
         {"blocks", "offsets_of_all", "y", "y_weights", "offsets"}});
    add({{"blocks_to_rows",
          attributes(true, true, true),
          {blocks(Access::kRead, true), offsets, write(data_, {2 * kBlockRows, kWidth}),
           write(wide_, {2 * kBlockRows}), write(DType::kI32, {4}), tally_spec(RoomTally::kSize)}},
         {"blocks", "offsets_of_all", "y", "y_weights", "offsets", "tally"}});
    add({{"blocks_to_rows",
          attributes(false, false),
          {blocks(Access::kRead, false), offsets, write(data_, {kRows, kWidth})}},
         {"blocks", "offsets_of_all", "y"}});
  }

  void add_optimizer() {
    const OperandSpec one = read(DType::kF32, {1});
    const OperandSpec state = read_write(DType::kF32, {kWidth});
    for (const bool has_param : {false, true}) {
      DeclaredForm form{
          {"balance_update",
           to_attributes(BalanceUpdateAttributes{.rate = 0.5, .has_param = has_param}),
           {read(DType::kF32, {kWidth}), one, state}},
          {"grad", "scale", "weight"}};
      if (has_param) {
        form.spec.operands.push_back(write(DType::kBF16, {kWidth}));
        form.names.emplace_back("param");
      }
      add(std::move(form));
    }
    add({{"average_weights",
          to_attributes(AverageWeightsAttributes{.decay = 0.9}),
          {read(DType::kF32, {kWidth}), one, state}},
         {"weight", "scale", "average"}});
    add({{"squared_norm", {}, {read(data_, {kWidth}), write(DType::kF64, {1})}},
         {"x", "partial"},
         {{0, 0}}});
    add({{"sum", {}, {read(DType::kF64, {kWidth}), write(DType::kF64, {1})}},
         {"x", "total"},
         {{0, 0}}});
    add({{"clip_scale",
          to_attributes(ClipScaleAttributes{.max_norm = 1.0}),
          {read(DType::kF64, {kWidth}), write(DType::kF32, {1}), write(DType::kF32, {1})}},
         {"partials", "grad_norm", "scale"},
         {{0, 0}}});
    DeclaredForm adamw{
        {"adamw",
         to_attributes(AdamwAttributes{}),
         {read(DType::kF32, {kWidth}), one, read(DType::kF32, {3}), state, state, state}},
        {"grad", "scale", "scalars", "weight", "exp_avg", "exp_avg_sq"}};
    add(adamw);
    adamw.spec = with_attribute(adamw.spec, "has_param", true);
    adamw.spec.operands.push_back(write(DType::kBF16, {kWidth}));
    adamw.names.push_back("param");
    add(adamw);
    adamw.spec.operands[2] = read(DType::kF32, {4});
    adamw.spec.operands[4] = adamw.spec.operands[5] = read_write(DType::kBF16, {kWidth});
    add(adamw);
    const std::vector<OperandSpec> one_moment = {read(DType::kF32, {kWidth}), one,
                                                 read(DType::kF32, {3}), state, state};
    const std::vector<std::string> names = {"grad", "scale", "scalars", "weight", "exp_avg"};
    add({{"lion", to_attributes(LionAttributes{}), one_moment}, names});
    add({{"sgd", to_attributes(SgdAttributes{.momentum = 0.9}), one_moment}, names});
    add({{"sgd", to_attributes(SgdAttributes{}), {one_moment.begin(), one_moment.end() - 1}},
         {names.begin(), names.end() - 1}});
    add_muon();
  }

  void add_muon() {
    const OperandSpec one = read(DType::kF32, {1});
    const OperandSpec scalars = read(DType::kF32, {3});
    const OperandSpec weights = read_write(DType::kF32, {kWidth});
    add({{"muon_mean",
          to_attributes(MuonMeanAttributes{}),
          {read(DType::kF32, {kWidth}), one, scalars, weights, write(DType::kF32, {kWidth})}},
         {"grad", "scale", "scalars", "exp_avg", "update"}});
    add({{"take_matrix",
          to_attributes(MatrixPlaceAttributes{.pitch = 7}),
          {read(DType::kF32, {2 * 7 + 5}), write(DType::kF32, {3, 5})}},
         {"flat", "x"}});
    add({{"put_matrix",
          to_attributes(PutMatrixAttributes{.place = {.pitch = 7, .transposed = true}}),
          {read(DType::kF32, {5, 3}), read_write(DType::kF32, {2 * 7 + 5})}},
         {"x", "flat"}});
    add({{"matrix_squares", {}, {read(data_, {kWidth}), write(DType::kF64, {1})}},
         {"x", "partial"},
         {{0, 0}}});
    add({{"normalize", {}, {read(DType::kF64, {1}), read_write(DType::kF32, {kWidth})}},
         {"squares", "x"},
         {{1, 0}}});
    add({{"weighted_sum",
          to_attributes(WeightedSumAttributes{}),
          {read(DType::kF32, {kWidth}), read_write(DType::kF32, {kWidth})}},
         {"x", "y"}});
    add({{"muon_update",
          to_attributes(MuonUpdateAttributes{}),
          {read(DType::kF32, {kWidth}), one, scalars, weights}},
         {"update", "scale", "scalars", "weight"}});
  }

  void add_communication() {
    const Shape whole{6, 5};
    const Shape block{3, 5};
    const auto group = to_attributes(CollectiveAttributes{.group = 1});
    const auto rooted = to_attributes(RootAttributes{.group = 1, .root = 1});
    const auto message = to_attributes(MessageAttributes{.group = 1, .peer = 1, .channel = 2});
    const std::vector<FreeSize> all_sizes{{0, 0}, {0, 1}};
    add({.spec = {"all_reduce", group, {read_write(data_, whole)}},
         .names = {"x"},
         .free_sizes = all_sizes,
         .any_rank = true});
    add({{"all_gather", group, {read(data_, block), write(data_, whole)}}, {"x", "y"}});
    add({{"reduce_scatter", group, {read(data_, whole), write(data_, block)}}, {"x", "y"}});
    for (const char* const op : {"all_to_all", "identity"}) {
      add({{op, group, {read(data_, whole), write(data_, whole)}}, {"x", "y"}});
    }
    for (const char* const op : {"broadcast", "reduce"}) {
      add({{op, rooted, {read(data_, whole), write(data_, whole)}}, {"x", "y"}});
    }
    add({{"ring_shift",
          to_attributes(RingShiftAttributes{.group = 1, .shift = -1}),
          {read(data_, whole), write(data_, whole)}},
         {"x", "y"}});
    add({{"send", message, {read(data_, whole)}}, {"x"}, all_sizes, true});
    add({{"recv", message, {write(data_, whole)}}, {"y"}, all_sizes, true});
  }

  DType data_;
  DType wide_;
  std::vector<DeclaredForm> list_;
};

/// On every dtype that models use.
inline std::vector<DeclaredForm> all_declared_forms() {
  std::vector<DeclaredForm> forms;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    const DeclaredForms of_dtype(dtype);
    forms.insert(forms.end(), of_dtype.list().begin(), of_dtype.list().end());
  }
  return forms;
}

}  // namespace braid
