#include "ops/op.h"

#include <algorithm>
#include <optional>
#include <set>

#include "ops/declared_forms.h"
#include "ops/offload.h"
#include "ops/row_blocks.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

TEST(AllOps, HaveUniqueNamesSummariesChecksAndCosts) {
  std::set<std::string_view> names;
  for (const OpDefinition* op : all_ops()) {
    EXPECT_TRUE(names.insert(op->name).second) << op->name << " occurs twice";
    EXPECT_EQ(op->summary.substr(op->summary.size() - 1), ".") << op->name;
    EXPECT_NE(op->check, nullptr) << op->name;
    EXPECT_NE(op->cost, nullptr) << op->name;
    EXPECT_EQ(&find_op(op->name), op);
  }
}

TEST(FindOp, NamesAnUnknownOp) {
  EXPECT_THAT(message_of<InternalError>([] { find_op("linera"); }), HasSubstr("linera"));
  EXPECT_THAT(message_of<InternalError>([] { check_spec({.op = "linera"}); }), HasSubstr("linera"));
  EXPECT_THAT(message_of<InternalError>([] { spec_cost({.op = "linera"}); }), HasSubstr("linera"));
}

TEST(OpClass, IsCommunicationForCollectivesAndCopyForMovers) {
  for (const OpDefinition* op : all_ops()) {
    const std::set<std::string_view> movers = {"copy",
                                               "cast",
                                               "fill",
                                               "embedding",
                                               "identity",
                                               "offload",
                                               "reload",
                                               "pack_kv",
                                               "assemble_qkv",
                                               "zigzag_order",
                                               "split_heads",
                                               "join_columns",
                                               "join_blocks",
                                               "swap_blocks",
                                               "attention_finish",
                                               "transpose",
                                               "gather_rows",
                                               "permute_elems",
                                               "mamba2_last_inputs",
                                               "neighbour_sections",
                                               "rows_to_blocks",
                                               "blocks_to_rows"};
    const std::set<std::string_view> communicate = {
        "all_reduce", "all_gather",     "reduce_scatter", "all_to_all",
        "broadcast",  "reduce",         "send",           "recv",
        "ring_shift", "all_reduce_max", "dispatch_rows",  "combine_rows"};
    const OpClass expected = communicate.contains(op->name) ? OpClass::kCommunication
                             : movers.contains(op->name)    ? OpClass::kCopy
                             : op->name == "undefine" || op->name == "await" ? OpClass::kOrder
                                                                             : OpClass::kCompute;
    EXPECT_EQ(op->op_class, expected) << op->name;
  }
}

TEST(DeclaredForm, ExistsForEveryOp) {
  const auto forms = all_declared_forms();
  for (const OpDefinition* op : all_ops()) {
    EXPECT_TRUE(std::any_of(forms.begin(), forms.end(), [&](const DeclaredForm& form) {
      return form.spec.op == op->name;
    })) << op->name;
  }
}

TEST(DeclaredForm, IsAccepted) {
  for (const DeclaredForm& form : all_declared_forms()) {
    ASSERT_EQ(form.names.size(), form.spec.operands.size()) << form.spec.op;
    EXPECT_NO_THROW(check_spec(form.spec));
  }
}

TEST(DeclaredForm, WithoutItsLastOperandsIsRefusedByName) {
  for (const DeclaredForm& form : all_declared_forms()) {
    OpSpec spec = form.spec;
    while (!spec.operands.empty()) {
      spec.operands.pop_back();
      expect_refused(spec, form.names[spec.operands.size()]);
    }
  }
}

TEST(DeclaredForm, WithAnOperandTooManyIsRefused) {
  for (const DeclaredForm& form : all_declared_forms()) {
    OpSpec spec = form.spec;
    spec.operands.push_back(spec.operands.back());
    expect_refused(spec, form.any_number
                             ? "has access"  // the one that was the last
                             : fmt::format("has {} operands, expected {}", spec.operands.size(),
                                           form.spec.operands.size()));
  }
}

