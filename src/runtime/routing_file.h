#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/file.h"
#include "runtime/routing_source.h"

namespace braid {

/// Files of the experts that routers chose. kRoutingHeaderBytes bytes hold a JSON object (format,
/// experts, experts_per_token, routers, samples, sequence, first_step), filled up with blanks and
/// ended by a line feed. For each step follow u16 [routers, samples, sequence, experts_per_token],
/// little-endian: the number of the expert + 1, or 0 where nothing was recorded.
inline constexpr int64_t kRoutingHeaderBytes = 512;

/// What a file records of each step.
struct RoutingShape {
  int64_t experts = 1;
  int64_t per_token = 1;
  int64_t routers = 1;
  int64_t samples = 1;   ///< of a global batch
  int64_t sequence = 1;  ///< tokens

  /// Of a token, in bytes from the beginning of its step.
  int64_t offset_bytes(int64_t router, const TokenRun& run) const;
  int64_t step_bytes() const;
};

/// That of a run.
RoutingShape routing_shape(const RunSpec& run);

/// Reads such a file. Step s of a run is the recorded step s, or if there is none, the steps
/// repeat.
class RecordedRouting : public RoutingSource {
 public:
  /// Throws ConfigError naming moe.replay if the file has another shape, and DataError if it cannot
  /// be read, or is no complete file of this kind.
  RecordedRouting(const std::string& path, const RoutingShape& shape);

  int64_t first_step() const { return first_step_; }
  int64_t num_steps() const { return num_steps_; }
  void read(int64_t step, int64_t router, const TokenRun& run,
            std::span<int32_t> experts) const override;

 private:
  PieceFile file_;
  RoutingShape shape_;
  int64_t first_step_ = 1;
  int64_t num_steps_ = 0;
};

/// Writes such a file. Several processes may write their tokens into one file.
class RoutingRecord {
 public:
  /// Throws DataError if the file exists and is to be created, or cannot be written.
  RoutingRecord(const std::string& path, const RoutingShape& shape, PlacedFile::Mode mode);

  /// Call before the first `write`; once in the run.
  void write_header(int64_t first_step) const;
  /// `step` counts from the first of the file.
  void write(int64_t step, int64_t router, const TokenRun& run,
             std::span<const int32_t> experts) const;

 private:
  PlacedFile file_;
  RoutingShape shape_;
};

}  // namespace braid
