#include <CLI/CLI.hpp>

#include "base/errors.h"
#include "cli/commands.h"
#include "passes/pipeline.h"

namespace braid {

void add_passes_command(CLI::App& app, const Console& console) {
  CLI::App* command = app.add_subcommand(
      "passes", "List the passes over a step program, in the order in which they run");
  command->footer(
      "overlap.disable_passes or BRAID_DISABLE_PASSES turns off any of them that is not required.");
  command->callback([&console] {
    for (const Pass& pass : default_pipeline()) {
      console.print(fmt::format(
          "{:<22} {}{}\n", pass.name, pass.summary,
          pass.why_required.empty() ? "" : fmt::format(" (required: {})", pass.why_required)));
    }
  });
}

}  // namespace braid
