#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "cli/commands.h"
#include "cli/trained_model.h"
#include "cli/validators.h"
#include "data/tokenizer.h"
#include "generate/generate.h"
#include "generate/prompt_file.h"
#include "generate/text_stream.h"
#include "runtime/device.h"

namespace braid {
namespace {

constexpr double kMostPromptsAtOnce = 4096;

struct GenerateArguments {
  std::string path;
  std::string prompt;
  std::string prompts;
  std::string tokenizer;
  ForwardArguments forward;
  int64_t batch = 8;
  int64_t seed = 0;
  GenerationOptions generation;
  std::vector<std::string> stops;
};

/// The prompt as tokens, with what the tokenizer puts before every text. Without any, the end of a
/// preceding document.
std::vector<int32_t> first_context(const Tokenizer& tokenizer, const std::string& prompt,
                                   const std::string& where) {
  std::vector<int32_t> context = tokenizer.frame().before;
  try {
    const std::vector<int32_t> tokens = tokenizer.encode(prompt);
    context.insert(context.end(), tokens.begin(), tokens.end());
  } catch (const DataError& error) {
    throw_config_error("{}: {}", where, error.what());
  }
  if (context.empty()) {
    if (!tokenizer.eod_id()) {
      throw_config_error(
          "{} = \"\": the tokenizer {} has no end-of-document id to start from; give a "
          "prompt",
          where, tokenizer.name());
    }
    context.push_back(*tokenizer.eod_id());
  }
  return context;
}

/// Prints the text as it comes.
void continue_prompt(const GenerateArguments& arguments, const TrainedModel& trained,
                     const Console& console) {
  const Tokenizer& tokenizer = trained.tokenizer();
  const Prompt prompt{.tokens = first_context(tokenizer, arguments.prompt, "--prompt"),
                      .seed = static_cast<uint64_t>(arguments.seed)};
  Generator generator(load_decoder(trained, arguments.forward, 1));
  console.print(arguments.prompt);
  TextStream text(tokenizer, arguments.stops);
  generator.generate(std::span(&prompt, 1), arguments.generation, [&](size_t, int32_t token) {
    console.print(text.add(token));
    return !text.has_stopped();
  });
  console.print(text.finish() + "\n");
}

/// Prints a JSON object for each prompt, in their order.
class ResultPrinter {
 public:
  ResultPrinter(const std::vector<PromptLine>& prompts, const Tokenizer& tokenizer,
                const std::vector<std::string>& stops, const Console& console)
      : prompts_(prompts), ended_(prompts.size()), texts_(prompts.size()), console_(console) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      streams_.emplace_back(tokenizer, stops);
    }
  }

  bool add(size_t prompt, int32_t token) {
    texts_[prompt] += streams_[prompt].add(token);
    return !streams_[prompt].has_stopped();
  }

  void end(size_t prompt, const Continuation& continuation) {
    texts_[prompt] += streams_[prompt].finish();
    const bool has_stopped =
        continuation.end != GenerationEnd::kLength || streams_[prompt].has_stopped();
    const nlohmann::ordered_json result = {{"prompt", prompts_[prompt].prompt},
                                           {"text", texts_[prompt]},
                                           {"tokens", continuation.tokens.size()},
                                           {"end", has_stopped ? "stop" : "length"}};
    // A prompt may have any bytes.
    ended_[prompt] = result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    for (; next_ < ended_.size() && !ended_[next_].empty(); ++next_) {
      console_.print(std::exchange(ended_[next_], {}));
    }
  }

 private:
  const std::vector<PromptLine>& prompts_;
  std::vector<TextStream> streams_;
  std::vector<std::string> ended_;  // results that wait for those of prompts before them
  std::vector<std::string> texts_;
  const Console& console_;
  size_t next_ = 0;
};

