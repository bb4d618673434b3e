#include "config/choices.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/expect_error.h"
#include "config/fields.h"
#include "model/families.h"
#include "parallel/schedule.h"

namespace braid {
namespace {

std::vector<std::string> allowed_names(std::string_view section, std::string_view name) {
  const auto allowed = find_field(section, name)->limits.allowed;
  return {allowed.begin(), allowed.end()};
}

template <class T>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  for (const auto& [name, value] : kChoices<T>) {
    names.emplace_back(name);
    EXPECT_EQ(choice<T>(name), value);
    EXPECT_EQ(choice_name(value), name);
  }
  return names;
}

TEST(Choices, HaveTheNamesOfTheRunFile) {
  std::vector<std::string> families;
  for (const ModelFamily& family : kModelFamilies) {
    families.emplace_back(family.name);
  }
  EXPECT_EQ(families, allowed_names("model", "family"));
  EXPECT_EQ(names_of<DType>(), allowed_names("train", "dtype"));
  EXPECT_EQ(names_of<DType>(), allowed_names("parallel", "grad_reduce_dtype"));
  EXPECT_EQ(names_of<DType>(), allowed_names("optimizer", "moments_dtype"));
  EXPECT_EQ(names_of<DType>(), allowed_names("optimizer", "main_grads_dtype"));
  EXPECT_EQ(names_of<Fp8Choice>(), allowed_names("train", "fp8"));
  EXPECT_EQ(names_of<WeightBlocks>(), allowed_names("train", "fp8_weight_blocks"));
  EXPECT_EQ(names_of<Fp8SumsChoice>(), allowed_names("train", "fp8_sums"));
  EXPECT_EQ(names_of<RopeType>(), allowed_names("model", "rope_type"));
  EXPECT_EQ(names_of<RouterScores>(), allowed_names("model", "router_scores"));
  EXPECT_EQ(names_of<DropChoice>(), allowed_names("moe", "drop"));
  EXPECT_EQ(names_of<OverflowChoice>(), allowed_names("moe", "on_overflow"));
  EXPECT_EQ(names_of<ExchangeChoice>(), allowed_names("moe", "exchange"));
  EXPECT_EQ(names_of<RateSchedule>(), allowed_names("optimizer", "schedule"));
  EXPECT_EQ(names_of<OptimizerKind>(), allowed_names("optimizer", "name"));
  EXPECT_EQ(names_of<MuonScale>(), allowed_names("optimizer", "muon_scale"));
  EXPECT_EQ(names_of<DType>(), allowed_names("optimizer", "muon_dtype"));
  EXPECT_EQ(names_of<DocumentPacking>(), allowed_names("data", "packing"));
  EXPECT_EQ(names_of<PreferenceChoice>(), allowed_names("preference", "loss"));
  EXPECT_EQ(names_of<DecayShape>(), allowed_names("optimizer", "decay_shape"));
  EXPECT_EQ(names_of<ContextExchange>(), allowed_names("parallel", "context_method"));
  EXPECT_EQ(names_of<MambaContext>(), allowed_names("parallel", "mamba_context"));
  EXPECT_EQ(names_of<ShardKind>(), allowed_names("parallel", "shard"));
  EXPECT_EQ(names_of<BucketKind>(), allowed_names("parallel", "bucket"));
  EXPECT_EQ(names_of<RecomputeChoice>(), allowed_names("memory", "recompute"));
  EXPECT_EQ(names_of<OverlapMode>(), allowed_names("overlap", "mode"));
  EXPECT_EQ(names_of<EngineChoice>(), allowed_names("overlap", "comm_engine"));
  EXPECT_EQ(names_of<PairKind>(), allowed_names("overlap", "pair_forward_backward"));
  EXPECT_EQ(names_of<Switch>(), allowed_names("logging", "progress"));
  EXPECT_EQ(names_of<LogFormat>(), allowed_names("logging", "format"));
  EXPECT_EQ(names_of<Switch>(), allowed_names("runtime", "fuse_swiglu"));
  EXPECT_EQ(names_of<DeviceChoice>(), allowed_names("runtime", "device"));
  EXPECT_EQ(names_of<ProcessChoice>(), allowed_names("runtime", "processes"));
  EXPECT_EQ(names_of<NanCheck>(), allowed_names("runtime", "detect_nan"));
  for (const std::string& name : allowed_names("parallel", "schedule")) {
    EXPECT_EQ(schedule_name(schedule_kind(name)), name);
  }
}

// A key of names that is not in the list above has no type.
TEST(Choices, CoverEveryKeyOfNames) {
  size_t keys = 0;
  for (const Field& field : config_fields()) {
    keys += field.limits.allowed.empty() ? 0 : 1;
  }
  EXPECT_EQ(keys, 35u) << "name the new key above";
}

TEST(Choices, RefuseOtherNames) {
  EXPECT_EQ(message_of<InternalError>([] { choice<ShardKind>("some"); }),
            "no choice is called some");
}

}  // namespace
}  // namespace braid
