#pragma once

namespace braid {

/// The program `braid`: parses the command line, runs one command. Returns the exit code: 0, 2 for
/// a configuration or command line that the user can correct, 1 for everything else that went
/// wrong. Errors are one line on stderr.
int run_cli(int argc, char** argv);

}  // namespace braid
