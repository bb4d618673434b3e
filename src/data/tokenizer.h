#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// Ids that a tokenizer's own template puts around every text (<|begin_of_text|> of Llama 3).
struct TextFrame {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

/// Converts text to token ids and back. Ids are 0 to vocabulary_size() - 1. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Ids of a text, without `frame` and without an end-of-document id. Throws DataError for text
  /// that the tokenizer does not accept.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  /// Text of ids. Special ids (end of document, ...) have no text. The ids may end inside a
  /// character, which a later id completes. Throws DataError for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;
  virtual int32_t vocabulary_size() const = 0;
  /// The id that separates documents, if there is one.
  virtual std::optional<int32_t> eod_id() const = 0;
  /// The id that begins a text, if the tokenizer has one, whether or not `frame` uses it.
  virtual std::optional<int32_t> bos_id() const { return std::nullopt; }
  virtual TextFrame frame() const { return {}; }
  /// Ids after which generated text ends: end of document, and those of the model's
  /// generation_config.json.
  virtual std::vector<int32_t> stop_ids() const;
  /// "bytes", "ids:N", or the path of the file.
  virtual const std::string& name() const = 0;
  /// In a few words, for people: "SentencePiece model of 4096 pieces".
  virtual std::string describe() const = 0;
};

/// The texts of ids, one after the other; `texts` is by id. Throws DataError for an id outside
/// them, naming the tokenizer.
std::string join_texts(std::span<const int32_t> tokens, std::span<const std::string> texts,
                       const std::string& tokenizer);

/// "bytes": one id per byte, 0 to 255, and 256 for the end of a document; works for any bytes.
/// "ids:N": no text, only the ids 0 to N - 1 of a token file that another program made; `encode`
/// and `decode` throw ConfigError. Anything else is a path: a tokenizer.json of Hugging Face (a
/// name that ends with ".json"; hf_tokenizer.h), a SentencePiece model, or a folder with a
/// tokenizer.model or else a tokenizer.json. Of a SentencePiece model, `encode` requires UTF-8, and
/// end of document is the model's </s>; decode(encode(text)) is text if the model has byte fallback
/// and identity normalisation, as models of `train_sentencepiece` have. Throws ConfigError if
/// `name` is empty or N is not a count, DataError if the file is missing, truncated or not a
/// tokenizer.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name);

/// Text that differs for tokenizers with other content, wherever their files are: "bytes", "4096
/// ids, XXH3 0123456789abcdef"; with the id that ends a document if another file says which. Throws
/// DataError if the file has gone.
std::string tokenizer_identity(const Tokenizer& tokenizer);

/// Whether `load_tokenizer` reads a file or folder of that name.
bool is_tokenizer_file(std::string_view name);

/// Whether a file of that name is read as a tokenizer.json.
bool is_hugging_face_tokenizer(std::string_view path);

/// Libraries behind the tokenizers, with their versions.
std::string describe_tokenizer_libraries();

}  // namespace braid
