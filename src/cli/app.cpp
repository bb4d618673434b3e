#include "cli/app.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "base/errors.h"
#include "cli/commands.h"

namespace braid {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitConfig = 2;

int report(std::string_view message, int exit_code) {
  fmt::print(stderr, "braid: {}\n", message);
  return exit_code;
}

void add_commands(CLI::App& app, const Console& console) {
  app.require_subcommand(1);
  app.set_version_flag("--version", "braid " BRAID_VERSION);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return fmt::format("braid: {} (see braid --help)\n", error.what());
  });
  add_train_command(app, console);
  add_plan_command(app, console);
  add_tokenize_command(app, console);
  add_generate_command(app, console);
  add_inspect_command(app, console);
  add_passes_command(app, console);
  add_doctor_command(app, console);
  add_completion_command(app, console);
}

}  // namespace

Console::Console() : terminal_(isatty(STDOUT_FILENO) == 1) {}

void Console::print(std::string_view text) const {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

int run_cli(int argc, char** argv) {
  CLI::App app(
      "braid trains large language models and says what every microsecond of a step is for.",
      "braid");
  const Console console;
  try {
    add_commands(app, console);
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitConfig;
  } catch (const ConfigError& error) {
    return report(error.what(), kExitConfig);
  } catch (const std::bad_alloc&) {
    return report("out of memory", kExitFailure);
  } catch (const std::exception& error) {
    return report(error.what(), kExitFailure);
  }
}

}  // namespace braid
