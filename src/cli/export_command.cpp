#include <CLI/CLI.hpp>
#include <memory>

#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "cli/checkpoint_path.h"
#include "cli/commands.h"
#include "cli/validators.h"
#include "config/load.h"
#include "state/checkpointing.h"
#include "state/export_weights.h"

namespace braid {
namespace {

struct ExportArguments {
  std::string path;
  std::string folder;
  std::string dtype = "f32";
  std::string max_shard_size = "5GB";
  bool fused_experts = false;
};

/// Programs that read the model need its maximum number of positions: its own value, else the
/// sequence of the training run.
ModelSpec positioned(ModelSpec model, const RunConfig& config) {
  model.max_positions = model.max_positions > 0 ? model.max_positions : config.train.sequence;
  return model;
}

void export_model(const ExportArguments& arguments, const Console& console) {
  const LoadedCheckpoint checkpoint(find_checkpoint(arguments.path), is_weight);
  const RunConfig config =
      parse_config(checkpoint.state().config, checkpoint.path() + "/state.json");
  const ModelSpec model = positioned(checkpointed_model(checkpoint, config), config);
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const ExportSummary summary = export_weights(
      CheckpointedState(checkpoint, layout, model), layout, model, arguments.folder,
      {.dtype = *parse_dtype(arguments.dtype),
       .max_shard_bytes = *parse_byte_size(arguments.max_shard_size),
       .experts = arguments.fused_experts ? HfExperts::kFused : HfExperts::kSeparate});
  console.print(fmt::format("{}\nwrote {}: config.json, {} tensors of {} in {} file{}, {}\n",
                            describe_model(model), arguments.folder, summary.num_tensors,
                            arguments.dtype, summary.num_files, summary.num_files == 1 ? "" : "s",
                            format_bytes(summary.size_bytes)));
}

}  // namespace

void add_export_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command =
      app.add_subcommand("export", "Write a model's weights as a Hugging Face folder");
  command->add_option("path", arguments->path, "Run folder or checkpoint")
      ->required()
      ->type_name("PATH");
  command->add_option("folder", arguments->folder, "Folder to create; must not exist")
      ->required()
      ->type_name("FOLDER");
  command
      ->add_option("--dtype", arguments->dtype,
                   "Type of the weights: f32 keeps every bit of the main weights")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command
      ->add_option("--max-shard-size", arguments->max_shard_size,
                   "Largest size of a file: 5GB, 512MiB, ...")
      ->check(byte_size())
      ->type_name("SIZE")
      ->capture_default_str();
  command->add_flag("--fused-experts", arguments->fused_experts,
                    "Write the experts of a layer as two tensors, gate_up_proj and down_proj, as "
                    "transformers 5 has them in memory, instead of three for each expert");
  command->footer(
      "Names and layouts are those of LlamaForCausalLM, Qwen2ForCausalLM (biases on qkv) "
      "and\nGPT2LMHeadModel; docs/checkpoints.md lists them. The tokenizer is not exported.\n\n  "
      "braid export runs/quickstart exported --dtype bf16");
  command->callback([arguments, &console] { export_model(*arguments, console); });
}

}  // namespace braid
