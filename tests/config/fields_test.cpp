#include "config/fields.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace braid {
namespace {

TEST(Fields, AreUniqueAndInTheOrderOfTheSections) {
  std::vector<std::string_view> sections_of_fields;
  std::set<std::string> names;
  for (const Field& field : config_fields()) {
    EXPECT_TRUE(names.insert(full_name(field)).second) << full_name(field);
    EXPECT_EQ(find_field(field.section, field.name), &field);
    if (sections_of_fields.empty() || sections_of_fields.back() != field.section) {
      sections_of_fields.push_back(field.section);
    }
  }
  std::vector<std::string_view> sections;
  for (const Section& section : config_sections()) {
    sections.push_back(section.name);
  }
  EXPECT_EQ(sections_of_fields, sections);
}

TEST(Fields, FindNothingUnderOtherNames) {
  EXPECT_EQ(find_field("train", "stepz"), nullptr);
  EXPECT_EQ(find_field("model", "steps"), nullptr);
  EXPECT_EQ(find_field("", ""), nullptr);
}

TEST(Fields, EachRefersToItsOwnMember) {
  RunConfig config;
  std::set<std::string> places;
  for (const Field& field : config_fields()) {
    std::ostringstream place;
    std::visit([&](const auto* value) { place << static_cast<const void*>(value); },
               field.value(config));
    EXPECT_TRUE(places.insert(place.str()).second) << full_name(field);
  }
}

/// The keys that make a run another one, all of them: a new key of these sections is refused unless
/// the table says otherwise, and then this test asks for a decision.
TEST(Fields, SayWhatAResumedRunMayChange) {
  std::set<std::string> refused;
  std::set<std::string> by_content;
  for (const Field& field : config_fields()) {
    if (on_resume(field) == OnResume::kRefused) {
      refused.insert(full_name(field));
    } else if (on_resume(field) == OnResume::kByContent) {
      by_content.insert(full_name(field));
    }
  }
  EXPECT_EQ(refused, (std::set<std::string>{"model.preset",
                                            "model.family",
                                            "model.layers",
                                            "model.pattern",
                                            "model.width",
                                            "model.heads",
                                            "model.kv_heads",
                                            "model.head_size",
                                            "model.sliding_window",
                                            "model.partial_rotary_factor",
                                            "model.rope_short_factor",
                                            "model.rope_long_factor",
                                            "model.rope_local_base_freq",
                                            "model.norm_offset",
                                            "model.post_norms",
                                            "model.scale_embedding",
                                            "model.query_pre_attn_scalar",
                                            "model.q_lora_rank",
                                            "model.kv_lora_rank",
                                            "model.qk_nope_head_dim",
                                            "model.qk_rope_head_dim",
                                            "model.v_head_dim",
                                            "model.mamba_num_heads",
                                            "model.mamba_head_dim",
                                            "model.ssm_state_size",
                                            "model.mamba_n_groups",
                                            "model.conv_kernel",
                                            "model.mamba_chunk_size",
                                            "model.mamba_dt_min",
                                            "model.mamba_dt_max",
                                            "model.experts",
                                            "model.experts_per_token",
                                            "model.expert_ffn",
                                            "model.shared_ffn",
                                            "model.shared_gate",
                                            "model.router_scores",
                                            "model.router_normalize",
                                            "model.router_scale",
                                            "model.router_bias",
                                            "model.router_logit_bias",
                                            "model.router_groups",
                                            "model.router_kept_groups",
                                            "model.ffn",
                                            "model.vocabulary",
                                            "model.max_positions",
                                            "model.tied_embeddings",
                                            "model.qkv_bias",
                                            "model.mtp_depth",
                                            "model.rope_theta",
                                            "model.rope_type",
                                            "model.rope_factor",
                                            "model.rope_original_max_position_embeddings",
                                            "model.rope_low_freq_factor",
                                            "model.rope_high_freq_factor",
                                            "model.rope_beta_fast",
                                            "model.rope_beta_slow",
                                            "model.rope_truncate",
                                            "model.rope_mscale",
                                            "model.rope_mscale_all_dim",
                                            "model.rope_attention_factor",
                                            "model.norm_epsilon",
                                            "lora.rank",
                                            "lora.alpha",
                                            "lora.dora",
                                            "lora.targets",
                                            "lora.base",
                                            "preference.loss",
                                            "preference.beta",
                                            "preference.label_smoothing",
                                            "train.sequence",
                                            "train.global_batch",
                                            "train.seed",
                                            "train.dtype",
                                            "optimizer.name",
                                            "data.split",
                                            "data.valid",
                                            "data.seed",
                                            "data.packing",
                                            "data.document_mask"}));
  EXPECT_EQ(by_content, (std::set<std::string>{"data.train", "data.blend", "data.tokenizer",
                                               "data.append_eod"}));
  EXPECT_EQ(Section{}.on_resume, OnResume::kRefused);  // of a section that says nothing
}

/// Docs, help and errors print these sentences as they are.
TEST(Fields, HaveASentenceEach) {
  for (const Field& field : config_fields()) {
    EXPECT_GT(field.doc.size(), 15U) << full_name(field);
    EXPECT_TRUE(field.doc.ends_with('.')) << full_name(field);
    EXPECT_EQ(field.doc.find('|'), std::string_view::npos) << full_name(field);
  }
  for (const Section& section : config_sections()) {
    EXPECT_TRUE(section.doc.ends_with('.')) << section.name;
  }
}

}  // namespace
}  // namespace braid
