#include "ops/mamba2_section.h"

#include <array>
#include <string>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/collectives.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

constexpr size_t kNumWeights = 6;
constexpr size_t kBefore = kNumWeights + 1;
constexpr size_t kInitial = kBefore + 1;
constexpr size_t kY = kInitial + 1;
constexpr size_t kRstd = kY + 1;
constexpr size_t kV = kRstd + 1;

/// Rows in front of a section that the convolution reads.
int64_t rows_before(const OpSpec& spec) {
  return spec.operands[1].shape[1] - 1;
}

/// Shapes of the operands of one spec.
struct SectionShapes {
  Shape inner, rstd, before, states, summaries;

  SectionShapes(const OpSpec& spec, const Mamba2Attributes& a)
      : SectionShapes(spec, a, spec.operands[0].shape[0], spec.operands[0].shape[0] / a.sequence) {}

 private:
  SectionShapes(const OpSpec& spec, const Mamba2Attributes& a, int64_t rows, int64_t sections)
      : inner{rows, a.inner()},
        rstd{rows, a.norm_groups},
        before{sections * rows_before(spec), a.convolved()},
        states{sections, a.inner() * a.state},
        summaries{sections, a.inner() * a.state + a.heads} {}
};

/// Checks the operands that all ops begin with. Returns zxbcdt.
const OperandSpec& check_section_inputs(OperandChecker& operands, const OpSpec& spec,
                                        const Mamba2Attributes& a) {
  const OperandSpec& rows = check_mamba2_inputs(operands, a);
  operands.require(rows_before(spec) > 0 && rows_before(spec) <= a.sequence,
                   "a section must have as many rows as the convolution reads in front of it, at "
                   "least 1");
  operands.expect("before", Access::kRead, rows.dtype, SectionShapes(spec, a).before);
  return rows;
}

void check_section_states(const OpSpec& spec) {
  const auto a = attributes_of<Mamba2Attributes>(spec);
  OperandChecker operands(spec);
  const DType accumulator = accumulator_dtype(check_section_inputs(operands, spec, a).dtype);
  operands.expect("states", Access::kWrite, accumulator, SectionShapes(spec, a).summaries);
  operands.done();
}

void check_section(const OpSpec& spec) {
  const auto [a, context, group] = attributes_of<Mamba2SectionAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& rows = check_section_inputs(operands, spec, a);
  const DType accumulator = accumulator_dtype(rows.dtype);
  const SectionShapes shapes(spec, a);
  operands.require(group >= 0, "group must be an index into the program's groups");
  operands.require(context.is_valid(), "index must be that of one of the ranks");
  operands.expect("initial", Access::kRead, accumulator, shapes.states);
  operands.expect("y", Access::kWrite, rows.dtype, shapes.inner);
  operands.expect("rstd", Access::kWrite, accumulator, shapes.rstd);
  operands.expect("v", Access::kWrite, rows.dtype, shapes.inner);
  operands.done();
}

/// y, rstd and dv.
void check_results(OperandChecker& operands, DType dtype, const SectionShapes& shapes) {
  operands.expect("y", Access::kRead, dtype, shapes.inner);
  operands.expect("rstd", Access::kRead, accumulator_dtype(dtype), shapes.rstd);
  operands.expect("dv", Access::kRead, dtype, shapes.inner);
}

void check_section_state_grads(const OpSpec& spec) {
  const auto a = attributes_of<Mamba2Attributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& rows = check_section_inputs(operands, spec, a);
  const SectionShapes shapes(spec, a);
  check_results(operands, rows.dtype, shapes);
  operands.expect("grads", Access::kWrite, accumulator_dtype(rows.dtype), shapes.summaries);
  operands.done();
}

void check_section_backward(const OpSpec& spec) {
  const auto [a, accumulate] = attributes_of<Mamba2BackwardAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& rows = check_section_inputs(operands, spec, a);
  const DType accumulator = accumulator_dtype(rows.dtype);
  const SectionShapes shapes(spec, a);
  operands.expect("initial", Access::kRead, accumulator, shapes.states);
  check_results(operands, rows.dtype, shapes);
  operands.expect("d_final", Access::kRead, accumulator, shapes.states);
  operands.expect("d_zxbcdt", Access::kWrite, rows.dtype, rows.shape);
  constexpr std::array kGradients = {"d_conv_weight", "d_conv_bias", "d_dt_bias",
                                     "d_a_log",       "d_skip",      "d_norm_weight"};
  for (size_t i = 0; i < kNumWeights; ++i) {
    operands.expect(kGradients[i], accumulate_access(accumulate), accumulator,
                    spec.operands[i + 1].shape);
  }
  operands.expect("d_before", Access::kWrite, rows.dtype, shapes.before);
  operands.done();
}