TEST(DeclaredForm, WithOtherAccessIsRefusedByOperand) {
  for (const DeclaredForm& form : all_declared_forms()) {
    for (size_t i = 0; i < form.names.size(); ++i) {
      for (const Access access : {Access::kRead, Access::kWrite, Access::kReadWrite}) {
        OperandSpec operand = form.spec.operands[i];
        if (operand.access != access) {
          operand.access = access;
          expect_refused(with_operand(form.spec, i, operand),
                         fmt::format("operand {} has access", form.names[i]));
        }
      }
    }
  }
}

TEST(DeclaredForm, WithOtherDtypeIsRefused) {
  for (const DeclaredForm& form : all_declared_forms()) {
    for (size_t i = 0; i < form.names.size() && !form.any_type; ++i) {
      OperandSpec operand = form.spec.operands[i];
      operand.dtype = operand.dtype == DType::kI64 ? DType::kI32 : DType::kI64;
      expect_refused(with_operand(form.spec, i, operand), "");
    }
  }
}

TEST(DeclaredForm, OfIntegersIsRefusedUnlessBytesAreJustMoved) {
  const std::string_view any_dtype[] = {
      "copy",       "fill",         "sum",         "clip_scale",     "adamw",
      "identity",   "offload",      "reload",      "undefine",       "await",
      "broadcast",  "send",         "recv",        "ring_shift",     "all_gather",
      "all_to_all", "join_columns", "join_blocks", "sort_rows",      "balance_update",
      "lion",       "sgd",          "muon_mean",   "take_matrix",    "put_matrix",
      "normalize",  "weighted_sum", "muon_update", "average_weights"};
  const std::string_view only_accumulators[] = {
      "drop_rows",         "cross_entropy_merge", "route",
      "route_backward",    "host_slots",          "count_choices",
      "count_by_sequence", "router_losses",       "router_losses_backward",
      "carry_states",      "sequence_losses",     "preference_loss"};
  const DeclaredForms integers(DType::kI32);
  for (const DeclaredForm& form : integers.list()) {
    const bool has_no_data =
        std::ranges::find(only_accumulators, form.spec.op) != std::end(only_accumulators);
    if (has_no_data || std::ranges::find(any_dtype, form.spec.op) != std::end(any_dtype)) {
      EXPECT_NO_THROW(check_spec(form.spec));
    } else if (form.spec.op == "cast") {
      expect_refused(form.spec, "x and y must be f32 and bf16, or f64 and f32");
    } else {
      expect_refused(form.spec, "is i32, expected floating point");
    }
  }
}

TEST(DeclaredForm, WithADimensionMoreIsRefused) {
  for (const DeclaredForm& form : all_declared_forms()) {
    for (size_t i = 0; i < form.names.size() && !form.any_type && !form.any_rank; ++i) {
      OperandSpec operand = form.spec.operands[i];
      operand.shape.push_back(1);
      expect_refused(with_operand(form.spec, i, operand), "");
    }
  }
}

TEST(DeclaredForm, FixesAllSizesThatItDoesNotLeaveFree) {
  for (const DeclaredForm& form : all_declared_forms()) {
    for (size_t i = 0; i < form.names.size(); ++i) {
      for (int axis = 0; axis < form.spec.operands[i].shape.rank(); ++axis) {
        OpSpec spec = form.spec;
        ++spec.operands[i].shape[axis];
        if (std::ranges::find(form.free_sizes, FreeSize{i, axis}) != form.free_sizes.end()) {
          EXPECT_NO_THROW(check_spec(spec)) << form.names[i] << " axis " << axis;
        } else {
          expect_refused(spec, "");
        }
      }
    }
  }
}

/// As the op calls it whose attribute it is: quantize has those of its source.
std::string own_name(const Attribute& attribute) {
  const std::string& name = attribute.name;
  return name.starts_with("of_") ? name.substr(3) : name;
}

