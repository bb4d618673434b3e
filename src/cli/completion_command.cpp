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

struct Words {
  std::string name;
  std::vector<std::string> choices;  // what it may be; empty: a number, a text, a file
};

struct CommandWords {
  std::string name;
  std::string summary;
  std::vector<Words> options;  // by "--name"
  std::vector<std::string> positional_choices;
};

/// The words of a "{a,b,c}" in the type of an option, as CLI::IsMember leaves it there.
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{');
  const size_t end = type.find('}');
  return begin == std::string::npos || end == std::string::npos
             ? std::vector<std::string>()
             : split_text(std::string_view(type).substr(begin + 1, end - begin - 1), ',');
}

std::vector<std::string> config_keys() {
  std::vector<std::string> keys;
  for (const Field& field : config_fields()) {
    keys.push_back(full_name(field) + "=");
  }
  return keys;
}

CommandWords words_of(const CLI::App& command) {
  CommandWords words{.name = command.get_name(), .summary = command.get_description()};
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) {
      words.positional_choices = choices_of(*option);
    }
    for (const std::string& name : option->get_lnames()) {
      words.options.push_back({"--" + name, name == "set" ? config_keys() : choices_of(*option)});
    }
  }
  return words;
}

std::vector<CommandWords> command_words(const CLI::App& app) {
  std::vector<CommandWords> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(words_of(*command));
  }
  return commands;
}

std::string joined_names(const auto& words) {
  std::vector<std::string> names;
  for (const auto& word : words) {
    names.push_back(word.name);
  }
  return join(names, " ");
}

/// 'text' for a shell in which a quote inside is written as `quote`.
std::string quoted(std::string_view text, std::string_view quote) {
  std::string result = "'";
  for (const char c : text) {
    result += c == '\'' ? std::string(quote) : std::string(1, c);
  }
  return result + "'";
}

/// Where the function leaves COMPREPLY empty, bash itself completes file names.
std::string bash_completion(const std::vector<CommandWords>& commands) {
  std::string text = fmt::format(
      "_braid() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W \"{} --help --version\" -- \"$word\")); return\n"
      "  fi\n"
      "  case ${{COMP_WORDS[1]}}:$previous in\n",
      joined_names(commands));
  for (const CommandWords& command : commands) {
    for (const Words& option : command.options) {
      if (!option.choices.empty()) {
        text += fmt::format(
            "    {}:{}) {}COMPREPLY=($(compgen -W \"{}\" -- \"$word\")); return ;;\n", command.name,
            option.name, option.name == "--set" ? "compopt -o nospace 2>/dev/null; " : "",
            join(option.choices, " "));
      }
    }
  }
  text += "  esac\n  case ${COMP_WORDS[1]}:$word in\n";
  for (const CommandWords& command : commands) {
    text += fmt::format("    {}:-*) COMPREPLY=($(compgen -W \"{}\" -- \"$word\")) ;;\n",
                        command.name, joined_names(command.options));
    if (!command.positional_choices.empty()) {
      text += fmt::format("    {}:*) COMPREPLY=($(compgen -W \"{}\" -- \"$word\")) ;;\n",
                          command.name, join(command.positional_choices, " "));
    }
  }
  return text + "  esac\n}\ncomplete -o default -F _braid braid\n";
}

std::string zsh_completion(const std::vector<CommandWords>& commands) {
  std::string text =
      "#compdef braid\n"
      "_braid() {\n"
      "  if (( CURRENT == 2 )); then\n"
      "    local -a commands=(\n";
  for (const CommandWords& command : commands) {
    text += fmt::format("      {}\n", quoted(command.name + ":" + command.summary, "'\\''"));
  }
  text +=
      "    )\n    _describe command commands; return\n  fi\n"
      "  case ${words[2]}:${words[CURRENT-1]} in\n";
  for (const CommandWords& command : commands) {
    for (const Words& option : command.options) {
      if (!option.choices.empty()) {
        text += fmt::format("    {}:{}) compadd{} -- {}; return ;;\n", command.name, option.name,
                            option.name == "--set" ? " -S ''" : "", join(option.choices, " "));
      }
    }
  }
  text += "  esac\n  case ${words[2]}:$PREFIX in\n";
  for (const CommandWords& command : commands) {
    text +=
        fmt::format("    {}:-*) compadd -- {} ;;\n", command.name, joined_names(command.options));
    if (!command.positional_choices.empty()) {
      text += fmt::format("    {}:*) compadd -- {} ;;\n", command.name,
                          join(command.positional_choices, " "));
    }
  }
  return text + "    *) _files ;;\n  esac\n}\ncompdef _braid braid\n";
}

std::string fish_completion(const std::vector<CommandWords>& commands) {
  std::string text;
  for (const CommandWords& command : commands) {
    text += fmt::format("complete -c braid -n __fish_use_subcommand -f -a {} -d {}\n", command.name,
                        quoted(command.summary, "\\'"));
    const std::string chosen = fmt::format("-n '__fish_seen_subcommand_from {}'", command.name);
    if (!command.positional_choices.empty()) {
      text += fmt::format("complete -c braid {} -f -a '{}'\n", chosen,
                          join(command.positional_choices, " "));
    }
    for (const Words& option : command.options) {
      text += fmt::format(
          "complete -c braid {} -l {}{}\n", chosen, option.name.substr(2),
          option.choices.empty() ? "" : fmt::format(" -x -a '{}'", join(option.choices, " ")));
    }
  }
  return text;
}

}  // namespace

void add_completion_command(CLI::App& app, const Console& console) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "completion", "Print a shell script that completes commands, options and configuration keys");
  command->add_option("shell", *shell, "The shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "  source <(braid completion bash)                             in ~/.bashrc\n"
      "  source <(braid completion zsh)                              in ~/.zshrc, after compinit\n"
      "  braid completion fish > ~/.config/fish/completions/braid.fish");
  command->callback([shell, &app, &console] {
    const std::vector<CommandWords> commands = command_words(app);
    console.print(*shell == "bash"  ? bash_completion(commands)
                  : *shell == "zsh" ? zsh_completion(commands)
                                    : fish_completion(commands));
  });
}

}  // namespace braid
