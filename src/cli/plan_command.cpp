#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/config_arguments.h"
#include "config/load.h"
#include "config/reference.h"
#include "config/validate.h"
#include "data/tokenizer.h"
#include "ir/text.h"
#include "runtime/run_plan.h"

namespace braid {

void add_plan_command(CLI::App& app, const Console& console) {
  struct Arguments {
    ConfigArguments config;
    bool print_program = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "plan", "Say what a run will need - programs, passes, memory by class - without starting it");
  add_config_arguments(*command, arguments->config);
  command->add_flag("--program", arguments->print_program,
                    "Print the training program of rank 0 as text instead");
  command->footer(
      "Needs no data and no device; a model whose vocabulary is given needs no tokenizer "
      "either.\n\n"
      "  braid plan examples/tiny_cpu.toml --set model.preset=llama-1b");
  command->callback([arguments, &console] {
    RunConfig config = load_config(arguments->config.path, arguments->config.overrides);
    validate(config);
    config = resolved(std::move(config));
    const bool has_vocabulary =
        !config.model.preset.empty() || config.model.vocabulary.value_or(0) > 0;
    const int64_t vocabulary =
        has_vocabulary ? 0 : load_tokenizer(config.data.tokenizer)->vocabulary_size();
    const RunPlan plan = plan_run(config, vocabulary);
    if (arguments->print_program) {
      console.print(print_program(plan.ranks.front().programs[kTrainProgram]));
      return;
    }
    console.print(to_toml(config) + "\n" + describe_run_plan(plan, config));
  });
}

}  // namespace braid
