#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/errors.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "config/load.h"
#include "config/validate.h"
#include "data/tokenizer.h"
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

/// Prints text as tokens arrive: a token may end inside a character, so all of them are decoded
/// each time and what is new is printed as far as it is complete UTF-8.
class TokenPrinter {
 public:
  TokenPrinter(const Tokenizer& tokenizer, const Console& console)
      : tokenizer_(tokenizer), console_(console) {}

  void add(int32_t token) {
    tokens_.push_back(token);
    const std::string text = tokenizer_.decode(tokens_);
    const size_t complete = complete_bytes(text);
    if (complete > printed_bytes_) {
      console_.print(std::string_view(text).substr(printed_bytes_, complete - printed_bytes_));
      printed_bytes_ = complete;
    }
  }

 private:
  /// Bytes before a character that is cut off at the end.
  static size_t complete_bytes(std::string_view text) {
    size_t begin = text.size();
    while (begin > 0 && text.size() - begin < 4) {
      const auto byte = static_cast<unsigned char>(text[--begin]);
      if ((byte & 0xC0u) != 0x80u) {  // the first byte of the last character
        const size_t length = byte < 0x80u ? 1 : byte < 0xE0u ? 2 : byte < 0xF0u ? 3 : 4;
        return begin + length <= text.size() ? text.size() : begin;
      }
    }
    return text.size();
  }

  const Tokenizer& tokenizer_;
  const Console& console_;
  std::vector<int32_t> tokens_;
  size_t printed_bytes_ = 0;
};

void generate(const Arguments& arguments, const Console& console) {
  const LoadedCheckpoint checkpoint(checkpoint_of(arguments.path));
  const RunConfig config =
      parse_config(checkpoint.state().config, checkpoint.path() + "/state.json");
  const auto tokenizer =
      load_tokenizer(arguments.tokenizer.empty() ? config.data.tokenizer : arguments.tokenizer);
  const ModelSpec model =
      resolve_model(config.model, config.train.sequence, tokenizer->vocabulary_size());
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  Generator generator(model, load_model_state(checkpoint, layout, model), config.train.sequence,
                      threads_per_rank(config.runtime.threads, 1));
  std::vector<int32_t> context = tokenizer->encode(arguments.prompt);
  if (context.empty()) {
    if (!tokenizer->eod_id()) {
      throw_config_error(
          "--prompt = \"\": the tokenizer {} has no end-of-document id to start from; give a "
          "prompt",
          tokenizer->name());
    }
    context.push_back(*tokenizer->eod_id());
  }
  console.print(arguments.prompt);
  TokenPrinter printer(*tokenizer, console);
  generator.generate(std::move(context), arguments.tokens, tokenizer->eod_id(), arguments.sampling,
                     [&](int32_t token) { printer.add(token); });
  console.print("\n");
}

}  // namespace

void add_generate_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("generate", "Continue a text with a trained model");
  command->add_option("path", arguments->path, "Run folder or checkpoint")->required();
  command->add_option("--prompt", arguments->prompt, "Text to continue; empty: begin a document");
  command->add_option("--tokens", arguments->tokens, "Tokens to add at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--temperature", arguments->sampling.temperature,
                   "0: always the likeliest token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command
      ->add_option("--top-k", arguments->sampling.top_k,
                   "Draw from the k likeliest tokens only; 0: from all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--seed", arguments->sampling.seed, "Seed of the draws")
      ->capture_default_str();
  command->add_option("--tokenizer", arguments->tokenizer,
                      "Instead of the one that the run was trained with");
  command->footer("  braid generate runs/quickstart --prompt \"A hacker is\" --tokens 200");
  command->callback([arguments, &console] { generate(*arguments, console); });
}

}  // namespace braid
