#include "data/hf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/temp_folder.h"
#include "data/utf8.h"
#include "support/source_path.h"

namespace braid {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string file_of(const std::string& name) {
  return source_path("tests/data/tokenizers/" + name + "/tokenizer.json");
}

json read_json(const std::string& path) {
  return parse_json(read_text_file(path, 1 << 24), path);
}

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

// The ids are those of Hugging Face's library (tests/reference/tokenizers_side.py), of code, CJK,
// emoji, combining marks, runs of spaces, digits, random characters and broken UTF-8.
TEST(HfTokenizer, GivesTheIdsOfTheLibrary) {
  const json golden = read_json(source_path("tests/data/tokenizers/golden.json"));
  for (const char* name : {"gpt2", "llama3", "qwen"}) {
    const auto tokenizer = load_tokenizer(file_of(name));
    for (size_t i = 0; i < golden["hex"].size(); ++i) {
      const std::string text = from_hex(golden["hex"][i]);
      EXPECT_EQ(tokenizer->encode(text), golden[name][i].get<std::vector<int32_t>>())
          << name << ", text " << i << ": " << text;
    }
  }
}

TEST(HfTokenizer, DecodesWhatItEncoded) {
  const json golden = read_json(source_path("tests/data/tokenizers/golden.json"));
  const auto tokenizer = load_tokenizer(file_of("llama3"));  // normalizes nothing
  for (const json& hex : golden["hex"]) {
    const std::string text = from_hex(hex);
    if (text.find("<|begin_of_text|>") == std::string::npos) {
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), replace_invalid_utf8(text));
    }
  }
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a<|eot_id|>b")), "ab");  // special: no text
  EXPECT_THAT(message_of<DataError>([&] { tokenizer->decode(std::vector<int32_t>{700}); }),
              AllOf(HasSubstr("token 700"), HasSubstr("643")));
}

class HfTokenizerFile : public testing::Test {
 protected:
  /// A changed copy of the tokenizer as of Llama 3.
  std::string write(const json& patch) const {
    json root = read_json(file_of("llama3"));
    root.merge_patch(patch);
    write_test_file(folder_ / "tokenizer.json", root.dump());
    return folder_ / "tokenizer.json";
  }

  TempFolder folder_;
};

TEST_F(HfTokenizerFile, FilesBesideItNameSpecialTokens) {
  const std::string path = write(json::object());
  const auto alone = load_tokenizer(path);
  EXPECT_EQ(alone->eod_id(), std::nullopt);
  EXPECT_THAT(alone->stop_ids(), ElementsAre());
  EXPECT_THAT(alone->frame().before, ElementsAre(640));
  EXPECT_THAT(alone->frame().after, ElementsAre());
  EXPECT_EQ(alone->vocabulary_size(), 643);
  write_test_file(folder_ / "tokenizer_config.json",
                  R"({"bos_token": {"content": "<|begin_of_text|>"},
                      "eos_token": "<|end_of_text|>"})");
  write_test_file(folder_ / "generation_config.json", R"({"eos_token_id": [642, 641]})");
  const auto both = load_tokenizer(folder_.path().string());  // the folder
  EXPECT_EQ(both->name(), path);
  EXPECT_EQ(both->eod_id(), 641);
  EXPECT_EQ(both->bos_id(), 640);
  EXPECT_THAT(both->stop_ids(), ElementsAre(642, 641));
  EXPECT_EQ(tokenizer_identity(*both), tokenizer_identity(*alone) + ", end 641");
  EXPECT_EQ(both->describe(),
            "byte-level BPE of 643 ids, 3 of them added tokens, and 383 merges; normalization: "
            "none; a text begins with 640 \"<|begin_of_text|>\" and ends with nothing; end of "
            "document: 641 \"<|end_of_text|>\"");
  write_test_file(folder_ / "tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_THAT(message_of<DataError>([&] { load_tokenizer(path); }),
              AllOf(HasSubstr("eos_token"), HasSubstr("\"</s>\" is not in the vocabulary")));
}

