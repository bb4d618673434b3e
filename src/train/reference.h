#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/process_group.h"
#include "data/batch_loader.h"
#include "runtime/engine.h"

/// Log-probabilities of the answers of a file of pairs in the reference model, the weights that the
/// run begins with. They are computed once and kept in the run folder.
namespace braid {

/// What is kept, if the file is whole and of this key; otherwise nullopt. Throws DataError if a
/// file that exists cannot be read.
std::optional<std::vector<float>> read_reference(const std::string& path, std::string_view key);

/// Replaces the file atomically: a file of that name is whole.
void write_reference(const std::string& path, std::string_view key, std::span<const float> values);

/// Differs for other values.
std::string reference_checksum(std::span<const float> values);

struct ReferenceOptions {
  std::string path;    ///< where they are kept
  std::string source;  ///< of the pairs, for people
  std::string key;     ///< of what they depend on besides the weights; without line breaks
  BatchShape shape;    ///< of the run's steps
  /// `reference_checksum` that the checkpoint records, if the engine no longer has the weights of
  /// the start; in the first process.
  std::optional<std::string> recorded = {};
  std::function<void(const std::string&)> message;      ///< gets lines for people
  std::function<void(std::string_view)> terminal = {};  ///< for a progress bar; empty: none
};

/// One number for each sample of `answers`, in order; all processes call it and get the same. If
/// the engine has the weights of the start, values that are kept count if those of the first batch
/// have the same bits; otherwise all are computed, by forwards in the layout of the run, and
/// written. Throws DataError if they were recorded and are not there.
std::vector<float> reference_log_probabilities(Engine& engine, const SampleSource& answers,
                                               ProcessGroup& processes,
                                               const ReferenceOptions& options);

}  // namespace braid