TEST(DeclaredForm, WithoutAnAttributeIsRefusedByName) {
  for (const DeclaredForm& form : all_declared_forms()) {
    for (size_t i = 0; i < form.spec.attributes.size(); ++i) {
      OpSpec spec = form.spec;
      spec.attributes.erase(spec.attributes.begin() + static_cast<ptrdiff_t>(i));
      const std::string name = own_name(form.spec.attributes[i]);
      if (name == "of" || name == "main_weights") {
        continue;  // without the first, quantize has the operand x; the second is optional
      }
      if (name == "z_loss") {  // of losses that have an operand z with it, and of their gradient
        if (spec.operands.size() > 5) {
          expect_refused(spec, "has 6 operands");
        } else {
          EXPECT_NO_THROW(check_spec(spec));
        }
        continue;
      }
      if (name == "sequences" && spec.op == "cross_entropy_backward") {  // one scale without it
        expect_refused(spec, "operand loss_scale");
        continue;
      }
      if (name == "window" && !spec.op.starts_with("attention_step")) {
        // Without it, a query sees all earlier keys; steps have positions of queries with it.
        EXPECT_NO_THROW(check_spec(spec));
        continue;
      }
      if (name == "has_logit_bias") {  // without it, logits have no bias
        expect_refused(spec, "op router_linear");
        continue;
      }
      if (name == "weight_offset") {  // without it, nothing is added
        EXPECT_NO_THROW(check_spec(spec));
        continue;
      }
      if (name == "rotated" && spec.op == "rope") {  // without it, whole heads are
        EXPECT_NO_THROW(check_spec(spec));
        continue;
      }
      if (name == "documents" && spec.find_attribute("document_length") == nullptr) {
        expect_refused(spec, "operand");  // an op without it has no starts
        continue;
      }
      if (name == "expected_rows") {  // without it the maps have all pairs
        expect_refused(spec, "");
        continue;
      }
      if (name == "drops" && form.spec.find_attribute("group") == nullptr &&
          form.spec.op != "host_slots" && form.spec.op != "sort_rows" &&
          !is_of_row_blocks(form.spec)) {
        expect_refused(spec, "operand y has access");  // an op without it has no offsets
        continue;
      }
      if (name == "has_scales") {
        expect_refused(spec, "rows of FP8, and only those, have scales");
        continue;
      }
      expect_refused(spec, name == kTallyAttribute  // without it there is no such operand
                               ? "operands"
                               : name == "given" ? "operand weights has access"  // the same
                                                 : "needs the attribute " + name);
    }
  }
}

TEST(DeclaredForm, WithATallySaysWhatItCounts) {
  std::set<TallyKind> kinds;
  for (const DeclaredForm& form : all_declared_forms()) {
    if (has_tally(form.spec)) {
      kinds.insert(tally_kind(form.spec));
    } else {
      EXPECT_THROW(tally_kind(form.spec), InternalError) << form.spec.op;
    }
  }
  EXPECT_EQ(kinds.size(), kNumTallyKinds - 1);
}

TEST(DeclaredForm, WithAnUnknownAttributeIsRefused) {
  for (const DeclaredForm& form : all_declared_forms()) {
    OpSpec spec = form.spec;
    spec.attributes.push_back({"colour", int64_t{3}});
    expect_refused(spec, "attributes, expected");
  }
}

TEST(DeclaredForm, WithAnAttributeOfAnotherTypeIsRefusedByName) {
  for (const DeclaredForm& form : all_declared_forms()) {
    for (const Attribute& attribute : form.spec.attributes) {
      const bool is_text = std::holds_alternative<std::string>(attribute.value);
      const AttributeValue other = is_text ? AttributeValue(int64_t{3}) : std::string("text");
      expect_refused(with_attribute(form.spec, attribute.name, other),
                     "attribute " + own_name(attribute) + " has the wrong type");
    }
  }
}

// What crosses memory is at most all operands; an op that has nothing to write would be removed,
// but for one that other ranks read.
TEST(DeclaredForm, CostsNoMoreThanItsOperandsAndNeverNothing) {
  for (const DeclaredForm& form : all_declared_forms()) {
    const OpCost cost = spec_cost(form.spec);
    const OpCost all = operand_bytes(form.spec);
    EXPECT_GE(cost.flops, 0) << form.spec.op;
    const bool writes_nothing = form.spec.op == "send" || does_nothing(form.spec);
    EXPECT_EQ(cost.bytes_written > 0, !writes_nothing) << form.spec.op;
    EXPECT_LE(cost.bytes_written, all.bytes_written) << form.spec.op;
    EXPECT_LE(cost.bytes_read, all.bytes_read) << form.spec.op;
    EXPECT_EQ(cost.comm_bytes > 0, find_op(form.spec.op).op_class == OpClass::kCommunication);
  }
}

