#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "cli/commands.h"
#include "cli/trained_model.h"
#include "cli/validators.h"
#include "data/tokenizer.h"
#include "data/utf8.h"
#include "generate/generate.h"
#include "runtime/device.h"

namespace braid {
namespace {

struct GenerateArguments {
  std::string path;
  std::string prompt;
  std::string tokenizer;
  ForwardArguments forward;
  int64_t tokens = 128;
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

void generate(const GenerateArguments& arguments, const Console& console) {
  const TrainedModel trained(arguments.path, arguments.tokenizer);
  const Tokenizer& tokenizer = trained.tokenizer();
  std::vector<int32_t> context = first_context(tokenizer, arguments.prompt);
  Generator generator(load_causal_model(trained, arguments.forward));
  console.print(arguments.prompt);
  TokenPrinter printer(tokenizer, console);
  generator.generate(std::move(context), arguments.tokens, tokenizer.stop_ids(), arguments.sampling,
                     [&](int32_t token) { printer.add(token); });
  printer.finish();
  console.print("\n");
}

}  // namespace

void add_generate_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "Continue a text with a trained model");
  command
      ->add_option("path", arguments->path,
                   "Run folder or checkpoint, or a Hugging Face folder of weights")
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
      ->add_option("--device", arguments->forward.device,
                   "Where the model runs (default: as in the run, or on the CPU if this machine "
                   "lacks the GPU). A GPU computes in bfloat16")
      ->check(CLI::IsMember(device_names()));
  command
      ->add_option("--context", arguments->forward.context,
                   "How many tokens the model can look back; more takes more memory (default: "
                   "train.sequence of the run)")
      ->check(between(1, kMostContextTokens));
  command->add_option("--tokenizer", arguments->tokenizer,
                      "tokenizer.json, SentencePiece model or \"bytes\", instead of the run's own");
  command->footer("  braid generate runs/quickstart --prompt \"A hacker is\" --tokens 200");
  command->callback([arguments, &console] { generate(*arguments, console); });
}

}  // namespace braid