// ---- rows in front of sections

void check_inputs_attributes(const OperandChecker& operands, const Mamba2InputsAttributes& a,
                             const OperandSpec& rows, const OperandSpec& last) {
  operands.require(a.rows > 0 && a.sequence >= a.rows && rows.shape[0] % a.sequence == 0,
                   "rows must be a multiple of sequence, which must be at least `rows`");
  operands.require(last.dtype == rows.dtype &&
                       last.shape[0] == rows.shape[0] / a.sequence * a.rows && a.inner > 0 &&
                       a.inner + last.shape[1] <= rows.shape[1],
                   "the last inputs must be `rows` rows per section, of the columns behind inner");
}

void check_last_inputs(const OpSpec& spec) {
  const auto a = attributes_of<Mamba2InputsAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& rows = operands.next_floating("zxbcdt", Access::kRead, 2);
  const OperandSpec& last = operands.next_floating("last", Access::kWrite, 2);
  check_inputs_attributes(operands, a, rows, last);
  operands.done();
}

void check_add_inputs(const OpSpec& spec) {
  const auto a = attributes_of<Mamba2InputsAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& last = operands.next_floating("d_last", Access::kRead, 2);
  const OperandSpec& rows = operands.next_floating("d_zxbcdt", Access::kReadWrite, 2);
  check_inputs_attributes(operands, a, rows, last);
  operands.done();
}

/// Only these rows cross memory.
OpCost last_inputs_cost(const OpSpec& spec) {
  const double bytes = size_bytes(spec.operands[1]);
  return {.bytes_read = bytes, .bytes_written = bytes};
}

OpCost add_inputs_cost(const OpSpec& spec) {
  const double bytes = size_bytes(spec.operands[0]);
  return {.flops = elems(spec, 0), .bytes_read = 2 * bytes, .bytes_written = bytes};
}

// ---- costs

OpCost section_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.flops = mamba2_flops(spec, attributes_of<Mamba2SectionAttributes>(spec).core);
  return cost;
}

OpCost section_states_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.flops = mamba2_state_flops(spec, attributes_of<Mamba2Attributes>(spec));
  return cost;
}

OpCost section_backward_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.flops = mamba2_backward_flops(spec, attributes_of<Mamba2BackwardAttributes>(spec).core);
  return cost;
}

// ---- backward

/// The nodes of the backward of one mamba2_section.
class SectionBackward {
 public:
  SectionBackward(BackwardBuilder& builder, const Node& node, ValueId dv)
      : builder_(builder),
        node_(node),
        attributes_(attributes_of<Mamba2SectionAttributes>(node.spec)),
        dv_(dv) {}

  void build() {
    const ValueId zxbcdt = node_.operands[0];
    const ValueId d_final = gradients_behind();
    const ValueId d_zxbcdt = builder_.new_grad(zxbcdt);
    const ValueId d_before = like(node_.operands[kBefore], "d_before", 1);
    add_main(d_final, d_zxbcdt, d_before);
    add_rows_of_others(d_before, d_zxbcdt);
    builder_.add_grad(node_, zxbcdt, d_zxbcdt);
  }

 private:
  const Mamba2Attributes& core() const { return attributes_.core; }
  static Operand to(ValueId value) { return {value, Access::kWrite}; }

  ValueId new_value(std::string_view part, DType dtype, const Shape& shape) {
    return builder_.new_activation(
        {.name = fmt::format("{}.{}", builder_.value(node_.operands[kV]).name, part),
         .dtype = dtype,
         .shape = shape});
  }
  /// As many times the rows of x.
  ValueId like(ValueId x, std::string_view part, int64_t times) {
    const Value value = builder_.value(x);
    return new_value(part, value.dtype, {value.shape[0] * times, value.shape[1]});
  }
  void add(std::string op, std::vector<Attribute> attributes, std::span<const Operand> operands,
           Phase phase = Phase::kDgrad) {
    builder_.add_node(node_, std::move(op), std::move(attributes), operands, phase);
  }
  ValueId gathered(ValueId x, std::string_view part) {
    const ValueId y = like(x, part, attributes_.context.ranks);
    add("all_gather", to_attributes(CollectiveAttributes{.group = attributes_.group}),
        std::array{Operand{x}, to(y)}, Phase::kComm);
    return y;
  }
  /// Operands [0, end) of the forward, y, rstd and dv.
  std::vector<Operand> inputs(size_t end) const {
    std::vector<Operand> operands;
    for (size_t i = 0; i < end; ++i) {
      operands.push_back({node_.operands[i]});
    }
    operands.insert(operands.end(), {{node_.operands[kY]}, {node_.operands[kRstd]}, {dv_}});
    return operands;
  }

