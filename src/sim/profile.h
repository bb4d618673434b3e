#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "ir/op_spec.h"
#include "sim/cost_model.h"

namespace braid {

/// A duration, and its spread over repetitions: (third quartile - first) / median.
struct Timing {
  int64_t ns = 0;
  double spread = 0;

  friend bool operator==(const Timing&, const Timing&) = default;
};

struct TaskPoint {
  OpSpec spec;
  Timing timing;

  friend bool operator==(const TaskPoint&, const TaskPoint&) = default;
};

struct CopyPoint {
  int64_t bytes = 0;
  Timing timing;

  friend bool operator==(const CopyPoint&, const CopyPoint&) = default;
};

struct CommPoint {
  CommSpec spec;
  Timing timing;

  friend bool operator==(const CommPoint&, const CommPoint&) = default;
};

/// The machine and date of a profile's measurements; for people.
struct ProfileOrigin {
  std::string device;    ///< the device's own name: "NVIDIA H200"
  std::string software;  ///< driver and libraries
  std::string date;      ///< "2026-11-20"
  int64_t threads = 0;   ///< threads of a CPU; 0: does not apply

  friend bool operator==(const ProfileOrigin&, const ProfileOrigin&) = default;
};

/// Durations measured on one device. The file format is docs/profiles.md.
struct Profile {
  std::string device_kind;  ///< known device whose data is used for everything that was not
                            ///< measured
  ProfileOrigin origin;
  /// Figures of the device if its kind has none (a CPU): rates of the best products and of the
  /// largest copy.
  std::map<DType, double> peak_flops_per_s;
  std::optional<double> memory_bytes_per_s;
  int64_t launch_ns = 0;
  int64_t step_overhead_ns = 0;
  std::optional<Contention> contention;
  std::vector<TaskPoint> tasks;
  std::vector<CopyPoint> to_device;
  std::vector<CopyPoint> to_host;
  std::vector<CommPoint> communication;

  friend bool operator==(const Profile&, const Profile&) = default;
};

/// Maximum size of a profile file.
inline constexpr int64_t kMaxProfileBytes = int64_t{64} << 20;

/// Parses the JSON text of a profile. Throws DataError with path, key and value for any deviation
/// from docs/profiles.md: unknown and missing keys, other versions, values out of range, specs that
/// their op rejects, duplicate points.
Profile parse_profile(std::string_view text, std::string_view path);

/// Parses the file. Throws DataError as `parse_profile`, and if the file cannot be read.
Profile load_profile(const std::string& path);

/// The inverse of `parse_profile`. One line per measured point.
std::string print_profile(const Profile& profile);

/// An operand as in profiles: "bf16 [16,64]", "write bf16 [16,64]", "rw f32 [64]".
std::string print_operand_spec(const OperandSpec& operand);
/// The inverse of `print_operand_spec`; nullopt for any other text, and for a shape with a
/// dimension below 1 or more than kMaxElems elements.
std::optional<OperandSpec> parse_operand_spec(std::string_view text);

/// "linear(bf16 [16,64], bf16 [32,64], write bf16 [16,32]) {has_bias=false}", for messages.
std::string describe_spec(const OpSpec& spec);

}  // namespace braid
