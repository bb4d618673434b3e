#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace braid {

/// One line about a command line that cannot be parsed: what is wrong, the nearest name where a
/// name is unknown, and whose --help to read. An unknown word is named before whatever else is
/// missing, since that is usually its consequence.
std::string describe_usage_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace braid
