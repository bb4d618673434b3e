#include "cli/usage_error.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace braid {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

std::string hint(std::string_view name, const std::vector<std::string>& candidates) {
  return did_you_mean(name, std::vector<std::string_view>(candidates.begin(), candidates.end()));
}

/// `word` is not known to `command`, or to braid itself.
std::string describe_unknown(const CLI::App& app, const CLI::App* command,
                             const std::string& word) {
  if (word.starts_with('-')) {
    const std::string name = word.substr(0, word.find('='));
    return fmt::format("unknown option {}{}", quote(name, 60),
                       hint(name, option_names(command == nullptr ? app : *command)));
  }
  if (command == nullptr) {
    return fmt::format("unknown command {}{}", quote(word, 60), hint(word, command_names(app)));
  }
  return fmt::format("unexpected argument {}", quote(word, 60));
}

}  // namespace

std::string describe_usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App* command = chosen.empty() ? nullptr : chosen.front();
  const std::vector<std::string> unknown = app.remaining(true);
  std::string what = error.what();
  if (!unknown.empty()) {
    what = describe_unknown(app, command, unknown.front());
  } else if (command == nullptr) {
    what = "a command is missing";
  }
  return fmt::format("{}; see braid {}--help", what,
                     command == nullptr ? "" : command->get_name() + " ");
}

}  // namespace braid
