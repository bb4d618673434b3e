#include <CLI/CLI.hpp>
#include <memory>
#include <sstream>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "cli/commands.h"
#include "config/choices.h"
#include "config/reference.h"
#include "model/model_spec.h"
#include "state/import_weights.h"

namespace braid {
namespace {

struct ImportArguments {
  std::string hf_folder;
  std::string folder;
};

/// Section [model] of a run of this model, which comes first in a run file.
std::string model_section(ModelConfig keys) {
  RunConfig config;
  config.model = std::move(keys);
  std::string section;
  std::istringstream lines(to_toml(config));
  for (std::string line; std::getline(lines, line) && !line.empty();) {
    const bool is_given = !line.starts_with('#') && !line.starts_with("preset");
    section += is_given ? line + "\n" : "";
  }
  return section;
}

/// Section [train], if the model has fewer learned positions than the default sequence.
std::string train_section(const ModelSpec& model) {
  const bool is_short = model.style.positions == PositionKind::kLearned &&
                        model.max_positions < TrainConfig().sequence;
  return is_short ? fmt::format("[train]\nsequence = {}\n", model.max_positions) : "";
}

/// Section [data] with the tokenizer that was carried, if there is one.
std::string data_section(const ImportSummary& summary) {
  return summary.tokenizer.starts_with("ids:")
             ? ""
             : fmt::format("[data]\ntokenizer = {}\n", quote(summary.tokenizer));
}

void import_model(const ImportArguments& arguments, const Console& console) {
  const ImportSummary summary = import_weights(arguments.hf_folder, arguments.folder);
  console.print(fmt::format("{}\nwrote {}\ncarried {}\n", describe_model(summary.model),
                            summary.checkpoint, join(summary.carried, ", ")));
  if (!summary.ignored.empty()) {
    console.print(fmt::format("ignored in config.json: {}\n", join(summary.ignored, ", ")));
  }
  console.print(fmt::format(
      "to train from it, set checkpoint.resume = \"{}\" in a run file that has no model, "
      "or with this section:\n{}{}{}",
      arguments.folder, model_section(summary.keys), train_section(summary.model),
      data_section(summary)));
}

}  // namespace

void add_import_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<ImportArguments>();
  CLI::App* command =
      app.add_subcommand("import", "Convert a Hugging Face folder of weights to a checkpoint");
  command
      ->add_option("hf_folder", arguments->hf_folder,
                   "Folder with config.json and model.safetensors, or its index and files")
      ->required()
      ->type_name("HF_FOLDER");
  command
      ->add_option("folder", arguments->folder,
                   "Folder to write the checkpoint into; must not hold checkpoints")
      ->required()
      ->type_name("FOLDER");
  command->footer(
      "Reads LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, GPT2LMHeadModel and the "
      "other\nclasses of docs/checkpoints.md, in f32, bf16 or f16. If config.json asks for "
      "something that braid "
      "does not support, that is an error.\nThe checkpoint is of step 0: use it to generate, to "
      "export or to start a training run.\nFOLDER/hugging_face gets the tokenizer and "
      "generation_config.json, for generate, train and export.\n\n  braid import Qwen2.5-0.5B "
      "imported\n  braid generate imported --prompt \"Once\"");
  command->callback([arguments, &console] { import_model(*arguments, console); });
}

}  // namespace braid
