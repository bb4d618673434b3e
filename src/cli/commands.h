#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace braid {

/// Where commands write: standard output, and whether it is a terminal.
class Console {
 public:
  Console();
  /// One that prints nothing, for processes other than the first.
  static Console silent();
  /// The same output as of no terminal.
  Console plain() const;
  /// Writes the text at once, its control characters shown (`inert`): names in it come from files
  /// and from tokenizers. Throws DataError if it cannot be written (full disk, closed output).
  void print(std::string_view text) const;
  /// As `print`, but a text that begins with "\r" is a redraw of our own and stays as it is.
  void print_or_redraw(std::string_view text) const;
  bool is_terminal() const { return terminal_; }

 private:
  bool terminal_ = false;
  bool silent_ = false;
};

/// Each adds one subcommand with its options; its callback runs the command.
void add_train_command(CLI::App& app, const Console& console);
void add_plan_command(CLI::App& app, const Console& console);
void add_simulate_command(CLI::App& app, const Console& console);
void add_emulate_command(CLI::App& app, const Console& console);
void add_verify_command(CLI::App& app, const Console& console);
void add_runs_command(CLI::App& app, const Console& console);
void add_report_command(CLI::App& app, const Console& console);
void add_tokenize_command(CLI::App& app, const Console& console);
void add_generate_command(CLI::App& app, const Console& console);
void add_eval_command(CLI::App& app, const Console& console);
void add_export_command(CLI::App& app, const Console& console);
void add_import_command(CLI::App& app, const Console& console);
void add_inspect_command(CLI::App& app, const Console& console);
void add_calibrate_command(CLI::App& app, const Console& console);
void add_passes_command(CLI::App& app, const Console& console);
void add_doctor_command(CLI::App& app, const Console& console);
void add_completion_command(CLI::App& app, const Console& console);

/// Options that `train` and `plan` share: the run file and `--set`.
struct ConfigArguments {
  std::string path;
  std::vector<std::string> overrides;
};

}  // namespace braid
