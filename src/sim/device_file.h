#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/device_spec.h"

/// Devices and their usual clusters as TOML files (docs/hardware.md lists the keys), and software
/// stacks (docs/stacks.md). The files of hardware/ and stacks/ are compiled in; users bring others.
namespace braid {

/// The text of hardware/NAME.toml or stacks/NAME.toml.
struct BuiltInFile {
  std::string_view name;
  std::string_view text;
};

/// All of them, by name. Written by embed_hardware.cmake.
std::span<const BuiltInFile> built_in_devices();
std::span<const BuiltInFile> built_in_stacks();

/// Reads a device file. `source` names it in messages, with a line: "my.toml:7". `kind` is the
/// file's `device.name`. What the file leaves out is as in the built-in device that `like` names.
/// Throws ConfigError for text that is not TOML, for an unknown section, key or device, a value of
/// another type or out of range, each with the nearest valid one, and for a key that is missing.
DeviceSpec parse_device(std::string_view text, std::string_view source);

/// The device of a file; `kind` is the path, so that the name of a cluster of them can be parsed.
/// Throws DataError for a file that cannot be read, and as `parse_device`.
DeviceSpec load_device(const std::string& path);

/// The device with the software that `stack` names: a file of stacks/, or the path of one with the
/// section [stack] alone. Throws ConfigError for an unknown name, and as `load_device`.
DeviceSpec with_stack(DeviceSpec device, const std::string& stack);

/// "section.key" of every key, of device files and of stacks.
std::vector<std::string> device_file_keys();

}  // namespace braid
