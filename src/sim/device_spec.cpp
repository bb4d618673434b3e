#include "sim/device_spec.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "base/text.h"
#include "sim/device_file.h"

namespace braid {
namespace {

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

}  // namespace

double DeviceSpec::peak_flops_per_s(DType dtype) const {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return f64_flops_per_s;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return fp8_flops_per_s > 0 ? fp8_flops_per_s : bf16_flops_per_s;
    case DType::kBF16:
    case DType::kF16:
      return bf16_flops_per_s;
    default:
      return f32_flops_per_s;
  }
}

std::span<const DeviceSpec> known_devices() {
  static const std::vector<DeviceSpec> kDevices = [] {
    std::vector<DeviceSpec> devices;
    for (const BuiltInFile& file : built_in_devices()) {
      devices.push_back(parse_device(file.text, "hardware/" + std::string(file.name) + ".toml"));
    }
    std::sort(devices.begin(), devices.end(),
              [](const DeviceSpec& a, const DeviceSpec& b) { return a.kind < b.kind; });
    return devices;
  }();
  return kDevices;
}

const DeviceSpec* find_device(std::string_view kind) {
  for (const DeviceSpec& device : known_devices()) {
    if (device.kind == kind) {
      return &device;
    }
  }
  return nullptr;
}

const DeviceSpec* device_by_name(std::string_view name) {
  const std::string lower = lower_case(name);
  const DeviceSpec* found = nullptr;
  size_t longest = 0;
  for (const DeviceSpec& device : known_devices()) {
    for (const std::string& part : device.driver_names) {
      if (part.size() > longest && lower.find(lower_case(part)) != std::string::npos) {
        found = &device;
        longest = part.size();
      }
    }
  }
  return found;
}

std::string known_device_names() {
  std::vector<std::string_view> names;
  for (const DeviceSpec& device : known_devices()) {
    names.push_back(device.kind);
  }
  return join(names, ", ");
}

}  // namespace braid