  /// Of the state behind each section, from what all later sections add to it.
  ValueId gradients_behind() {
    const Value initial = builder_.value(node_.operands[kInitial]);
    const ValueId own = new_value("state_grads", initial.dtype,
                                  {initial.shape[0], initial.shape[1] + core().heads});
    std::vector<Operand> operands = inputs(kInitial);
    operands.push_back(to(own));
    add("mamba2_section_state_grads", to_attributes(core()), operands);
    const ValueId all = gathered(own, "state_grads.all");
    const ValueId d_final = like(node_.operands[kInitial], "d_final", 1);
    add("carry_states",
        to_attributes(CarryStatesAttributes{
            .context = attributes_.context, .heads = core().heads, .later = true}),
        std::array{Operand{all}, to(d_final)});
    return d_final;
  }

  void add_main(ValueId d_final, ValueId d_zxbcdt, ValueId d_before) {
    std::vector<Operand> operands = inputs(kY);
    operands.insert(operands.end(), {{d_final}, to(d_zxbcdt)});
    for (size_t weight = 1; weight <= kNumWeights; ++weight) {
      operands.push_back({builder_.main_grad(node_.operands[weight]), Access::kReadWrite});
    }
    operands.push_back(to(d_before));
    add("mamba2_section_backward", to_attributes(Mamba2BackwardAttributes{.core = core()}),
        operands);
  }

  void add_rows_of_others(ValueId d_before, ValueId d_zxbcdt) {
    const int64_t rows = rows_before(node_.spec);
    const ValueId all = gathered(d_before, "d_before.all");
    const ValueId d_last = like(d_before, "d_last", 1);
    add("neighbour_sections",
        to_attributes(NeighbourSectionsAttributes{
            .context = attributes_.context, .rows = rows, .later = true}),
        std::array{Operand{all}, to(d_last)});
    add("mamba2_add_inputs",
        to_attributes(Mamba2InputsAttributes{
            .inner = core().inner(), .sequence = core().sequence, .rows = rows}),
        std::array{Operand{d_last}, Operand{d_zxbcdt, Access::kReadWrite}});
  }

  BackwardBuilder& builder_;
  const Node& node_;
  const Mamba2SectionAttributes attributes_;
  ValueId dv_;
};

void section_backward(BackwardBuilder& builder, const Node& node) {
  if (const std::optional<ValueId> dv = builder.grad_of(node.operands[kV])) {
    SectionBackward(builder, Node(node), *dv).build();
  }
}

}  // namespace

const OpDefinition kMamba2LastInputsOp{
    .name = "mamba2_last_inputs",
    .summary = "Copies what a convolution reads of the last rows of each section.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_last_inputs,
    .cost = last_inputs_cost,
    .split = kNeverSplit,
};

const OpDefinition kMamba2AddInputsOp{
    .name = "mamba2_add_inputs",
    .summary = "Adds the gradients of the last rows of each section.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_add_inputs,
    .cost = add_inputs_cost,
    .split = kNeverSplit,
};

const OpDefinition kMamba2SectionStatesOp{
    .name = "mamba2_section_states",
    .summary =
        "What sections of a sequence add to the states of a Mamba-2 layer, and their decays.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kStateSpace,
    .check = check_section_states,
    .cost = section_states_cost,
    .has_inner_products = true,
    .split = kNeverSplit,
};

const OpDefinition kMamba2SectionOp{
    .name = "mamba2_section",
    .summary = "mamba2 over sections of sequences, from the states in front of them.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kStateSpace,
    .check = check_section,
    .cost = section_cost,
    .backward = section_backward,
    .recompute = Recompute::kAttention,
    .has_inner_products = true,
    .split = kNeverSplit,
    .part_begin = "index",
};

