#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace braid {

/// One line about a command line that cannot be parsed: the mistake, the nearest name for an
/// unknown name, and which --help to read. An unknown word is reported before missing arguments,
/// because it usually causes them.
std::string describe_usage_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace braid
