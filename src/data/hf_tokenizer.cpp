#include "data/hf_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "data/added_tokens.h"
#include "data/bpe_model.h"
#include "data/byte_alphabet.h"
#include "data/model_folder.h"
#include "data/pre_tokenizer.h"
#include "data/text_normalizer.h"
#include "data/tokenizer_json.h"
#include "data/utf8.h"

namespace braid {
namespace {

using nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;  // of files in use: some megabytes
constexpr size_t kShownBytes = 80;

/// "model" and "added_tokens": which token has which id.
struct Vocabulary {
  std::vector<std::string> tokens;  // by id, as written in the file; empty where an id has none
  std::unordered_map<std::string, int32_t> ids;
  size_t max_ids = 0;  // so that a small file does not fill the memory with gaps

  void add(const std::string& token, int32_t id, const std::string& what) {
    const auto index = static_cast<size_t>(id);
    if (index >= max_ids) {
      throw_data_error("{}: the token {} has id {}; with that few tokens, ids must be below {}",
                       what, quote(token, kShownBytes), id, max_ids);
    }
    if (tokens.size() <= index) {
      tokens.resize(index + 1);
    }
    const auto [other, is_new] = ids.emplace(token, id);
    if (other->second != id || (!tokens[index].empty() && tokens[index] != token)) {
      throw_data_error("{}: the token {} has id {}, but {}", what, quote(token, kShownBytes), id,
                       is_new ? fmt::format("so has {}", quote(tokens[index], kShownBytes))
                              : fmt::format("also id {}", other->second));
    }
    tokens[index] = token;
  }

  /// Throws DataError if there is none.
  int32_t id_of(const std::string& token, const std::string& what) const {
    const auto found = ids.find(token);
    if (found == ids.end()) {
      throw_data_error("{}: {} is not in the vocabulary", what, quote(token, kShownBytes));
    }
    return found->second;
  }
};

/// Options of "model" that would change ids.
void check_model_options(const json& model, const std::string& what) {
  const std::string type = model.contains("type") ? text_member(model, "type", what) : "BPE";
  if (type != "BPE") {
    refuse_component(what, "model", type);
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& value = json_member(model, key, what);
    const bool is_empty = value.is_string() && value.get_ref<const std::string&>().empty();
    if (!value.is_null() && !is_empty) {
      throw_data_error("{}: braid does not support \"{}\" of a BPE model", what, key);
    }
  }
  const json& dropout = json_member(model, "dropout", what);
  if (!dropout.is_null() && dropout != 0) {
    throw_data_error("{}: \"dropout\" makes random ids; set it to null", what);
  }
}

/// Largest number of ids that a file with so many tokens may have.
size_t id_limit(size_t num_tokens) {
  constexpr size_t kMaxGaps = 4096;
  return 2 * num_tokens + kMaxGaps;
}

Vocabulary read_vocabulary(const json& model, const json& added, const std::string& what) {
  const json& entries = json_member(model, "vocab", what);
  if (!entries.is_object() || entries.empty()) {
    throw_data_error("{}: its model has no \"vocab\"", what);
  }
  Vocabulary vocabulary{.max_ids = id_limit(entries.size() + added.size())};
  for (const auto& [token, id] : entries.items()) {
    vocabulary.add(token, id_member(entries, token, what), what);
  }
  return vocabulary;
}

/// The two tokens of a merge: "a b", or ["a", "b"].
std::pair<std::string, std::string> parts_of_merge(const json& merge, const std::string& what) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  const std::string text = merge.is_string() ? merge.get<std::string>() : "";
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    throw_data_error(
        "{}: {} is not a merge of two tokens", what,
        quote(merge.dump(-1, ' ', false, json::error_handler_t::replace), kShownBytes));
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

BpeModel read_model(const json& model, const Vocabulary& vocabulary, const std::string& what) {
  std::vector<BpeMerge> merges;
  for (const json& merge : list_member(model, "merges", what)) {
    const auto [left, right] = parts_of_merge(merge, what);
    merges.push_back({.left = vocabulary.id_of(left, what),
                      .right = vocabulary.id_of(right, what),
                      .merged = vocabulary.id_of(left + right, what)});
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string character = character_of_byte(static_cast<uint8_t>(byte));
    if (!vocabulary.ids.contains(character)) {
      throw_data_error("{}: its vocabulary has no token for the byte 0x{:02X} ({})", what, byte,
                       quote(character));
    }
  }
  std::vector<std::string> bytes;
  for (const std::string& token : vocabulary.tokens) {
    bytes.push_back(bytes_of_token(token).value_or(""));
  }
  return {bytes, merges, {.takes_whole_words = flag_member(model, "ignore_merges", false, what)}};
}

std::vector<AddedToken> read_added_tokens(const json& root, Vocabulary& vocabulary,
                                          const std::string& what) {
  std::vector<AddedToken> tokens;
  const json& entries = json_member(root, "added_tokens", what);
  for (const json& entry :
       entries.is_null() ? json::array() : list_member(root, "added_tokens", what)) {
    AddedToken token{.id = id_member(entry, "id", what),
                     .content = text_member(entry, "content", what),
                     .is_special = flag_member(entry, "special", false, what),
                     .is_normalized = flag_member(entry, "normalized", true, what),
                     .strips_left = flag_member(entry, "lstrip", false, what),
                     .strips_right = flag_member(entry, "rstrip", false, what)};
    if (flag_member(entry, "single_word", false, what)) {
      throw_data_error("{}: the added token {} has single_word, which braid does not support", what,
                       quote(token.content, kShownBytes));
    }
    const bool is_known =
        std::ranges::find(tokens, token.content, &AddedToken::content) != tokens.end();
    vocabulary.add(token.content, token.id, what);
    if (!is_known) {
      tokens.push_back(std::move(token));
    }
  }
  return tokens;
}

/// Ids that "post_processor" puts around a text.
class FrameReader {
 public:
  FrameReader(const std::string& what, size_t num_ids)
      : what_(what), num_ids_(static_cast<int32_t>(num_ids)) {}

