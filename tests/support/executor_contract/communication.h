#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "passes/streams/insert_events.h"
#include "support/executor_contract/fixture.h"
#include "support/executor_helpers.h"

/// Communication of a rank that is alone in its group.
namespace braid {

TEST_P(ExecutorContract, CollectivesOfOneRankCopy) {
  constexpr int64_t kElems = 1001;
  ProgramBuilder builder("step", 1, 2);
  const StreamId compute = builder.add_stream({"compute", StreamKind::kCompute, 0});
  builder.add_group({"both", GroupKind::kData, {0, 1}});
  builder.add_group({"alone", GroupKind::kTensor, {1}});
  const auto buffer = [&](const std::string& name) {
    return builder.whole(builder.add_buffer(
        {name, DType::kF32, {kElems}, BufferRole::kActivation, Lifetime::kPersistent}));
  };
  const BufferRange x = buffer("x");
  const auto add = [&](const std::string& op, const Attribute& more = {}) {
    OpSpec spec{op,
                {{"group", int64_t{1}}},
                {{DType::kF32, Access::kRead, {kElems}}, {DType::kF32, Access::kWrite, {kElems}}}};
    if (!more.name.empty()) {
      spec.attributes.push_back(more);
    }
    builder.add_task(spec, std::array{x, buffer(op)}, compute, {.phase = Phase::kComm});
  };
  for (const char* const op : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}) {
    add(op);
  }
  add("broadcast", {"root", int64_t{0}});
  add("reduce", {"root", int64_t{0}});
  add("ring_shift", {"shift", int64_t{-3}});
  const auto executor = make(insert_events(builder.take()).program);
  std::vector<float> values(kElems);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i) + 0.25f;
  }
  write_floats(*executor, "x", values);
  executor->run(0);
  for (const char* const op : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                               "broadcast", "reduce", "ring_shift"}) {
    EXPECT_EQ(read_floats(*executor, op, kElems), values) << op;
  }
  EXPECT_EQ(read_floats(*executor, "x", kElems), values);
}

// It only marks where gradients are summed over a group, however large that is.
TEST_P(ExecutorContract, IdentityCopiesWhateverItsGroup) {
  ProgramBuilder builder("step", 1, 2);
  const StreamId compute = builder.add_stream({"compute", StreamKind::kCompute, 0});
  builder.add_group({"both", GroupKind::kTensor, {0, 1}});
  std::vector<BufferRange> ranges;
  for (const char* const name : {"x", "y"}) {
    ranges.push_back(builder.whole(builder.add_buffer(
        {name, DType::kF32, {3, 7}, BufferRole::kActivation, Lifetime::kPersistent})));
  }
  const OpSpec spec{"identity",
                    {{"group", int64_t{0}}},
                    {{DType::kF32, Access::kRead, {3, 7}}, {DType::kF32, Access::kWrite, {3, 7}}}};
  builder.add_task(spec, ranges, compute, {});
  const auto executor = make(insert_events(builder.take()).program);
  write_floats(*executor, "x", std::vector<float>(21, 2.5f));
  executor->run(0);
  EXPECT_THAT(read_floats(*executor, "y", 21), ::testing::Each(2.5f));
}

}  // namespace braid