void continue_prompts(const GenerateArguments& arguments, const TrainedModel& trained,
                      const Console& console) {
  const std::vector<PromptLine> lines = read_prompts(arguments.prompts);
  std::vector<Prompt> prompts;
  for (const PromptLine& line : lines) {
    prompts.push_back(
        {.tokens = first_context(trained.tokenizer(), line.prompt,
                                 fmt::format("'{}' line {}", arguments.prompts, line.line)),
         .seed = line.seed.value_or(static_cast<uint64_t>(arguments.seed) + prompts.size())});
  }
  Generator generator(load_decoder(trained, arguments.forward,
                                   std::min<int64_t>(arguments.batch, std::ssize(prompts))));
  ResultPrinter printer(lines, trained.tokenizer(), arguments.stops, console);
  generator.generate(
      prompts, arguments.generation,
      [&](size_t prompt, int32_t token) { return printer.add(prompt, token); },
      [&](size_t prompt, const Continuation& found) { printer.end(prompt, found); });
}

void generate(GenerateArguments arguments, const Console& console) {
  if (!arguments.prompt.empty() && !arguments.prompts.empty()) {
    throw_config_error("give one of --prompt and --prompts");
  }
  const TrainedModel trained(arguments.path, arguments.tokenizer);
  arguments.generation.ends = trained.tokenizer().stop_ids();
  if (arguments.prompts.empty()) {
    continue_prompt(arguments, trained, console);
  } else {
    continue_prompts(arguments, trained, console);
  }
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
  command
      ->add_option("--prompts", arguments->prompts,
                   "Texts to continue, one per line, or a .jsonl file of objects with \"prompt\" "
                   "and, if wanted, \"seed\"; prints a JSON object for each")
      ->type_name("FILE");
  command->add_option("--batch", arguments->batch, "Prompts of --prompts that run together")
      ->check(between(1, kMostPromptsAtOnce))
      ->capture_default_str();
  command
      ->add_option("--tokens", arguments->generation.max_tokens, "Largest number of tokens to add")
      ->check(at_least(1))
      ->capture_default_str();
  command
      ->add_option("--temperature", arguments->generation.sampling.temperature,
                   "Sampling temperature; 0 = always take the likeliest token")
      ->check(between(0, 100))
      ->capture_default_str();
  command
      ->add_option("--top-k", arguments->generation.sampling.top_k,
                   "Draw from the k likeliest tokens only; 0 = from all")
      ->check(at_least(0))
      ->capture_default_str();
  command
      ->add_option("--top-p", arguments->generation.sampling.top_p,
                   "Of these, draw from the fewest whose probabilities sum to p; 1 = from all")
      ->check(between(0, 1))
      ->capture_default_str();
  command
      ->add_option("--repetition-penalty", arguments->generation.sampling.repetition_penalty,
                   "Divides positive logits of tokens in the text, and multiplies negative ones; "
                   "1 = none")
      ->check(between(0.01, 100))
      ->capture_default_str();
  command
      ->add_option("--stop", arguments->stops,
                   "Text that ends the continuation and is not printed; may be given several times")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--seed", arguments->seed,
          "Random seed; the same seed gives the same text. Of --prompts, the n-th from 0 has seed "
          "+ n unless its line says another")
      ->check(at_least(0))
      ->capture_default_str();
  command
      ->add_option("--device", arguments->forward.device,
                   "Where the model runs (default: as in the run, or on the CPU if this machine "
                   "lacks the GPU). A GPU computes in bfloat16")
      ->check(CLI::IsMember(device_names()));
  command
      ->add_option("--context", arguments->forward.context,
                   "How many tokens the model can look back; more takes more memory. A longer text "
                   "goes on with the last half of them (default: train.sequence of the run)")
      ->check(between(1, kMostContextTokens));
  command->add_option("--tokenizer", arguments->tokenizer,
                      "tokenizer.json, SentencePiece model or \"bytes\", instead of the run's own");
  command->footer(
      "  braid generate runs/quickstart --prompt \"A hacker is\" --tokens 200\n"
      "  braid generate runs/quickstart --prompts prompts.txt --top-p 0.9 --stop END > "
      "texts.jsonl\n\n"
      "docs/generation.md says how tokens are drawn, and how fast.");
  command->callback([arguments, &console] { generate(*arguments, console); });
}

}  // namespace braid
