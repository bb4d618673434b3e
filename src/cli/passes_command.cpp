#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "cli/commands.h"
#include "passes/pipeline.h"

namespace braid {

namespace {

/// Other properties of a pass, in brackets; empty if none.
std::string describe_traits(const Pass& pass) {
  std::vector<std::string> traits;
  if (!pass.why_required.empty()) {
    traits.push_back(fmt::format("required: {}", pass.why_required));
  }
  if (pass.run_all) {
    traits.emplace_back("over all ranks");
  }
  if (pass.only_overlaps) {
    traits.emplace_back("left out by overlap.mode = \"off\"");
  }
  if (pass.changes_rounding) {
    traits.emplace_back("may change rounding");
  }
  if (!pass.needs_costs.empty()) {
    traits.emplace_back("needs overlap.cost");
  }
  if (!pass.keys.empty()) {
    traits.push_back(fmt::format("keys: {}", join(pass.keys, ", ")));
  }
  return traits.empty() ? "" : fmt::format(" ({})", join(traits, "; "));
}

}  // namespace

void add_passes_command(CLI::App& app, const Console& console) {
  CLI::App* command = app.add_subcommand(
      "passes", "List the passes over a step program, in the order in which they run");
  command->footer(
      "overlap.disable_passes or BRAID_DISABLE_PASSES turns off any of them that is not required.");
  command->callback([&console] {
    for (const Pass& pass : default_pipeline()) {
      console.print(fmt::format("{:<22} {}{}\n", pass.name, pass.summary, describe_traits(pass)));
    }
  });
}

}  // namespace braid
