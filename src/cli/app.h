#pragma once

#include <string_view>

namespace braid {

/// The program `braid`: parses the command line and runs one command. Returns the exit code: 0; 2
/// for a configuration or command line that the user can correct; 1 for any other error. Errors are
/// one line on stderr.
int run_cli(int argc, char** argv);

/// Thrown after all output has been printed: the program ends with this status.
struct EndOfProgram {
  int exit_code = 0;
};

/// Prints an error as one line on stderr. Control characters in it (of names of files, of texts
/// from other processes) are shown, not obeyed.
void print_error(std::string_view message);

/// Prints the message and ends the process at once with the exit code of a failure. After a
/// DeviceError, a task may be stuck and still use objects that the end of `main` would destroy or
/// wait for.
[[noreturn]] void end_after_device_error(std::string_view message);

}  // namespace braid
