#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/validators.h"
#include "config/load.h"
#include "config/validate.h"
#include "data/tokenizer.h"
#include "data/utf8.h"
#include "runtime/checkpointing.h"
#include "runtime/engine.h"
#include "runtime/generate.h"
#include "runtime/model_setup.h"

namespace braid {
namespace {

struct Arguments {
  std::string path;
  std::string prompt;
  std::string tokenizer;
  int64_t tokens = 128;
  SamplingOptions sampling;
};

/// The checkpoint that a path means: itself, the newest of a folder of checkpoints, or that of a
/// run folder.
std::string checkpoint_of(const std::string& path) {
  if (std::filesystem::exists(path + "/state.json")) {
    return path;
  }
  for (const std::string& folder : {path, path + "/checkpoints"}) {
    if (const auto latest = find_latest_checkpoint(folder)) {
      return *latest;
    }
  }
  throw_data_error("'{}' is no checkpoint, and there is none in it or in its folder checkpoints",
                   path);
}

/// Bytes of the character that begins with this byte, as far as the byte says so.
size_t character_bytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0xC0u ? 1 : byte < 0xE0u ? 2 : byte < 0xF0u ? 3 : 4;
}

/// Whether more bytes could make a character of what stands at the end of the text.
bool may_be_completed(std::string_view end) {
  return end.size() < character_bytes(end.front()) &&
         std::all_of(end.begin() + 1, end.end(),
                     [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) == 0x80u; });
}

/// Prints text as tokens arrive. A token may end inside a character: that waits for the next one.
/// Bytes that are no text, which an untrained model likes to draw, become U+FFFD, so that the
/// output is UTF-8.
class TokenPrinter {
 public:
  TokenPrinter(const Tokenizer& tokenizer, const Console& console)
      : tokenizer_(tokenizer), console_(console) {}

  void add(int32_t token) {
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

/// The model of a checkpoint: as its configuration says, with the vocabulary that it has on disk,
/// whatever tokenizer is at hand now.
ModelSpec model_of(const LoadedCheckpoint& checkpoint, RunConfig& config,
                   const Tokenizer& tokenizer) {
  for (const TensorEntry& tensor : checkpoint.weights().tensors()) {
    if (tensor.name == "embedding.tokens" && tensor.shape.rank() == 2) {
      config.model.vocabulary = tensor.shape[0];
    }
  }
  const int64_t vocabulary = config.model.vocabulary.value_or(0);
  if (vocabulary > 0 && tokenizer.vocabulary_size() > vocabulary) {
    throw_config_error(
        "--tokenizer: '{}' has {} ids, the vocabulary of the model in {} has {}; give the "
        "tokenizer that it was trained with",
        tokenizer.name(), tokenizer.vocabulary_size(), checkpoint.path(), vocabulary);
  }
  return resolve_model(config.model, config.train.sequence, tokenizer.vocabulary_size());
}

/// The prompt as tokens; an empty one is the end of the document before.
std::vector<int32_t> first_context(const Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<int32_t> context;
  try {
    context = tokenizer.encode(prompt);
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

void generate(const Arguments& arguments, const Console& console) {
  const LoadedCheckpoint checkpoint(checkpoint_of(arguments.path));
  RunConfig config = parse_config(checkpoint.state().config, checkpoint.path() + "/state.json");
  const auto tokenizer =
      load_tokenizer(arguments.tokenizer.empty() ? config.data.tokenizer : arguments.tokenizer);
  std::vector<int32_t> context = first_context(*tokenizer, arguments.prompt);
  const ModelSpec model = model_of(checkpoint, config, *tokenizer);
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  Generator generator(model, load_model_state(checkpoint, layout, model), config.train.sequence,
                      threads_per_rank(config.runtime.threads, 1));
  console.print(arguments.prompt);
  TokenPrinter printer(*tokenizer, console);
  generator.generate(std::move(context), arguments.tokens, tokenizer->eod_id(), arguments.sampling,
                     [&](int32_t token) { printer.add(token); });
  printer.finish();
  console.print("\n");
}

}  // namespace

void add_generate_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("generate", "Continue a text with a trained model");
  command->add_option("path", arguments->path, "Run folder or checkpoint")
      ->required()
      ->type_name("FOLDER");
  command->add_option("--prompt", arguments->prompt, "Text to continue; empty: begin a document");
  command->add_option("--tokens", arguments->tokens, "Tokens to add at most")
      ->check(at_least(1))
      ->capture_default_str();
  command
      ->add_option("--temperature", arguments->sampling.temperature,
                   "How freely tokens are drawn; 0: always the likeliest one")
      ->check(between(0, 100))
      ->capture_default_str();
  command
      ->add_option("--top-k", arguments->sampling.top_k,
                   "Draw from the k likeliest tokens only; 0: from all")
      ->check(at_least(0))
      ->capture_default_str();
  command
      ->add_option("--seed", arguments->sampling.seed,
                   "Seed of the draws: the same seed draws the same text")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--tokenizer", arguments->tokenizer,
                      "SentencePiece model or \"bytes\", instead of the run's own");
  command->footer("  braid generate runs/quickstart --prompt \"A hacker is\" --tokens 200");
  command->callback([arguments, &console] { generate(*arguments, console); });
}

}  // namespace braid
