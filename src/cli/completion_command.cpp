#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "cli/commands.h"
#include "config/fields.h"

namespace braid {
namespace {

struct CommandWords {
  std::string name;
  std::string summary;
  std::vector<std::string> options;
};

std::vector<CommandWords> command_words(const CLI::App& app) {
  std::vector<CommandWords> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    CommandWords words{
        .name = command->get_name(), .summary = command->get_description(), .options = {}};
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        words.options.push_back("--" + name);
      }
    }
    commands.push_back(std::move(words));
  }
  return commands;
}

std::vector<std::string> config_keys() {
  std::vector<std::string> keys;
  for (const Field& field : config_fields()) {
    keys.push_back(full_name(field) + "=");
  }
  return keys;
}

std::string names_of(const std::vector<CommandWords>& commands) {
  std::vector<std::string> names;
  for (const CommandWords& command : commands) {
    names.push_back(command.name);
  }
  return join(names, " ");
}

std::string bash_completion(const std::vector<CommandWords>& commands) {
  std::string text =
      "_braid() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W \"" +
      names_of(commands) +
      " --help --version\" -- \"$word\")); return\n"
      "  fi\n"
      "  if [ \"$previous\" = --set ]; then\n"
      "    compopt -o nospace; COMPREPLY=($(compgen -W \"" +
      join(config_keys(), " ") +
      "\" -- \"$word\")); return\n"
      "  fi\n"
      "  case ${COMP_WORDS[1]} in\n";
  for (const CommandWords& command : commands) {
    text += fmt::format("    {}) COMPREPLY=($(compgen -W \"{}\" -- \"$word\")) ;;\n", command.name,
                        join(command.options, " "));
  }
  return text +
         "  esac\n"
         "  COMPREPLY+=($(compgen -f -- \"$word\"))\n"
         "}\n"
         "complete -o filenames -F _braid braid\n";
}

std::string zsh_completion(const std::vector<CommandWords>& commands) {
  return "autoload -U +X bashcompinit && bashcompinit\n" + bash_completion(commands);
}

std::string fish_completion(const std::vector<CommandWords>& commands) {
  std::string text;
  for (const CommandWords& command : commands) {
    text += fmt::format("complete -c braid -n __fish_use_subcommand -f -a {} -d '{}'\n",
                        command.name, command.summary);
    for (const std::string& option : command.options) {
      text += fmt::format(
          "complete -c braid -n '__fish_seen_subcommand_from {}' -l {}{}\n", command.name,
          option.substr(2),
          option == "--set" ? fmt::format(" -x -a '{}'", join(config_keys(), " ")) : "");
    }
  }
  return text;
}

}  // namespace

void add_completion_command(CLI::App& app, const Console& console) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "Print completion for a shell");
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer("  source <(braid completion bash)");
  command->callback([shell, &app, &console] {
    const std::vector<CommandWords> commands = command_words(app);
    console.print(*shell == "bash"  ? bash_completion(commands)
                  : *shell == "zsh" ? zsh_completion(commands)
                                    : fish_completion(commands));
  });
}

}  // namespace braid