const OpDefinition kMamba2SectionStateGradsOp{
    .name = "mamba2_section_state_grads",
    .summary = "What sections of a sequence add to the gradients of states, and their decays.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kStateSpace,
    .check = check_section_state_grads,
    .cost = section_states_cost,
    .has_inner_products = true,
    .split = kNeverSplit,
};

const OpDefinition kMamba2SectionBackwardOp{
    .name = "mamba2_section_backward",
    .summary = "Gradients of mamba2_section with respect to its rows and weights.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kStateSpace,
    .check = check_section_backward,
    .cost = section_backward_cost,
    .has_inner_products = true,
    .split = kNeverSplit,
};

namespace {

/// The forward nodes of one layer.
class SectionForward {
 public:
  SectionForward(GraphBuilder& builder, const Mamba2Operands& operands,
                 const Mamba2SectionAttributes& attributes, std::string_view group,
                 std::string_view site)
      : builder_(builder),
        attributes_(attributes),
        group_(group),
        site_(site),
        inputs_{{operands.zxbcdt},     {operands.conv_weight}, {operands.conv_bias},
                {operands.dt_bias},    {operands.a_log},       {operands.skip},
                {operands.norm_weight}} {}

  ValueId build() {
    inputs_.push_back({rows_before()});
    const ValueId initial = states_before();
    const ValueId y = add_value("y", rows().dtype, inner());
    const ValueId rstd =
        add_value("rstd", accumulator_dtype(rows().dtype), {rows().shape[0], core().norm_groups});
    const ValueId v = builder_.add_activation(site_, rows().dtype, inner());
    std::vector<Operand> operands = inputs_;
    operands.insert(operands.end(),
                    {{initial}, {y, Access::kWrite}, {rstd, Access::kWrite}, {v, Access::kWrite}});
    builder_.add_node("mamba2_section", to_attributes(attributes_), operands, site_);
    return v;
  }

 private:
  const Mamba2Attributes& core() const { return attributes_.core; }
  Value rows() const { return builder_.value(inputs_[0].value); }
  Shape inner() const { return {rows().shape[0], core().inner()}; }
  int64_t sections() const { return rows().shape[0] / core().sequence; }
  std::string name(std::string_view part) const { return fmt::format("{}.{}", site_, part); }
  ValueId add_value(std::string_view part, DType dtype, const Shape& shape) {
    return builder_.add_activation(name(part), dtype, shape);
  }
  ValueId gathered(ValueId x, std::string_view part) {
    return all_gather(builder_, x, group_, attributes_.context.ranks, name(part));
  }

  ValueId rows_before() {
    const int64_t count = builder_.value(inputs_[1].value).shape[1] - 1;
    const ValueId last =
        add_value("last_inputs", rows().dtype, {sections() * count, core().convolved()});
    builder_.add_node("mamba2_last_inputs",
                      to_attributes(Mamba2InputsAttributes{
                          .inner = core().inner(), .sequence = core().sequence, .rows = count}),
                      std::array{inputs_[0], Operand{last, Access::kWrite}}, name("last_inputs"));
    return neighbour_sections(builder_, gathered(last, "last_inputs.all"),
                              {.context = attributes_.context, .rows = count}, name("before"));
  }

  ValueId states_before() {
    const ValueId own = add_value("states", accumulator_dtype(rows().dtype),
                                  {sections(), core().inner() * core().state + core().heads});
    std::vector<Operand> operands = inputs_;
    operands.push_back({own, Access::kWrite});
    builder_.add_node("mamba2_section_states", to_attributes(core()), operands, name("states"));
    return carry_states(builder_, gathered(own, "states.all"),
                        {.context = attributes_.context, .heads = core().heads}, name("initial"));
  }

  GraphBuilder& builder_;
  const Mamba2SectionAttributes& attributes_;
  std::string_view group_;
  std::string_view site_;
  std::vector<Operand> inputs_;
};

}  // namespace

ValueId mamba2_over_context(GraphBuilder& builder, const Mamba2Operands& operands,
                            const Mamba2Attributes& attributes, const ContextSections& context,
                            std::string_view group, std::string_view site) {
  const Mamba2SectionAttributes section{
      .core = attributes, .context = context, .group = builder.group(group)};
  return SectionForward(builder, operands, section, group, site).build();
}

}  // namespace braid
