#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace braid {

/// A run of tokens of one document that lies in a sample.
struct PackedPiece {
  int64_t document = 0;  ///< its number in the lengths
  int64_t offset_tokens = 0;
  int64_t tokens = 0;

  friend bool operator==(const PackedPiece&, const PackedPiece&) = default;
};

/// Documents in samples of a fixed size.
struct BestFitPacking {
  std::vector<PackedPiece> pieces;    ///< sample by sample
  std::vector<int64_t> first_pieces;  ///< n + 1 entries: sample i has pieces [i, i + 1)
  int64_t cut_documents = 0;          ///< documents longer than a sample
  int64_t packed_tokens = 0;          ///< of all pieces

  int64_t num_samples() const { return static_cast<int64_t>(first_pieces.size()) - 1; }
};

/// Packs documents of these lengths into samples of `sample_tokens` tokens. A document that is
/// longer is cut into whole samples and a rest; nothing else is cut. Pieces, the longest first, go
/// to the sample with the least room that suffices, the newest of several, and into a new one if
/// there is none; equally long ones go in the order of the documents. A document's last piece is
/// left out if it has one token, which has no label. Source: Ding et al., Fewer truncations improve
/// language modeling, 2024, algorithm 1 (best fit decreasing).
BestFitPacking pack_best_fit(std::span<const int32_t> lengths, int64_t sample_tokens);

}  // namespace braid
