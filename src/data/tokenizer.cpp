#include "data/tokenizer.h"

#include "base/errors.h"
#include "data/sentencepiece_tokenizer.h"

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

 private:
  std::string name_ = "bytes";
};

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name) {
  if (name.empty()) {
    throw_config_error(
        "the tokenizer has no name: give \"bytes\" or the path of a SentencePiece model");
  }
  if (name == "bytes") {
    return std::make_unique<ByteTokenizer>();
  }
  return load_sentencepiece(name);
}

}  // namespace braid
