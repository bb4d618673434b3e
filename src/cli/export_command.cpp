#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_path.h"
#include "cli/commands.h"
#include "cli/validators.h"
#include "data/tokenizer.h"
#include "hugging_face/companions.h"
#include "hugging_face/tensor_names.h"
#include "state/adapted_state.h"
#include "state/averaged_weights.h"
#include "state/checkpointing.h"
#include "state/export_adapters.h"
#include "state/export_weights.h"
#include "state/recorded_config.h"

namespace braid {
namespace {

struct ExportArguments {
  std::string path;
  std::string folder;
  std::string dtype = "f32";
  std::string max_shard_size = "5GB";
  bool fused_experts = false;
  bool adapters = false;
  bool ema = false;
};

/// Programs that read the model need its maximum number of positions: its own value, else that of
/// the model it came from, or the sequence of the training run if that is longer.
ModelSpec positioned(ModelSpec model, const RunConfig& config, const HfCompanions& companions) {
  if (model.max_positions == 0) {
    model.max_positions = std::max(companions.max_positions, config.train.sequence);
  }
  return model;
}

/// The files in the folder of the run's tokenizer. Where no config.json says which ids begin and
/// end a text, the tokenizer does.
HfCompanions companions_of(const RunConfig& config, int64_t vocabulary) {
  const std::string& name = config.data.tokenizer;
  if (!is_tokenizer_file(name) || !std::filesystem::exists(name)) {
    return {};
  }
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(name);
  const std::filesystem::path path = tokenizer->name();
  HfCompanions companions = find_companions(path.parent_path().string(), vocabulary);
  if (!is_hugging_face_tokenizer(path.string())) {
    companions.files["tokenizer.model"] = path.string();  // whatever its own name is
  }
  if (companions.eos_ids.empty() && tokenizer->eod_id()) {
    companions.eos_ids = {*tokenizer->eod_id()};
  }
  if (companions.bos_ids.empty() && tokenizer->bos_id()) {
    companions.bos_ids = {*tokenizer->bos_id()};
  }
  return companions;
}

std::string carried_line(const HfCompanions& companions, const std::string& tokenizer) {
  std::vector<std::string> names;
  for (const auto& [name, path] : companions.files) {
    names.push_back(name);
  }
  if (!names.empty()) {
    return fmt::format("carried {}\n", join(names, ", "));
  }
  return is_tokenizer_file(tokenizer)
             ? fmt::format("the tokenizer is not exported: '{}' is not there\n", tokenizer)
             : "";
}

std::string mtp_line(const ModelSpec& model) {
  return model.mtp_depth == 0 || has_hf_mtp(model)
             ? ""
             : fmt::format("left out the layers of multi-token prediction: {} has none\n",
                           hf_class(model).architecture);
}

/// A model of a checkpoint.
struct ExportedModel {
  const StateSource& state;
  const ParameterLayout& layout;
  const ModelSpec& model;
};

BaseWeights base_of(const ExportedModel& it, const RunConfig& config) {
  return BaseWeights(config.lora.base, it.model, static_cast<uint64_t>(config.train.seed));
}

/// The base with the adapters added to its weights.
ExportSummary export_merged(const ExportedModel& it, const RunConfig& config,
                            const std::string& folder, const ExportOptions& options) {
  const BaseWeights base = base_of(it, config);
  const AdaptedState adapted(base, it.state, it.layout);
  const ModelSpec merged = base_model(it.model);
  const ParameterLayout layout = make_parameter_layout(model_parameters(merged));
  return export_weights(MergedWeights(adapted, it.layout, it.model, layout), layout, merged, folder,
                        options);
}

void export_only_adapters(const ExportArguments& arguments, const ExportedModel& it,
                          const RunConfig& config, const Console& console) {
  if (!it.model.lora.is_on()) {
    throw_config_error("--adapters: the run of {} has none; leave the option out", arguments.path);
  }
  const auto write = [&](const StateSource& state) {
    return export_adapters(state, it.layout, it.model, config.lora.base, arguments.folder,
                           *parse_dtype(arguments.dtype));
  };
  const auto write_with_base = [&] {
    const BaseWeights base = base_of(it, config);
    return write(AdaptedState(base, it.state, it.layout));
  };
  const ExportSummary summary = it.model.lora.magnitudes ? write_with_base() : write(it.state);
  console.print(fmt::format("{}\nwrote {}: adapter_config.json, {} tensors of {}, {}\n",
                            describe_model(it.model), arguments.folder, summary.num_tensors,
                            arguments.dtype, format_bytes(summary.size_bytes)));
}

void export_model(const ExportArguments& arguments, const Console& console) {
  const LoadedCheckpoint checkpoint(find_checkpoint(arguments.path),
                                    arguments.ema ? is_weight_or_average : is_weight);
  const RunConfig config = recorded_config(checkpoint.state(), checkpoint.path() + "/state.json");
  const ModelSpec checkpointed = checkpointed_model(checkpoint, config);
  const HfCompanions companions = companions_of(config, checkpointed.vocabulary);
  const ModelSpec model = positioned(checkpointed, config, companions);
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const CheckpointedState weights(checkpoint, layout, model);
  std::optional<AveragedWeights> averages;
  if (arguments.ema) {
    averages.emplace(weights, checkpoint.path());
  }
  const StateSource& state = averages ? static_cast<const StateSource&>(*averages) : weights;
  if (arguments.adapters) {
    return export_only_adapters(arguments, {state, layout, model}, config, console);
  }
  const ExportOptions options{
      .dtype = *parse_dtype(arguments.dtype),
      .max_shard_bytes = *parse_byte_size(arguments.max_shard_size),
      .experts = arguments.fused_experts ? HfExperts::kFused : HfExperts::kSeparate,
      .companions = companions};
  const ExportSummary summary =
      model.lora.is_on() ? export_merged({state, layout, model}, config, arguments.folder, options)
                         : export_weights(state, layout, model, arguments.folder, options);
  console.print(fmt::format("{}\nwrote {}: config.json, {} tensors of {} in {} file{}, {}\n",
                            describe_model(model), arguments.folder, summary.num_tensors,
                            arguments.dtype, summary.num_files, summary.num_files == 1 ? "" : "s",
                            format_bytes(summary.size_bytes)) +
                mtp_line(model) + carried_line(companions, config.data.tokenizer));
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
  command->add_flag("--adapters", arguments->adapters,
                    "Of a run with [lora], write the adapters alone in peft's format, instead of "
                    "the model with the adapters added to its weights");
  command->add_flag("--ema", arguments->ema,
                    "Write the averages of the weights (optimizer.ema) instead of the weights");
  command->footer(
      "Names and layouts are those of LlamaForCausalLM, Qwen2ForCausalLM (biases on qkv) "
      "and\nGPT2LMHeadModel; docs/checkpoints.md lists them. The files of the "
      "run's tokenizer go along.\n\n  "
      "braid export runs/quickstart exported --dtype bf16");
  command->callback([arguments, &console] { export_model(*arguments, console); });
}

}  // namespace braid