  TextFrame read(const json& processor) {
    if (!processor.is_null()) {
      add(processor);
    }
    return std::move(frame_);
  }

 private:
  void add(const json& processor) {
    const std::string type = type_of_component(processor, what_, "post-processor");
    if (type == "Sequence") {
      for (const json& part : list_member(processor, "processors", what_)) {
        add(part);
      }
    } else if (type == "TemplateProcessing") {
      add_template(processor);
    } else if (type != "ByteLevel") {  // which only changes offsets
      refuse_component(what_, "post-processor", type);
    }
  }

  void add_template(const json& processor) {
    std::vector<int32_t>* side = &frame_.before;
    for (const json& piece : list_member(processor, "single", what_)) {
      if (piece.contains("Sequence")) {
        side = &frame_.after;
        continue;
      }
      const std::string name = text_member(json_member(piece, "SpecialToken", what_), "id", what_);
      const json& token = json_member(json_member(processor, "special_tokens", what_), name, what_);
      for (const json& id : list_member(token, "ids", what_)) {
        side->push_back(id_member({{"id", id}}, "id", what_));
        if (side->back() >= num_ids_) {
          throw_data_error("{}: the post-processor adds id {}, but there are {} ids", what_,
                           side->back(), num_ids_);
        }
      }
    }
  }

