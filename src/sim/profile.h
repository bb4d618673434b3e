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

/// A duration, and how far repetitions lay apart: (third quartile - first) / median.
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

/// On what and when a profile was measured; for people.
struct ProfileOrigin {
  std::string device;    ///< its own name: "NVIDIA H200"
  std::string software;  ///< driver and libraries
  std::string date;      ///< "2026-11-20"
  int64_t threads = 0;   ///< of a CPU; 0: does not apply

  friend bool operator==(const ProfileOrigin&, const ProfileOrigin&) = default;
};

/// Durations measured on one device. The file format is docs/profiles.md.
struct Profile {
  std::string device_kind;  ///< known device that stands in for what was not measured
  ProfileOrigin origin;
  /// Figures of the device where its kind has none of its own (a CPU): rates of the best products
  /// and of the largest copy.
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

/// Largest profile file that is read.
inline constexpr int64_t kMaxProfileBytes = int64_t{64} << 20;

/// Reads the JSON text of a profile. Throws DataError with path, key and value for anything but
/// what docs/profiles.md says: unknown and missing keys, other versions, values out of range, specs
/// that their op refuses, the same question twice.
Profile parse_profile(std::string_view text, std::string_view path);

/// The file's content; throws DataError as `parse_profile`, and if it cannot be read.
Profile load_profile(const std::string& path);

/// `parse_profile` of the text gives the profile back. One line per measured point.
std::string print_profile(const Profile& profile);

/// An operand as in profiles: "bf16 [16,64]", "write bf16 [16,64]", "rw f32 [64]".
std::string print_operand_spec(const OperandSpec& operand);
/// Inverse of `print_operand_spec`; nullopt for anything else, and for a shape with a dimension
/// below 1 or more than kMaxElems elements.
std::optional<OperandSpec> parse_operand_spec(std::string_view text);

/// "linear(bf16 [16,64], bf16 [32,64], write bf16 [16,32]) {has_bias=false}", for messages.
std::string describe_spec(const OpSpec& spec);

}  // namespace braid
