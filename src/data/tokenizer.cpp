#include "data/tokenizer.h"

#include <charconv>
#include <filesystem>

#include "base/checksum.h"
#include "base/errors.h"
#include "base/file.h"
#include "data/hf_tokenizer.h"
#include "data/regex.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/text_normalizer.h"

namespace braid {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kEod = 256;

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> tokens;
    tokens.reserve(text.size());
    for (const char c : text) {
      tokens.push_back(static_cast<unsigned char>(c));
    }
    return tokens;
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text;
    text.reserve(tokens.size());
    for (const int32_t token : tokens) {
      if (token < 0 || token > kEod) {
        throw_data_error("token {} is outside the vocabulary of {} of tokenizer 'bytes'", token,
                         kEod + 1);
      }
      if (token != kEod) {
        text.push_back(static_cast<char>(token));
      }
    }
    return text;
  }

  int32_t vocabulary_size() const override { return kEod + 1; }
  std::optional<int32_t> eod_id() const override { return kEod; }
  const std::string& name() const override { return name_; }
  std::string describe() const override { return "one id per byte"; }

 private:
  std::string name_ = "bytes";
};

constexpr std::string_view kIdsPrefix = "ids:";
constexpr int32_t kMaxIds = 1 << 24;  // the limit of model.vocabulary

/// Ids of a token file that another program made; they have no text.
class IdTokenizer final : public Tokenizer {
 public:
  explicit IdTokenizer(const std::string& name) : name_(name) {
    const std::string_view count = std::string_view(name).substr(kIdsPrefix.size());
    const auto [end, error] =
        std::from_chars(count.data(), count.data() + count.size(), vocabulary_size_);
    if (error != std::errc() || end != count.data() + count.size() || vocabulary_size_ < 1 ||
        vocabulary_size_ > kMaxIds) {
      throw_config_error(
          "tokenizer '{}': \"ids:N\" needs the number of token ids N, from 1 to {}, such as "
          "\"ids:128256\"",
          name, kMaxIds);
    }
  }

  std::vector<int32_t> encode(std::string_view) const override { throw_no_text(); }
  std::string decode(std::span<const int32_t>) const override { throw_no_text(); }
  int32_t vocabulary_size() const override { return vocabulary_size_; }
  std::optional<int32_t> eod_id() const override { return std::nullopt; }
  const std::string& name() const override { return name_; }
  std::string describe() const override {
    return fmt::format("{} ids without text", vocabulary_size_);
  }

 private:
  [[noreturn]] void throw_no_text() const {
    throw_config_error(
        "tokenizer '{}' only gives the number of ids of a .bin/.idx pair; for text, give \"bytes\" "
        "the path of a tokenizer.json or of a SentencePiece model",
        name_);
  }

  std::string name_;
  int32_t vocabulary_size_ = 0;
};

/// The tokenizer in a folder, or the path itself.
std::string file_of_tokenizer(const std::string& path) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(path)) {
    return path;
  }
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    if (const fs::path file = fs::path(path) / name; fs::exists(file)) {
      return file.string();
    }
  }
  throw_data_error("tokenizer '{}': the folder has neither tokenizer.model nor tokenizer.json",
                   path);
}

}  // namespace

std::vector<int32_t> Tokenizer::stop_ids() const {
  const std::optional<int32_t> eod = eod_id();
  return eod ? std::vector<int32_t>{*eod} : std::vector<int32_t>();
}

std::string join_texts(std::span<const int32_t> tokens, std::span<const std::string> texts,
                       const std::string& tokenizer) {
  std::string joined;
  for (const int32_t token : tokens) {
    if (token < 0 || static_cast<size_t>(token) >= texts.size()) {
      throw_data_error("token {} is outside the vocabulary of {} of tokenizer '{}'", token,
                       texts.size(), tokenizer);
    }
    joined += texts[static_cast<size_t>(token)];
  }
  return joined;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name) {
  if (name.empty()) {
    throw_config_error(
        "the tokenizer has no name: give \"bytes\", the path of a tokenizer.json or of a "
        "SentencePiece model, or \"ids:N\"");
  }
  if (name == "bytes") {
    return std::make_unique<ByteTokenizer>();
  }
  if (name.starts_with(kIdsPrefix)) {
    return std::make_unique<IdTokenizer>(name);
  }
  if (!std::filesystem::exists(name)) {
    throw_data_error(
        "tokenizer '{}': No such file; give \"bytes\", the path of a tokenizer.json or of a "
        "SentencePiece model, or \"ids:N\"",
        name);
  }
  const std::string file = file_of_tokenizer(name);
  return is_hugging_face_tokenizer(file) ? load_hf_tokenizer(file) : load_sentencepiece(file);
}

std::string tokenizer_identity(const Tokenizer& tokenizer) {
  if (!is_tokenizer_file(tokenizer.name())) {
    return tokenizer.name();
  }
  const bool names_end = is_hugging_face_tokenizer(tokenizer.name()) && tokenizer.eod_id();
  return fmt::format("{} ids, XXH3 {}{}", tokenizer.vocabulary_size(),
                     checksum_of(PieceFile(tokenizer.name())),
                     names_end ? fmt::format(", end {}", *tokenizer.eod_id()) : "");
}

bool is_tokenizer_file(std::string_view name) {
  return name != "bytes" && !name.starts_with(kIdsPrefix);
}

bool is_hugging_face_tokenizer(std::string_view path) {
  return path.ends_with(".json");
}

std::string describe_tokenizer_libraries() {
  return fmt::format("{}; {}", describe_regex_library(), describe_normalizer_library());
}

}  // namespace braid
