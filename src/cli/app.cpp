#include "cli/app.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <sstream>

#include "base/build_id.h"
#include "base/errors.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/usage_error.h"
#include "config/mistakes.h"

namespace braid {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitConfig = 2;

int report(std::string_view message, int exit_code) {
  print_error(message);
  return exit_code;
}

void write_output(const std::string& text) {
  const size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
  if (written < text.size() || std::fflush(stdout) != 0) {
    const int reason = errno;
    std::clearerr(stdout);
    throw_data_error("cannot write standard output: {}", std::strerror(reason));
  }
}

/// If the caller closed a standard stream, the next opened file would get its descriptor, and
/// terminal output could end up in a checkpoint. So each closed stream gets a file on which the
/// wrong direction fails as on a closed one.
void occupy_closed_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
      // The lowest free number is the one just found free.
      [[maybe_unused]] const int taken =
          open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
}

/// The end of the program after an exception that no handler gets. Memory may run out in a
/// destructor, as those of JSON documents need some; the message needs none.
[[noreturn]] void end_unhandled() {
  try {
    if (const std::exception_ptr error = std::current_exception()) {
      std::rethrow_exception(error);
    }
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kMessage = "braid: out of memory\n";
    [[maybe_unused]] const ssize_t written =
        ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
    std::_Exit(kExitFailure);
  } catch (const std::exception& error) {
    print_error(error.what());
  } catch (...) {  // has no message
  }
  std::abort();
}

void add_commands(CLI::App& app, const Console& console) {
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("braid {}, build {}", BRAID_VERSION, build_id()),
                       "Print the version and exit");
  app.footer(
      "braid COMMAND --help explains a command and its options. Exit status: 0 on success,\n2 if "
      "the command line or the configuration must change, 1 for any other error.\n\n  braid "
      "tokenize --input corpus.txt --output corpus --tokenizer bytes\n  braid train "
      "examples/tiny_cpu.toml --set data.train=corpus\n  braid generate runs/tiny_cpu --prompt "
      "\"Once\"");
  add_train_command(app, console);
  add_plan_command(app, console);
  add_simulate_command(app, console);
  add_emulate_command(app, console);
  add_verify_command(app, console);
  add_runs_command(app, console);
  add_report_command(app, console);
  add_tokenize_command(app, console);
  add_generate_command(app, console);
  add_eval_command(app, console);
  add_export_command(app, console);
  add_import_command(app, console);
  add_inspect_command(app, console);
  add_calibrate_command(app, console);
  add_passes_command(app, console);
  add_doctor_command(app, console);
  add_completion_command(app, console);
}

int run_command(CLI::App& app, const Console& console, int argc, char** argv) {
  add_commands(app, console);
  if (argc <= 1) {
    fmt::print(stderr, "{}", app.help());
    return kExitConfig;
  }
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::Success& success) {  // --help and the like
    std::ostringstream text;
    app.exit(success, text, text);
    console.print(text.str());
    return 0;
  } catch (const CLI::ParseError& error) {
    return report(describe_usage_error(app, error), kExitConfig);
  }
}

}  // namespace

Console::Console() : terminal_(isatty(STDOUT_FILENO) == 1) {}

void print_error(std::string_view message) {
  fmt::print(stderr, "braid: {}\n", inert_line(message));
}

Console Console::plain() const {
  Console console = *this;
  console.terminal_ = false;
  return console;
}

Console Console::silent() {
  Console console = Console().plain();
  console.silent_ = true;
  return console;
}

void Console::print(std::string_view text) const {
  if (silent_) {
    return;
  }
  write_output(inert(text));
}

void Console::print_or_redraw(std::string_view text) const {
  if (text.starts_with('\r') && !silent_) {
    write_output(std::string(text));
  } else {
    print(text);
  }
}

void end_after_device_error(std::string_view message) {
  const int exit_code = report(message, kExitFailure);
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

int run_cli(int argc, char** argv) {
  occupy_closed_streams();
  std::set_terminate(end_unhandled);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is a failed write, with its message
  CLI::App app(
      "braid trains large language models and shows what every microsecond of a step is spent on.",
      "braid");
  const Console console;
  try {
    return run_command(app, console, argc, argv);
  } catch (const EndOfProgram& end) {
    return end.exit_code;
  } catch (const ConfigMistakes& error) {
    for (const std::string& mistake : error.mistakes()) {
      print_error(mistake);
    }
    return report(fmt::format("{} mistakes", error.mistakes().size()), kExitConfig);
  } catch (const ConfigError& error) {
    return report(error.what(), kExitConfig);
  } catch (const DeviceError& error) {
    end_after_device_error(error.what());
  } catch (const std::bad_alloc&) {
    return report("out of memory", kExitFailure);
  } catch (const std::length_error&) {  // a container that could never be that large
    return report("out of memory", kExitFailure);
  } catch (const std::exception& error) {
    return report(error.what(), kExitFailure);
  }
}

}  // namespace braid
