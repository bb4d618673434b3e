#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "checkpoint/checkpoint.h"
#include "cli/checkpoint_path.h"
#include "cli/commands.h"
#include "cli/validators.h"
#include "config/choices.h"
#include "config/load.h"
#include "data/tokenizer.h"
#include "data/utf8.h"
#include "generate/generate.h"
#include "runtime/device.h"
#include "runtime/engine.h"
#include "runtime/memory_check.h"
#include "state/checkpointing.h"

namespace braid {
namespace {

struct GenerateArguments {
  std::string path;
  std::string prompt;
  std::string tokenizer;
  std::string device;
  int64_t tokens = 128;
  int64_t context = 0;  // 0: as many as in training
  SamplingOptions sampling;
};

/// Bytes of the character that begins with this byte, according to this byte alone.
size_t character_bytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0xC0u ? 1 : byte < 0xE0u ? 2 : byte < 0xF0u ? 3 : 4;
}

/// Whether more bytes could complete the character at the end of the text.
bool may_be_completed(std::string_view end) {
  return end.size() < character_bytes(end.front()) &&
         std::all_of(end.begin() + 1, end.end(),
                     [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) == 0x80u; });
}

/// Prints text as tokens arrive. A token may end inside a character: the partial character is held
/// until the next token. Invalid bytes, which an untrained model often samples, become U+FFFD, so
/// that the output is UTF-8.
class TokenPrinter {
 public:
  TokenPrinter(const Tokenizer& tokenizer, const Console& console)
      : tokenizer_(tokenizer), console_(console) {}

  /// Rows of the embedding beyond the tokenizer's ids (padding) have no text.
  void add(int32_t token) {
    if (token >= tokenizer_.vocabulary_size()) {
      return;
    }
    pending_ += tokenizer_.decode(std::span(&token, 1));
    console_.print(take_characters(false));
  }
  void finish() { console_.print(take_characters(true)); }

 private:
  std::string take_characters(bool is_end) {
    std::string text;
    while (const std::optional<size_t> bad = find_invalid_utf8(pending_)) {
      text += pending_.substr(0, *bad);
      pending_.erase(0, *bad);
      if (!is_end && may_be_completed(pending_)) {
        return text;
      }
      text += "\xEF\xBF\xBD";
      pending_.erase(0, 1);
    }
    return text + std::exchange(pending_, {});
  }

  const Tokenizer& tokenizer_;
  const Console& console_;
  std::string pending_;  // decoded and not yet printed
};

constexpr int64_t kMostContext = 1 << 24;  // as train.sequence

void check_tokenizer(const Tokenizer& tokenizer, const ModelSpec& model,
                     const LoadedCheckpoint& checkpoint) {
  if (tokenizer.vocabulary_size() > model.vocabulary) {
    throw_config_error(
        "--tokenizer: '{}' has {} ids, but the vocabulary of the model in {} has {}; give the "
        "tokenizer that the model was trained with",
        tokenizer.name(), tokenizer.vocabulary_size(), checkpoint.path(), model.vocabulary);
  }
}

/// The prompt as tokens, with what the tokenizer puts before every text. Without any, the end of a
/// preceding document.
std::vector<int32_t> first_context(const Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<int32_t> context = tokenizer.frame().before;
  try {
    const std::vector<int32_t> tokens = tokenizer.encode(prompt);
    context.insert(context.end(), tokens.begin(), tokens.end());
  } catch (const DataError& error) {
    throw_config_error("--prompt: {}", error.what());
  }
  if (context.empty()) {
    if (!tokenizer.eod_id()) {
      throw_config_error(
          "--prompt = \"\": the tokenizer {} has no end-of-document id to start from; give a "
          "prompt",
          tokenizer.name());
    }
    context.push_back(*tokenizer.eod_id());
  }
  return context;
}

