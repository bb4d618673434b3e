#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "train/append_file.h"

namespace braid {

/// CRC-32C (Castagnoli) of the bytes: RFC 3720, appendix B.4 has test values.
uint32_t crc32c(std::string_view bytes);

/// One record of a TFRecord file: u64 length, masked CRC of the length, data, masked CRC of the
/// data; little-endian. Source: TensorFlow, "TFRecords Format Details".
std::string tfrecord(std::string_view data);

/// Serialised Event messages (tensorflow/core/util/event.proto). `wall_time_s`: Unix time.
std::string version_event(double wall_time_s);
std::string scalar_event(double wall_time_s, int64_t step, std::string_view tag, float value);
/// Tells TensorBoard that a run starts (again) at this step: it drops values of this and later
/// steps in older files of the folder.
std::string session_start_event(double wall_time_s, int64_t step);

/// A TensorBoard event file, written record by record. Throws DataError if it cannot be written.
class TensorBoardFile {
 public:
  /// Creates `folder`/events.out.tfevents.TIME.HOST; TIME is the Unix time in seconds of
  /// `wall_time_s`, or the next one without a file. `first_step`: see `session_start_event`.
  TensorBoardFile(const std::string& folder, double wall_time_s, int64_t first_step);

  const std::string& path() const { return file_.path(); }
  void scalar(double wall_time_s, int64_t step, std::string_view tag, double value);

 private:
  AppendFile file_;
};

}  // namespace braid
