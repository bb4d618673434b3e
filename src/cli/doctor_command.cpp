#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <string>
#include <thread>
#include <vector>

#include "backends/registry/registry.h"
#include "base/build_id.h"
#include "base/env.h"
#include "base/errors.h"
#include "base/text.h"
#include "calibrate/host_cpu.h"
#include "cli/commands.h"
#include "data/decompressor.h"
#include "data/parquet_file.h"
#include "data/tokenizer.h"
#include "launch/launch.h"
#include "runtime/host_memory.h"

namespace braid {
namespace {

std::string instruction_sets() {
  const std::string flags = " " + host_cpu_info("flags") + " ";
  std::vector<std::string> found;
  for (const std::string_view name :
       {"sse4_2", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16"}) {
    if (flags.find(fmt::format(" {} ", name)) != std::string::npos) {
      found.emplace_back(name);
    }
  }
  return join(found, " ");
}

bool on_path(const std::string& program) {
  const std::string path = process_environment()("PATH").value_or("");
  for (const std::string& folder : split_text(path, ':')) {
    if (!folder.empty() && access((folder + "/" + program).c_str(), X_OK) == 0) {
      return true;
    }
  }
  return false;
}

std::string line(std::string_view what, std::string_view value) {
  return fmt::format("{:<13}{}\n", what, value);
}

/// Lines from the device backends, or from the host backend.
std::string backend_lines(bool of_host) {
  std::string lines;
  for (const Backend* const backend : backends()) {
    if (backend->is_host == of_host) {
      for (const auto& [what, value] : backend->diagnose()) {
        lines += line(what, value);
      }
    }
  }
  return lines;
}

std::string disk_line() {
  struct statvfs facts {};
  if (statvfs(".", &facts) != 0) {
    return line("disk", "free space of this folder cannot be read");
  }
  return line("disk", format_bytes(static_cast<int64_t>(facts.f_bavail * facts.f_frsize)) +
                          " free in this folder");
}

/// A program that some task needs, and how to get it.
std::string program_line(const std::string& program, std::string_view use,
                         std::string_view package) {
  return line(program, on_path(program)
                           ? fmt::format("found ({})", use)
                           : fmt::format("missing ({}); apt-get install {}", use, package));
}

std::string launcher_line() {
  try {
    return describe_launch(find_launch());
  } catch (const ConfigError& error) {
    return error.what();
  }
}

std::string diagnosis() {
  struct utsname system {};
  uname(&system);
  return line("braid",
              fmt::format("{} ({}), build {}", BRAID_VERSION, BRAID_COMPILER, build_id())) +
         line("system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)) +
         line("cpu", fmt::format("{}, {} cores: {}", host_cpu_info("model name"),
                                 std::thread::hardware_concurrency(), instruction_sets())) +
         line("memory", format_bytes(host_memory_bytes())) + disk_line() + backend_lines(false) +
         line("launcher", launcher_line()) + line("tokenizers", describe_tokenizer_libraries()) +
         line("compression", describe_decompressors()) + line("parquet", describe_parquet()) +
         backend_lines(true) + program_line("chromium", "opens report.html in tests", "chromium") +
         program_line("clang++-14", "sanitizers and fuzzers", "clang-14 libclang-rt-14-dev") +
         program_line("clang-format", "formatting check", "clang-format") +
         program_line("tensorboard", "shows the events of a run",
                      "python3-pip && pip install tensorboard");
}

}  // namespace

void add_doctor_command(CLI::App& app, const Console& console) {
  CLI::App* command = app.add_subcommand(
      "doctor",
      "Show what this machine has, what braid uses of it, and how to get what is missing");
  command->callback([&console] { console.print(diagnosis()); });
}

}  // namespace braid
