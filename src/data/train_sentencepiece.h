#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/documents.h"

namespace braid {

enum class SentencePieceKind { kBpe, kUnigram };

struct SentencePieceTrainOptions {
  std::vector<std::string> inputs;  ///< as `for_each_document` reads them
  std::string output_prefix;        ///< writes PREFIX.model
  int64_t vocabulary_size = 8192;   ///< pieces, including 256 bytes and <unk>, <s> and </s>
  SentencePieceKind kind = SentencePieceKind::kBpe;
  int64_t threads = 1;
  uint64_t seed = 0;  ///< for choosing text if there is too much
  int64_t max_training_bytes =
      int64_t{100} << 20;  ///< uses about this much text (of compressed files, as if it were four
                           ///< times their size); training takes 20 times as much memory
  DocumentOptions documents;
};

/// "bpe" or "unigram"; ConfigError naming `option` otherwise.
SentencePieceKind parse_sentencepiece_kind(const std::string& text, const std::string& option);

/// Trains a SentencePiece model and writes it atomically; returns its path. Encoding and decoding
/// preserve every text: bytes replace rare characters, nothing is normalised, spaces and line ends
/// are kept. Deterministic for equal options, including threads. Throws ConfigError if the text is
/// insufficient for a vocabulary of this size (names the possible size), DataError as
/// `for_each_document` or if the model cannot be written.
std::string train_sentencepiece(const SentencePieceTrainOptions& options);

}  // namespace braid
