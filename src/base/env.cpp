#include "base/env.h"

#include <array>
#include <cstdlib>

#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

constexpr std::string_view kDumpProgram = "BRAID_DUMP_PROGRAM";
constexpr std::string_view kDisablePasses = "BRAID_DISABLE_PASSES";
constexpr std::string_view kVerify = "BRAID_VERIFY";
constexpr std::string_view kTrace = "BRAID_TRACE";
constexpr std::string_view kSyncTasks = "BRAID_SYNC_TASKS";

constexpr std::array kVariables = {
    EnvVariable{kDumpProgram, "folder",
                "Writes the program text of each rank into this folder, before the first pass and "
                "after each pass."},
    EnvVariable{kDisablePasses, "names, comma-separated",
                "Skips these passes, in addition to those of overlap.disable_passes; `braid "
                "passes` lists the names."},
    EnvVariable{kVerify, "0 or 1",
                "1 checks the program with the happens-before verifier after each pass, and checks "
                "the programs of all ranks against each other; 0 skips these checks."},
    EnvVariable{kTrace, "0 or 1",
                "1 records the timeline of every step and 0 of no step, whatever "
                "logging.trace_steps says."},
    EnvVariable{kSyncTasks, "0 or 1",
                "1 waits for each task on a GPU before the next one starts, except for tasks that "
                "communicate. A device error, such as an illegal address, then names its task. "
                "Slow, with the same results."},
};

std::string value_of(const EnvLookup& lookup, std::string_view name) {
  return lookup(name).value_or("");
}

std::optional<bool> switch_of(const EnvLookup& lookup, std::string_view name) {
  const std::string value = value_of(lookup, name);
  if (value.empty()) {
    return std::nullopt;
  }
  if (value != "0" && value != "1") {
    throw_config_error("{} = {}: allowed values are 0 and 1; unset it for the default", name,
                       quote(value, 60));
  }
  return value == "1";
}

std::vector<std::string> names_of(const EnvLookup& lookup, std::string_view name) {
  const std::string value = value_of(lookup, name);
  std::vector<std::string> names = split_text(value, ',');
  for (const std::string& part : names) {
    if (part.empty()) {
      throw_config_error("{} = {}: has an empty name; write names with single commas between them",
                         name, quote(value, 60));
    }
  }
  return names;
}

}  // namespace

std::span<const EnvVariable> env_variables() {
  return kVariables;
}

EnvLookup process_environment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

DebugOptions read_debug_options(const EnvLookup& lookup) {
  DebugOptions options;
  options.dump_program_folder = value_of(lookup, kDumpProgram);
  options.disabled_passes = names_of(lookup, kDisablePasses);
  options.verify = switch_of(lookup, kVerify);
  options.trace = switch_of(lookup, kTrace);
  options.sync_tasks = switch_of(lookup, kSyncTasks).value_or(false);
  return options;
}

}  // namespace braid
