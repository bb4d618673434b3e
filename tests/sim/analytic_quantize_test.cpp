#include <gtest/gtest.h>

#include "ops/quantize.h"
#include "ops/specs.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

struct QuantizeCase {
  const char* of;  ///< "": of a stored value
  int64_t block;   ///< 0: one scale for all
  int64_t columns;
  double us;
};

constexpr int64_t kRows = 8192;

/// Copies by rows and by columns.
OpSpec quantize_of(const QuantizeCase& it) {
  QuantizeAttributes attributes;
  attributes.block = it.block;
  attributes.row = true;
  attributes.column = true;
  attributes.source = {it.of};
  OpSpec spec{"quantize", to_attributes(attributes), {read(DType::kBF16, {kRows, it.columns})}};
  if (attributes.source.of == "swiglu") {
    spec.operands[0].shape = {kRows, 2 * it.columns};
  } else if (attributes.source.of == "swiglu_backward") {
    spec.operands.push_back(read(DType::kBF16, {kRows, it.columns / 2}));
  }
  for (const Shape& copy : {Shape{kRows, it.columns}, Shape{it.columns, kRows}}) {
    spec.operands.push_back(write(DType::kF8E4M3, copy));
    spec.operands.push_back(write(DType::kF32, attributes.scales().shape(copy)));
  }
  return spec;
}

// Steady load on an H200 (bench/notes.md, "FP8 copies and products"). Swiglu's backward in runs of
// 128 is left out: it takes 1.3 times its bytes.
TEST(AnalyticModel, QuantizeIsWithin15PercentOfH200) {
  const auto model = make_analytic_model(parse_cluster("h200"));
  for (const QuantizeCase& measured : {QuantizeCase{"", 128, 14336, 127.8},
                                       {"swiglu", 128, 14336, 187.2},
                                       {"", 0, 4096, 56.6},
                                       {"", 0, 28672, 355.8},
                                       {"swiglu", 0, 14336, 297.5},
                                       {"swiglu_backward", 0, 28672, 510.3}}) {
    const auto ns = static_cast<double>(model->task_ns(quantize_of(measured)));
    EXPECT_NEAR(ns * 1e-3 / measured.us, 1.0, 0.15)
        << measured.of << " " << measured.block << " " << measured.columns;
  }
}

}  // namespace
}  // namespace braid