/// The device of --device, or that of the run. Generation may run on a machine that cannot train
/// the model: "cuda" in the run file counts as "auto" here, and a requested GPU computes in
/// bfloat16 whatever dtype the run used.
Device generation_device(const GenerateArguments& arguments, RunConfig config) {
  const FoundGpus gpus = find_gpus();
  config.parallel = {};
  if (arguments.device.empty()) {
    const Backend* const named = named_backend(config);
    if (named != nullptr && !named->is_host) {
      config.runtime.device = choice_name(DeviceChoice::kAuto);
    }
    return choose_device(config, gpus);
  }
  config.runtime.device = arguments.device;
  const Backend* const named = named_backend(config);
  if (named != nullptr && !named->is_host) {
    if (gpus.usable.empty()) {
      throw_config_error("--device {}: {}; give --device {}", named->name, gpus.why_none,
                         host_backend().name);
    }
    config.train.dtype = choice_name(named->dtypes.front());
  }
  return choose_device(config, gpus);
}

GeneratorOptions generator_options(const GenerateArguments& arguments, RunConfig config) {
  config.parallel.ranks = 1;
  const Device device = generation_device(arguments, config);
  const int threads = threads_per_rank(config.runtime.threads, 1);
  const RunMemory memory = free_memory(device, threads);
  return {.threads = threads,
          .device = device,
          .cache_folder = user_cache_folder(),
          .free_bytes = memory.gpu ? memory.gpu->free_bytes : memory.host_bytes};
}

void generate(const GenerateArguments& arguments, const Console& console) {
  const LoadedCheckpoint checkpoint(find_checkpoint(arguments.path), is_weight);
  const RunConfig config =
      parse_config(checkpoint.state().config, checkpoint.path() + "/state.json");
  const auto tokenizer =
      load_tokenizer(arguments.tokenizer.empty() ? config.data.tokenizer : arguments.tokenizer);
  std::vector<int32_t> context = first_context(*tokenizer, arguments.prompt);
  const ModelSpec model = checkpointed_model(checkpoint, config);
  check_tokenizer(*tokenizer, model, checkpoint);
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const int64_t context_tokens = arguments.context == 0 ? config.train.sequence : arguments.context;
  if (model.max_positions > 0 && context_tokens > model.max_positions) {
    throw_config_error(
        "--context {}: the model has {} learned positions; give --context {} or less",
        context_tokens, model.max_positions, model.max_positions);
  }
  Generator generator(model, CheckpointedState(checkpoint, layout, model), context_tokens,
                      generator_options(arguments, config));
  console.print(arguments.prompt);
  TokenPrinter printer(*tokenizer, console);
  generator.generate(std::move(context), arguments.tokens, tokenizer->stop_ids(),
                     arguments.sampling, [&](int32_t token) { printer.add(token); });
  printer.finish();
  console.print("\n");
}

}  // namespace

void add_generate_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "Continue a text with a trained model");
  command->add_option("path", arguments->path, "Run folder or checkpoint")
      ->required()
      ->type_name("FOLDER");
  command->add_option("--prompt", arguments->prompt, "Text to continue; empty = begin a document");
  command->add_option("--tokens", arguments->tokens, "Largest number of tokens to add")
      ->check(at_least(1))
      ->capture_default_str();
  command
      ->add_option("--temperature", arguments->sampling.temperature,
                   "Sampling temperature; 0 = always take the likeliest token")
      ->check(between(0, 100))
      ->capture_default_str();
  command
      ->add_option("--top-k", arguments->sampling.top_k,
                   "Draw from the k likeliest tokens only; 0 = from all")
      ->check(at_least(0))
      ->capture_default_str();
  command
      ->add_option("--seed", arguments->sampling.seed,
                   "Random seed; the same seed gives the same text")
      ->check(at_least(0))
      ->capture_default_str();
  command
      ->add_option("--device", arguments->device,
                   "Where the model runs (default: as in the run, or on the CPU if this machine "
                   "lacks the GPU). A GPU computes in bfloat16")
      ->check(CLI::IsMember(device_names()));
  command
      ->add_option("--context", arguments->context,
                   "How many tokens the model can look back; more takes more memory (default: "
                   "train.sequence of the run)")
      ->check(between(1, kMostContext));
  command->add_option("--tokenizer", arguments->tokenizer,
                      "tokenizer.json, SentencePiece model or \"bytes\", instead of the run's own");
  command->footer("  braid generate runs/quickstart --prompt \"A hacker is\" --tokens 200");
  command->callback([arguments, &console] { generate(*arguments, console); });
}

}  // namespace braid