  const std::string& what_;
  int32_t num_ids_;
  TextFrame frame_;
};

void check_decoder(const json& root, const std::string& what) {
  const json& decoder = json_member(root, "decoder", what);
  const std::string type = decoder.is_null() ? "null" : type_of_component(decoder, what, "decoder");
  if (type != "ByteLevel") {
    refuse_component(what, "decoder", type);
  }
}

/// A token that tokenizer_config.json names: "eos_token": "</s>" or {"content": "</s>", ...}.
std::optional<int32_t> named_token(const json& config, const std::string& key,
                                   const Vocabulary& vocabulary, const std::string& path) {
  const std::string what = fmt::format("tokenizer_config.json of '{}', \"{}\"", path, key);
  if (config.is_null()) {
    return std::nullopt;
  }
  const json& value = json_member(config, key, what);
  if (value.is_null()) {
    return std::nullopt;
  }
  return vocabulary.id_of(
      text_member(value.is_object() ? value : config, value.is_object() ? "content" : key, what),
      what);
}

std::vector<AddedToken> with(const std::vector<AddedToken>& tokens, bool is_normalized) {
  std::vector<AddedToken> chosen;
  std::ranges::copy_if(tokens, std::back_inserter(chosen), [&](const AddedToken& token) {
    return token.is_normalized == is_normalized;
  });
  return chosen;
}

/// Those that are looked for in normalized text, normalized themselves.
std::vector<AddedToken> normalized_tokens(const std::vector<AddedToken>& tokens,
                                          const TextNormalizer& normalizer) {
  std::vector<AddedToken> chosen = with(tokens, true);
  for (AddedToken& token : chosen) {
    std::string buffer;
    token.content = std::string(normalizer.normalize(token.content, buffer));
  }
  return chosen;
}

class HfTokenizer final : public Tokenizer {
 public:
  HfTokenizer(const json& root, const std::string& path, const std::string& what,
              Vocabulary vocabulary)
      : path_(path),
        added_(read_added_tokens(root, vocabulary, what)),
        normalizer_(json_member(root, "normalizer", what), what),
        raw_tokens_(with(added_, false)),
        normalized_tokens_(normalized_tokens(added_, normalizer_)),
        words_(json_member(root, "pre_tokenizer", what), what),
        model_(read_model(json_member(root, "model", what), vocabulary, what)),
        num_merges_(json_member(root, "model", what)["merges"].size()),
        frame_(FrameReader(what, vocabulary.tokens.size())
                   .read(json_member(root, "post_processor", what))) {
    check_decoder(root, what);
    const json config = read_beside(path, "tokenizer_config.json");
    eod_ = named_token(config, "eos_token", vocabulary, path);
    bos_ = named_token(config, "bos_token", vocabulary, path);
    stop_ids_ = stop_ids_beside(path, eod_);
    tokens_ = std::move(vocabulary.tokens);
    build_texts();
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::string valid;
    if (find_invalid_utf8(text)) {
      valid = replace_invalid_utf8(text);
      text = valid;
    }
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 4);
    PreTokenizer::Cutter cutter(words_);
    std::string buffer;
    const PreTokenizer::Visit add_word = [&](std::string_view word) { model_.encode(word, ids); };
    const auto add_normalized = [&](const AddedTokenFinder::Part& part) {
      if (part.id) {
        ids.push_back(*part.id);
      } else {
        cutter.cut(part.text, add_word);
      }
    };
    raw_tokens_.split(text, [&](const AddedTokenFinder::Part& part) {
      if (part.id) {
        ids.push_back(*part.id);
      } else {
        normalized_tokens_.split(normalizer_.normalize(part.text, buffer), add_normalized);
      }
    });
    return ids;
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    return join_texts(tokens, texts_, path_);
  }

  int32_t vocabulary_size() const override { return static_cast<int32_t>(texts_.size()); }
  std::optional<int32_t> eod_id() const override { return eod_; }
  std::optional<int32_t> bos_id() const override { return bos_; }
  TextFrame frame() const override { return frame_; }
  std::vector<int32_t> stop_ids() const override { return stop_ids_; }
  const std::string& name() const override { return path_; }

  std::string describe() const override {
    return fmt::format(
        "byte-level BPE of {} ids, {} of them added tokens, and {} merges; normalization: {}; a "
        "text begins with {} and ends with {}; end of document: {}",
        vocabulary_size(), added_.size(), num_merges_, normalizer_.describe(),
        names_of(frame_.before), names_of(frame_.after),
        eod_ ? names_of({*eod_}) : "none (tokenizer_config.json names no eos_token)");
  }

 private:
  void build_texts() {
    for (const std::string& token : tokens_) {
      texts_.push_back(bytes_of_token(token).value_or(token));
    }
    for (const AddedToken& token : added_) {
      if (token.is_special) {
        texts_[static_cast<size_t>(token.id)].clear();
      }
    }
  }

  std::string names_of(const std::vector<int32_t>& ids) const {
    std::vector<std::string> names;
    for (const int32_t id : ids) {
      names.push_back(
          fmt::format("{} {}", id, quote(tokens_[static_cast<size_t>(id)], kShownBytes)));
    }
    return names.empty() ? "nothing" : join(names, ", ");
  }

  std::string path_;
  std::vector<AddedToken> added_;
  TextNormalizer normalizer_;
  AddedTokenFinder raw_tokens_;
  AddedTokenFinder normalized_tokens_;
  PreTokenizer words_;
  BpeModel model_;
  size_t num_merges_ = 0;
  TextFrame frame_;
  std::optional<int32_t> eod_;
  std::optional<int32_t> bos_;
  std::vector<int32_t> stop_ids_;
  std::vector<std::string> tokens_;  // by id, as in the file
  std::vector<std::string> texts_;   // by id: what `decode` gives
};

}  // namespace

std::unique_ptr<Tokenizer> load_hf_tokenizer(const std::string& path) {
  const std::string what = fmt::format("'{}'", path);
  const json root = parse_json(read_text_file(path, kMaxFileBytes), what);
  const json& model = json_member(root, "model", what);
  if (model.is_null()) {
    throw_data_error("{} is not a tokenizer.json: it has no \"model\"", what);
  }
  check_model_options(model, what);
  return std::make_unique<HfTokenizer>(
      root, path, what, read_vocabulary(model, json_member(root, "added_tokens", what), what));
}

}  // namespace braid
