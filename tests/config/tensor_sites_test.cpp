#include "config/tensor_sites.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

OverlapConfig manual() {
  OverlapConfig overlap;
  overlap.mode = "manual";
  overlap.tp_comm_overlap = true;
  return overlap;
}

ParallelConfig tensor_ranks(bool sequence_parallel) {
  ParallelConfig parallel;
  parallel.ranks = 2;
  parallel.tensor = 2;
  parallel.sequence_parallel = sequence_parallel;
  return parallel;
}

OverlapConfig with_sites(std::vector<std::string> sites) {
  OverlapConfig overlap = manual();
  overlap.tp_comm_overlap_sites = std::move(sites);
  return overlap;
}

OverlapConfig without_sequence_parallel() {
  OverlapConfig overlap = manual();
  overlap.tp_comm_overlap_ag = false;
  overlap.tp_comm_overlap_rs = false;
  overlap.tp_comm_bulk_dgrad = false;
  return overlap;
}

std::string refusal(const OverlapConfig& overlap, bool sequence_parallel = true) {
  return message_of<ConfigError>(
      [&] { validate_tensor_overlap(overlap, tensor_ranks(sequence_parallel)); });
}

std::map<std::string, std::string> methods(const OverlapConfig& overlap) {
  std::map<std::string, std::string> by_site;
  for (const TensorSiteChoice& choice : tensor_site_choices(overlap)) {
    EXPECT_TRUE(by_site.emplace(choice.site, overlap_method_name(choice.method)).second)
        << choice.site;
  }
  return by_site;
}

TEST(TensorSiteChoices, AreThoseOfTransformerEngineUnlessGiven) {
  EXPECT_EQ(methods(manual()), (std::map<std::string, std::string>{{"qkv_fprop", "ring"},
                                                                   {"fc1_fprop", "ring"},
                                                                   {"logits_fprop", "ring"},
                                                                   {"proj_dgrad", "ring"},
                                                                   {"fc2_dgrad", "ring"},
                                                                   {"proj_fprop", "chunked"},
                                                                   {"fc2_fprop", "chunked"},
                                                                   {"qkv_dgrad", "bulk"},
                                                                   {"fc1_dgrad", "bulk"},
                                                                   {"logits_dgrad", "bulk"},
                                                                   {"qkv_wgrad", "bulk"},
                                                                   {"fc1_wgrad", "bulk"},
                                                                   {"logits_wgrad", "bulk"}}));
}

TEST(TensorSiteChoices, EntriesComeAfterKeys) {
  OverlapConfig overlap = with_sites({"fc2_fprop=ring", "proj_fprop=chunked:7", "qkv_wgrad=none"});
  overlap.tp_comm_overlap_rs_dgrad = true;
  overlap.tp_comm_overlap_ag = false;
  const auto by_site = methods(overlap);
  EXPECT_EQ(by_site.at("fc2_fprop"), "ring");
  EXPECT_EQ(by_site.at("qkv_wgrad"), "none");
  EXPECT_EQ(by_site.at("fc1_dgrad"), "ring");
  EXPECT_FALSE(by_site.contains("qkv_fprop"));
  for (const TensorSiteChoice& choice : tensor_site_choices(overlap)) {
    EXPECT_EQ(choice.splits, choice.site == "proj_fprop" ? 7 : 4) << choice.site;
  }
}

TEST(TensorSites, RefusesEntriesThatAreNone) {
  EXPECT_THAT(refusal(with_sites({"fc2_fprop"})), HasSubstr("does not have the form SITE=METHOD"));
  EXPECT_THAT(refusal(with_sites({"fc3_fprop=ring"})),
              HasSubstr("unknown site \"fc3_fprop\" (known: qkv_fprop, "));
  EXPECT_THAT(refusal(with_sites({"qkv_fprop=pipeline"})),
              HasSubstr("qkv_fprop may be none, ring, not \"pipeline\""));
  EXPECT_THAT(refusal(with_sites({"proj_fprop=bulk"})),
              HasSubstr("proj_fprop may be none, ring, chunked, not \"bulk\""));
  for (const char* const entry :
       {"proj_fprop=chunked:1", "proj_fprop=chunked:65",
        "proj_fprop=chunked:", "proj_fprop=chunked:2x", "proj_fprop=ring:2"}) {
    EXPECT_THAT(refusal(with_sites({entry})),
                HasSubstr("only chunked takes a number of pieces, from 2 to 64"));
  }
}

