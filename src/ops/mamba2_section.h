#pragma once

#include "ops/context_sections.h"
#include "ops/mamba2.h"

/// mamba2 (mamba2.h) over sections of sequences, whose other sections context ranks hold. All ops
/// have Mamba2Attributes, whose `sequence` is the rows of one section, at least K - 1. N sections
/// have T rows.
namespace braid {

/// mamba2_last_inputs: zxbcdt [T,2I+2GS+H] -> last [N*(K-1),I+2GS]: x, B and C of the last K - 1
/// rows of each section.
/// mamba2_add_inputs: d_last [N*(K-1),I+2GS], d_zxbcdt [T,2I+2GS+H] rw: adds to these rows.
struct Mamba2InputsAttributes {
  int64_t inner = 0;     ///< I
  int64_t sequence = 0;  ///< rows of a section
  int64_t rows = 0;      ///< K - 1
  void fields(auto&& visit) {
    visit("inner", inner);
    visit("sequence", sequence);
    visit("rows", rows);
  }
};

/// mamba2_section_states: zxbcdt, conv_weight, conv_bias, dt_bias, a_log, skip, norm_weight as for
/// mamba2, before [N*(K-1),I+2GS] -> states f32 [N,H*(P*S+1)]: for each section and head the state
/// behind it if that in front of it is 0, then for each head the product of its decays (f64 for f64
/// data). `before`: x, B and C of the K - 1 rows in front of each section.
///
/// mamba2_section: the same operands, initial f32 [N,H*P*S] -> y, rstd, v as mamba2: begins with
/// the state `initial` and the rows `before`.
struct Mamba2SectionAttributes {
  Mamba2Attributes core;
  ContextSections context;  ///< among ranks of group `group`, with which the backward communicates
  int64_t group = 0;        ///< index into StageGraph::groups
  void fields(auto&& visit) {
    core.fields(visit);
    context.fields(visit);
    visit("group", group);
  }
};

/// mamba2_section_state_grads: the operands of mamba2_section_states, y, rstd, dv -> grads f32
/// [N,H*(P*S+1)]: for each section and head the gradient of the state in front of it if that of the
/// state behind it is 0, then for each head the product of its decays.
///
/// mamba2_section_backward: the operands of mamba2_section, y, rstd, dv, d_final f32 [N,H*P*S] ->
/// d_zxbcdt and the gradients of weights as mamba2_backward (with its attributes), d_before
/// [N*(K-1),I+2GS]. `d_final`: the gradient of the state behind each section.

extern const OpDefinition kMamba2LastInputsOp;
extern const OpDefinition kMamba2AddInputsOp;
extern const OpDefinition kMamba2SectionStatesOp;
extern const OpDefinition kMamba2SectionOp;
extern const OpDefinition kMamba2SectionStateGradsOp;
extern const OpDefinition kMamba2SectionBackwardOp;

/// mamba2 over the sequences of ranks of `group`, of which this one has rows and all heads.
/// attributes.sequence: rows of a section. The forward gathers the last inputs, then what sections
/// do to states; the backward the gradients of both, in the opposite direction. Returns v.
ValueId mamba2_over_context(GraphBuilder& builder, const Mamba2Operands& operands,
                            const Mamba2Attributes& attributes, const ContextSections& context,
                            std::string_view group, std::string_view site);

}  // namespace braid