TEST(ReplaySpec, IsGoodAndReadsAResult) {
  int num_rules = 0;
  for (const DeclaredForm& form : all_declared_forms()) {
    const std::optional<Replay> rule = find_replay(form.spec);
    if (!rule) {
      EXPECT_THAT(message_of<InternalError>([&] { replay_spec(form.spec); }),
                  HasSubstr("op " + form.spec.op + " has no replay rule"));
      continue;
    }
    ++num_rules;
    const OpSpec replay = replay_spec(form.spec);
    EXPECT_NO_THROW(check_spec(replay)) << form.spec.op;
    EXPECT_EQ(form.spec.operands[rule->operands[0]].access, Access::kWrite) << form.spec.op;
    EXPECT_EQ(replay.operands[0].access, Access::kRead) << form.spec.op;
    EXPECT_LT(spec_cost(replay).bytes_read, spec_cost(form.spec).bytes_read) << form.spec.op;
  }
  EXPECT_EQ(num_rules, 2 * 3 + 2);  // two add_ norms on three dtypes, FP8 copies of one on two
}

TEST(ReplaySpec, OfAnAddNormIsTheNormOfItsSum) {
  const OperandSpec x = read(DType::kF32, {3, 4});
  const OperandSpec w = read(DType::kF32, {4});
  const OperandSpec y = write(DType::kF32, {3, 4});
  const OperandSpec stat = write(DType::kF32, {3});
  const auto attributes = to_attributes(NormAttributes{.epsilon = 1e-3});
  EXPECT_EQ(replay_spec({"add_rmsnorm", attributes, {x, x, w, y, y, stat}}),
            (OpSpec{"rmsnorm", attributes, {x, w, y, stat}}));
  EXPECT_EQ(replay_spec({"add_layernorm", attributes, {x, x, w, w, y, y, stat, stat}}),
            (OpSpec{"layernorm", attributes, {x, w, w, y, stat, stat}}));
}

// Norms and activation functions are redone first, then attention, then what costs most.
TEST(RecomputeClass, IsThatOfTheDocumentation) {
  const std::set<std::string_view> norms = {"rmsnorm",
                                            "add_rmsnorm",
                                            "layernorm",
                                            "geglu",
                                            "add_layernorm",
                                            "swiglu",
                                            "gelu",
                                            "relu2",
                                            "identity",
                                            "all_gather",
                                            "quantize",
                                            "gather_rows",
                                            "routed_swiglu",
                                            "routed_relu2",
                                            "head_norm",
                                            "mla_qkv",
                                            "take_columns",
                                            "quantize_grouped",
                                            "quantize_gathered",
                                            "apply_magnitudes"};
  const std::set<std::string_view> never = {"send",
                                            "recv",
                                            "offload",
                                            "reload",
                                            "undefine",
                                            "await",
                                            "attention_step",
                                            "attention_finish",
                                            "quantize_weight",
                                            "part_magnitudes",
                                            "quantize_part",
                                            "scales_of_magnitudes",
                                            "transpose",
                                            "adapted_squares",
                                            "route",
                                            "count_by_sequence",
                                            "router_losses",
                                            "sort_rows",
                                            "drop_rows",
                                            "host_slots",
                                            "permute_elems",
                                            "cached_attention",
                                            "cached_mamba2"};
  for (const OpDefinition* op : all_ops()) {
    const Recompute expected =
        norms.contains(op->name) ? Recompute::kNorms
        : op->name == "attention" || op->name == "mamba2" || op->name == "mamba2_section"
            ? Recompute::kAttention
        : never.contains(op->name)                ? Recompute::kNone
        : op->op_class == OpClass::kCommunication ? Recompute::kFull
                                                  : Recompute::kCompute;
    EXPECT_EQ(op->recompute, expected) << op->name;
  }
}

}  // namespace
}  // namespace braid