TEST(TensorSites, RefusesToHideOneSumTwice) {
  OverlapConfig overlap = manual();
  overlap.tp_comm_overlap_rs_dgrad = true;
  EXPECT_EQ(refusal(overlap),
            "overlap.tp_comm_bulk_wgrad = true: qkv_wgrad would hide a sum that qkv_dgrad = ring "
            "already sends in pieces; set overlap.tp_comm_bulk_wgrad = false, or "
            "\"qkv_wgrad=none\" in overlap.tp_comm_overlap_sites");
  overlap.tp_comm_bulk_wgrad = false;
  EXPECT_NO_THROW(validate_tensor_overlap(overlap, tensor_ranks(true)));
  EXPECT_THAT(refusal(with_sites({"fc1_dgrad=ring"})), HasSubstr("\"fc1_wgrad=none\""));
  // Where a site asks for it, the switch would change nothing.
  overlap.tp_comm_overlap_sites = {"logits_wgrad=bulk"};
  EXPECT_EQ(refusal(overlap),
            "overlap.tp_comm_overlap_sites: logits_wgrad=bulk: logits_wgrad would hide a sum that "
            "logits_dgrad = ring already sends in pieces; set \"logits_wgrad=none\" in "
            "overlap.tp_comm_overlap_sites");
  EXPECT_NO_THROW(validate_tensor_overlap(with_sites({"fc1_dgrad=ring", "fc1_wgrad=none"}),
                                          tensor_ranks(true)));
}

TEST(TensorSites, SaysWhatIsPossibleWithoutSequenceParallelism) {
  EXPECT_THAT(
      refusal(manual(), false),
      HasSubstr(
          "overlap.tp_comm_overlap_ag = true: splits or hides an all-gather or a reduce-scatter; "
          "set parallel.sequence_parallel = true. Without it there are only all-reduces"));
  OverlapConfig overlap = without_sequence_parallel();
  EXPECT_NO_THROW(validate_tensor_overlap(overlap, tensor_ranks(false)));
  overlap.tp_comm_overlap_sites = {"proj_fprop=chunked:4"};
  EXPECT_NO_THROW(validate_tensor_overlap(overlap, tensor_ranks(false)));
  overlap.tp_comm_overlap_sites = {"proj_fprop=ring"};
  EXPECT_THAT(refusal(overlap, false), HasSubstr("proj_fprop=ring splits or hides"));
  overlap.tp_comm_overlap_sites = {"qkv_dgrad=bulk"};
  EXPECT_THAT(refusal(overlap, false), HasSubstr("qkv_dgrad=bulk splits or hides"));
}

TEST(TensorSites, RefusesColumnsOfAWeightInPieces) {
  EXPECT_THAT(refusal(with_sites({"qkv_dgrad=chunked", "qkv_wgrad=none"})),
              HasSubstr("columns of the weight, which are not contiguous; set \"qkv_dgrad=ring\""));
}

TEST(TensorSites, RefusesKeysThatNothingReads) {
  OverlapConfig overlap = manual();
  overlap.mode = "auto";
  EXPECT_THAT(refusal(overlap), HasSubstr("is read with mode = \"manual\" only; mode is \"auto\""));
  EXPECT_THAT(message_of<ConfigError>([] { validate_tensor_overlap(manual(), {}); }),
              HasSubstr("parallel.tensor = 1; set parallel.tensor above 1 or remove the key"));
  OverlapConfig without;
  without.mode = "manual";
  without.tp_comm_bulk_wgrad = false;
  EXPECT_THAT(refusal(without), HasSubstr("overlap.tp_comm_bulk_wgrad = false: is read with "
                                          "tp_comm_overlap = true only"));
  EXPECT_THAT(message_of<ConfigError>([&] { validate_tensor_overlap(without, {}); }),
              HasSubstr("overlap.tp_comm_bulk_wgrad = false: concerns communication of tensor "
                        "ranks, but parallel.tensor = 1"));
  EXPECT_NO_THROW(validate_tensor_overlap({}, tensor_ranks(true)));
}

}  // namespace
}  // namespace braid
