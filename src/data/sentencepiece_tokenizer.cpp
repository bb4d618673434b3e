#include "data/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <array>
#include <charconv>
#include <exception>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "data/model_folder.h"
#include "data/utf8.h"

namespace braid {
namespace {

constexpr int64_t kMaxModelBytes = int64_t{1} << 30;  // of models in use: some megabytes

/// U+2581, which represents a space inside pieces.
constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

/// Reads a protocol buffer varint from the front; false at the end of the bytes.
bool take_varint(std::string_view& bytes, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) {
      return true;
    }
  }
  return false;
}

/// The library accepts a model that was truncated between two pieces as a smaller one. The
/// specifications of trainer (field 2) and normaliser (field 3) are written after all pieces, so a
/// complete model has both.
void check_complete(std::string_view bytes, const std::string& path) {
  constexpr uint64_t kLengthDelimited = 2;
  bool has_trainer = false;
  bool has_normalizer = false;
  while (!bytes.empty()) {
    uint64_t key = 0;
    uint64_t size_bytes = 0;
    if (!take_varint(bytes, key) || (key & 7) != kLengthDelimited ||
        !take_varint(bytes, size_bytes) || size_bytes > bytes.size()) {
      throw_data_error("'{}' is not a SentencePiece model, or is truncated", path);
    }
    bytes.remove_prefix(static_cast<size_t>(size_bytes));
    has_trainer |= key >> 3 == 2;
    has_normalizer |= key >> 3 == 3;
  }
  if (!has_trainer || !has_normalizer) {
    throw_data_error(
        "'{}' is truncated: a SentencePiece model ends with its trainer and normaliser "
        "specification",
        path);
  }
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') {
      c = ' ';
    }
  }
  return text;
}

std::string replace_space_symbols(std::string_view piece) {
  std::string text;
  while (!piece.empty()) {
    const size_t at = piece.find(kSpaceSymbol);
    text += piece.substr(0, at);
    if (at == std::string_view::npos) {
      break;
    }
    text += ' ';
    piece.remove_prefix(at + kSpaceSymbol.size());
  }
  return text;
}

/// The byte of a piece "<0x0A>". The library refuses models with pieces of this type and other
/// names.
char byte_of_piece(std::string_view piece) {
  check(piece.size() == 6, "no name of a byte: {}", piece);
  unsigned value = 0;
  std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
  return static_cast<char>(value);
}

/// Decodes with its own table instead of the library's Decode, which replaces incomplete characters
/// (they occur when tokens are decoded one by one).
class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) : path_(path) {
    const std::string bytes = read_text_file(path, kMaxModelBytes);
    check_complete(bytes, path);
    load(bytes);
    build_tables();
    stop_ids_ = stop_ids_beside(path, eod_id());
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    if (const std::optional<size_t> position = find_invalid_utf8(text)) {
      throw_data_error(
          "text is not UTF-8 at byte {}: byte 0x{:02X}; tokenizer '{}' takes UTF-8 only", *position,
          static_cast<unsigned char>(text[*position]), path_);
    }
    std::vector<int32_t> tokens;
    // The library would convert a space symbol in the text to a space.
    while (escapes_space_symbol_) {
      const size_t at = text.find(kSpaceSymbol);
      if (at == std::string_view::npos) {
        break;
      }
      append_encoded(text.substr(0, at), tokens);
      for (const char c : kSpaceSymbol) {
        tokens.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      }
      text.remove_prefix(at + kSpaceSymbol.size());
    }
    append_encoded(text, tokens);
    return tokens;
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text = join_texts(tokens, texts_, path_);
    if (has_dummy_prefix_ && text.starts_with(' ')) {
      text.erase(0, 1);
    }
    return text;
  }

  int32_t vocabulary_size() const override { return static_cast<int32_t>(texts_.size()); }
  std::optional<int32_t> eod_id() const override {
    const int id = processor_.eos_id();
    return id >= 0 ? std::optional<int32_t>(id) : std::nullopt;
  }
  std::optional<int32_t> bos_id() const override {
    const int id = processor_.bos_id();
    return id >= 0 ? std::optional<int32_t>(id) : std::nullopt;
  }
  std::vector<int32_t> stop_ids() const override { return stop_ids_; }
  const std::string& name() const override { return path_; }
  std::string describe() const override {
    return fmt::format("SentencePiece model of {} pieces", vocabulary_size());
  }

 private:
  /// The library reports most damage by status, and some (for example an empty piece) by
  /// exceptions.
  void load(std::string_view bytes) {
    std::string reason;
    try {
      const auto status = processor_.LoadFromSerializedProto(bytes);
      if (status.ok()) {
        return;
      }
      reason = status.ToString();
    } catch (const std::exception& error) {
      reason = error.what();
    }
    throw_data_error("'{}' is not a valid SentencePiece model: {}", path_, one_line(reason));
  }

  void build_tables() {
    byte_ids_.fill(-1);
    bool has_all_bytes = true;
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      texts_.push_back(text_of_piece(id));
      if (processor_.IsByte(id)) {
        byte_ids_[static_cast<unsigned char>(texts_.back().front())] = id;
      }
    }
    for (const int32_t id : byte_ids_) {
      has_all_bytes = has_all_bytes && id >= 0;
    }
    std::vector<std::string> pieces;
    if (processor_.Encode("a", &pieces).ok() && !pieces.empty()) {
      has_dummy_prefix_ = pieces.front().starts_with(kSpaceSymbol);
    }
    escapes_space_symbol_ = has_all_bytes && !has_dummy_prefix_;
  }

  std::string text_of_piece(int id) const {
    const std::string& piece = processor_.IdToPiece(id);
    if (processor_.IsControl(id)) {
      return {};
    }
    if (processor_.IsUnknown(id)) {
      return "\xEF\xBF\xBD";  // U+FFFD, the replacement character
    }
    return processor_.IsByte(id) ? std::string(1, byte_of_piece(piece))
                                 : replace_space_symbols(piece);
  }

  void append_encoded(std::string_view text, std::vector<int32_t>& tokens) const {
    std::vector<int> ids;
    const auto status = processor_.Encode(text, &ids);
    if (!status.ok()) {
      throw_data_error("tokenizer '{}' failed: {}", path_, one_line(status.ToString()));
    }
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }

  std::string path_;
  sentencepiece::SentencePieceProcessor processor_;
  std::vector<std::string> texts_;  // by id
  std::array<int32_t, 256> byte_ids_{};
  std::vector<int32_t> stop_ids_;
  bool has_dummy_prefix_ = false;  // the model puts a space before every text
  bool escapes_space_symbol_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path) {
  return std::make_unique<SentencePieceTokenizer>(path);
}

}  // namespace braid
