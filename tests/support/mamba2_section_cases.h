#pragma once

#include "ops/mamba2_section.h"
#include "support/mamba2_cases.h"

namespace braid {

/// Sections of one Mamba-2 layer, `of.batches` of them with `of.a.sequence` rows each. Operands of
/// mamba2_section: 0 to 6 as those of mamba2, 7 before, 8 initial, 9 y, 10 rstd, 11 v. Of its
/// backward: 0 to 10 the same, 11 dv, 12 d_final, 13 to 19 the gradients of 0 to 6, 20 d_before.
struct Mamba2SectionCase {
  Mamba2Case of;
  ContextSections context = {};

  int64_t sections() const { return of.batches; }
  Shape before() const { return {sections() * (of.taps - 1), of.a.convolved()}; }
  Shape states() const { return {sections(), of.a.inner() * of.a.state}; }
  Shape summaries() const { return {sections(), of.a.inner() * of.a.state + of.a.heads}; }
  std::string name(DType dtype) const { return of.name(dtype); }

  KernelCase forward(DType dtype) const {
    return KernelCase({"mamba2_section",
                       to_attributes(Mamba2SectionAttributes{.core = of.a, .context = context}),
                       inputs(dtype, {read(wide(dtype), states()), write(dtype, of.inner()),
                                      write(wide(dtype), of.rstd()), write(dtype, of.inner())})});
  }
  /// Operand 8: the states.
  KernelCase section_states(const KernelCase& forward) const {
    const DType dtype = forward.spec().operands[0].dtype;
    KernelCase kernel({"mamba2_section_states", to_attributes(of.a),
                       inputs(dtype, {write(wide(dtype), summaries())})});
    copy_values(kernel, forward, 8);
    return kernel;
  }
  /// Of a forward that has run. Operands 8 to 10: y, rstd and dv; 11: the gradients.
  KernelCase state_grads(const KernelCase& forward) const {
    const DType dtype = forward.spec().operands[0].dtype;
    KernelCase kernel({"mamba2_section_state_grads", to_attributes(of.a),
                       inputs(dtype, {read(dtype, of.inner()), read(wide(dtype), of.rstd()),
                                      read(dtype, of.inner()), write(wide(dtype), summaries())})},
                      2);
    copy_values(kernel, forward, 8);
    kernel.set(8, forward.values(9));
    kernel.set(9, forward.values(10));
    return kernel;
  }
  KernelCase backward(const KernelCase& forward, bool accumulate = false) const {
    const DType dtype = forward.spec().operands[0].dtype;
    std::vector<OperandSpec> operands =
        inputs(dtype, {read(wide(dtype), states()), read(dtype, of.inner()),
                       read(wide(dtype), of.rstd()), read(dtype, of.inner()),
                       read(wide(dtype), states()), write(dtype, of.inputs()[0])});
    for (size_t i = 1; i < of.inputs().size(); ++i) {
      operands.push_back(gradient(accumulate, wide(dtype), of.inputs()[i]));
    }
    operands.push_back(write(dtype, before()));
    KernelCase kernel(
        {"mamba2_section_backward",
         to_attributes(Mamba2BackwardAttributes{.core = of.a, .accumulate = accumulate}), operands},
        3);
    copy_values(kernel, forward, 11);
    return kernel;
  }

 private:
  std::vector<OperandSpec> inputs(DType dtype, std::initializer_list<OperandSpec> others) const {
    std::vector<OperandSpec> operands;
    for (const Shape& shape : of.inputs()) {
      operands.push_back(read(dtype, shape));
    }
    operands.push_back(read(dtype, before()));
    operands.insert(operands.end(), others);
    return operands;
  }
  static void copy_values(KernelCase& to, const KernelCase& from, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      to.set(i, from.values(i));
    }
  }
};

/// Of the awkward cases of mamba2 those whose sections are long enough.
inline std::vector<Mamba2SectionCase> awkward_mamba2_section_cases() {
  std::vector<Mamba2SectionCase> cases;
  for (const Mamba2Case& c : awkward_mamba2_cases()) {
    if (c.taps > 1 && c.a.sequence >= c.taps - 1) {
      cases.push_back({c});
    }
  }
  cases.push_back({{{.sequence = 3,
                     .heads = 6,
                     .head_size = 2,
                     .groups = 1,
                     .state = 3,
                     .chunk = 2,
                     .norm_groups = 2,
                     .epsilon = 1e-2},
                    2,
                    4}});
  return cases;
}

}  // namespace braid