TEST_F(HfTokenizerFile, RefusesWhatItDoesNotCompute) {
  const auto split = [](const json& part) {
    return json{{"pre_tokenizer",
                 {{"type", "Sequence"}, {"pretokenizers", {part, {{"type", "ByteLevel"}}}}}}};
  };
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"model", {{"type", "Unigram"}}}}, "model \"Unigram\""},
      {{{"model", {{"dropout", 0.1}}}}, "\"dropout\""},
      {{{"model", {{"end_of_word_suffix", "</w>"}}}}, "\"end_of_word_suffix\""},
      {{{"model", {{"vocab", {{"\u0120", nullptr}}}}}}, "is not in the vocabulary"},
      {{{"model", {{"merges", json::array()}, {"vocab", {{"!", nullptr}}}}}},
       "no token for the byte 0x21"},
      {{{"model", {{"merges", {"a b c"}}}}}, "\"a b c\\\"\" is not a merge of two tokens"},
      {{{"model", {{"vocab", {{"a", 70}}}}}}, "so has"},
      {{{"normalizer", {{"type", "Lowercase"}}}}, "normalizer \"Lowercase\""},
      {{{"pre_tokenizer", nullptr}}, "pre-tokenizer \"null\""},
      {{{"pre_tokenizer", {{"type", "Metaspace"}}}}, "pre-tokenizer \"Metaspace\""},
      {split({{"type", "ByteLevel"}}), "follows ByteLevel"},
      {split({{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithNext"}}),
       "\"MergedWithNext\""},
      {split({{"type", "Split"}, {"pattern", {{"Regex", "[a&&b]"}}}, {"behavior", "Isolated"}}),
       "\"&&\" in a regular expression"},
      {{{"decoder", {{"type", "WordPiece"}}}}, "decoder \"WordPiece\""},
      {{{"post_processor", {{"type", "BertProcessing"}}}}, "post-processor \"BertProcessing\""},
      {{{"added_tokens", {{{"id", 640}, {"content", "<s>"}, {"single_word", true}}}}},
       "single_word"},
      {{{"added_tokens", {{{"id", 1 << 24}, {"content", "<s>"}}}}}, "must be an id"},
      {{{"added_tokens", {{{"id", 9000}, {"content", "<s>"}}}}}, "ids must be below"},
      {{{"post_processor",
         {{"type", "TemplateProcessing"},
          {"single", json::array({{{"SpecialToken", {{"id", "<s>"}}}}})},
          {"special_tokens", {{"<s>", {{"ids", json::array({650})}}}}}}}},
       "adds id 650, but there are 643 ids"},
  };
  for (const auto& [patch, message] : cases) {
    EXPECT_THAT(message_of<DataError>([&, &patch = patch] { load_tokenizer(write(patch)); }),
                AllOf(HasSubstr("tokenizer.json'"), HasSubstr(message)))
        << patch;
  }
  write_test_file(folder_ / "tokenizer.json", R"({"version": "1.0"})");
  EXPECT_THAT(message_of<DataError>([&] { load_tokenizer(folder_ / "tokenizer.json"); }),
              HasSubstr("is not a tokenizer.json: it has no \"model\""));
  std::filesystem::remove(folder_ / "tokenizer.json");
  EXPECT_THAT(message_of<DataError>([&] { load_tokenizer(folder_.path().string()); }),
              HasSubstr("the folder has neither tokenizer.model nor tokenizer.json"));
}

// Other parts that occur in published files: Digits, a string to split at, a first space.
TEST_F(HfTokenizerFile, CutsByEveryRule) {
  const auto words = [&](const json& pre_tokenizers) {
    const auto tokenizer = load_tokenizer(
        write({{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", pre_tokenizers}}},
               {"model", {{"merges", json::array()}, {"ignore_merges", false}}}}));
    std::string text = tokenizer->decode(tokenizer->encode("12 xx"));
    return text + "|" + std::to_string(tokenizer->encode("12 xx").size());
  };
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const json spaced = {{"type", "ByteLevel"}, {"add_prefix_space", true}};
  const json removed = {{"type", "Split"},
                        {"pattern", {{"String", " "}}},
                        {"behavior", "Removed"},
                        {"invert", false}};
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  json kept = removed;
  kept["invert"] = true;
  EXPECT_EQ(words(json::array({bytes})), "12 xx|5");
  EXPECT_EQ(words(json::array({removed, bytes})), "12xx|4");
  EXPECT_EQ(words(json::array({kept, bytes})), " |1");
  EXPECT_EQ(words(json::array({removed, spaced})).substr(0, 6), " 12 xx");
  EXPECT_EQ(words(json::array({digits, bytes})), "12 xx|5");
}

}  // namespace
}  // namespace braid
