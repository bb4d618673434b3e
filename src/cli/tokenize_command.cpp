#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/status_line.h"
#include "cli/validators.h"
#include "data/indexed_dataset.h"
#include "data/input_paths.h"
#include "data/tokenize.h"
#include "data/tokenizer.h"
#include "data/train_sentencepiece.h"

namespace braid {
namespace {

struct TokenizeArguments {
  std::vector<std::string> inputs;
  std::string output;
  std::string tokenizer;
  std::string kind = "bpe";
  std::string document_break = "blank-lines";
  std::string marker = "%";
  std::string json_key = "text";
  int64_t train_vocabulary = 0;
  int64_t threads = std::max(1u, std::thread::hardware_concurrency());
  bool no_eod = false;
  bool replace_invalid = false;
  bool overwrite = false;
  std::string chat;
  bool preference = false;
};

/// Throws ConfigError if OUTPUT with one of these suffixes exists and must not be overwritten.
void check_output(const TokenizeArguments& arguments,
                  std::initializer_list<std::string_view> suffixes) {
  for (const std::string_view suffix : suffixes) {
    const std::string path = fmt::format("{}{}", arguments.output, suffix);
    if (!arguments.overwrite && std::filesystem::exists(path)) {
      throw_config_error("--output {}: '{}' exists; give another prefix, or --overwrite",
                         arguments.output, path);
    }
  }
}

DocumentOptions document_options(const TokenizeArguments& arguments) {
  DocumentOptions options;
  options.json_key = arguments.json_key;
  options.text.marker = arguments.marker;
  options.text.replaces_invalid = arguments.replace_invalid;
  options.text.document_break = arguments.document_break == "none"     ? DocumentBreak::kNone
                                : arguments.document_break == "marker" ? DocumentBreak::kMarkerLine
                                                                       : DocumentBreak::kBlankLines;
  return options;
}

void train_tokenizer(const TokenizeArguments& arguments, const Console& console) {
  check_output(arguments, {".model"});
  const SentencePieceTrainOptions options{
      .inputs = expand_inputs(arguments.inputs, "--input"),
      .output_prefix = arguments.output,
      .vocabulary_size = arguments.train_vocabulary,
      .kind = parse_sentencepiece_kind(arguments.kind, "--kind"),
      .threads = arguments.threads,
      .documents = document_options(arguments)};
  std::string path;
  try {
    path = train_sentencepiece(options);
  } catch (const ConfigError& error) {  // the library knows the size, not what it is called here
    throw_config_error("--train-vocabulary: {}", error.what());
  }
  console.print(fmt::format("wrote {}: {} pieces of {}\n", path, arguments.train_vocabulary,
                            describe_inputs(options.inputs)));
}

std::optional<ChatTemplate> chat_template(const TokenizeArguments& arguments) {
  const auto* const found =
      std::ranges::find(kChatTemplates, arguments.chat, &NamedChatTemplate::name);
  return found == kChatTemplates.end() ? std::nullopt : std::optional(found->value);
}

void show_progress(StatusLine& line, const TokenizeProgress& now) {
  if (!line.is_due()) {
    return;
  }
  const TokenizeStatistics& so_far = now.so_far;
  const double done = so_far.file_bytes == 0 ? 1
                                             : static_cast<double>(now.done_bytes) /
                                                   static_cast<double>(so_far.file_bytes);
  line.update(done,
              fmt::format("{} documents, {} tokens, {} tokens/s", format_count(so_far.documents),
                          format_count(so_far.tokens), format_count(line.rate(so_far.tokens))));
}

void tokenize(const TokenizeArguments& arguments, const Console& console) {
  check_output(arguments, {".bin", ".idx"});
  if (!arguments.chat.empty()) {
    check_output(arguments, {".mask.bin", ".mask.idx"});
  } else if (is_dataset(mask_prefix(arguments.output))) {
    throw_config_error(
        "--output {}: '{}.idx' exists and would be its mask; give another prefix, or remove it",
        arguments.output, mask_prefix(arguments.output));
  }
  const auto tokenizer = load_tokenizer(arguments.tokenizer);
  StatusLine line(console);
  const TokenizeStatistics statistics = tokenize_files(
      *tokenizer, {.inputs = expand_inputs(arguments.inputs, "--input"),
                   .output_prefix = arguments.output,
                   .append_eod = !arguments.no_eod,
                   .threads = arguments.threads,
                   .documents = document_options(arguments),
                   .chat = chat_template(arguments),
                   .pairs = arguments.preference,
                   .progress = [&](const TokenizeProgress& now) { show_progress(line, now); }});
  line.erase();
  console.print(fmt::format(
      "wrote {}.bin and .idx: {} documents, {} tokens, {:.2f} bytes per token, {} tokens/s\n",
      arguments.output, format_count(statistics.documents), format_count(statistics.tokens),
      static_cast<double>(statistics.text_bytes) / static_cast<double>(statistics.tokens),
      format_count(line.rate(statistics.tokens))));
  if (!arguments.chat.empty()) {
    console.print(fmt::format(
        "wrote {}.bin and .idx: {} tokens of answers, which have a loss{}\n",
        mask_prefix(arguments.output), format_count(statistics.answer_tokens),
        arguments.preference ? fmt::format("; {} pairs", format_count(statistics.documents / 2))
                             : ""));
  }
}

}  // namespace

void add_tokenize_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* command = app.add_subcommand(
      "tokenize",
      "Turn text into a .bin/.idx pair of tokens (Megatron's format), or train a tokenizer on it");
  command
      ->add_option(
          "--input", arguments->inputs,
          "Text files, or JSONL (*.jsonl, *.json) with a document per line, which may be "
          "compressed with gzip or zstd, or Parquet (*.parquet). Several, in this order; a folder "
          "is all its *.txt, *.jsonl, *.json and *.parquet files, and a pattern in quotes "
          "(\"part-*.jsonl.zst\") the files like it, by name")
      ->required()
      ->type_name("PATH");
  command->add_option("--output", arguments->output, "Prefix of the files to write")->required();
  CLI::Option* tokenizer = command->add_option(
      "--tokenizer", arguments->tokenizer,
      "tokenizer.json of Hugging Face, or a folder with one; SentencePiece model; "
      "or \"bytes\"");
  command
      ->add_option("--train-vocabulary", arguments->train_vocabulary,
                   "Train a SentencePiece model of this many pieces on the input and write "
                   "OUTPUT.model instead")
      ->check(at_least(1))
      ->excludes(tokenizer);
  command->add_option("--kind", arguments->kind, "Kind of model to train")
      ->check(CLI::IsMember({"bpe", "unigram"}))
      ->capture_default_str();
  command
      ->add_option("--document-break", arguments->document_break,
                   "What ends a document of a text file")
      ->check(CLI::IsMember({"none", "blank-lines", "marker"}))
      ->capture_default_str();
  command
      ->add_option("--marker", arguments->marker,
                   "The line that ends a document with --document-break marker")
      ->capture_default_str();
  command
      ->add_option("--chat", arguments->chat,
                   "The input is JSONL or Parquet of conversations ({\"messages\": [...]}, or "
                   "{\"prompt\": ..., \"completion\": ...}), which become text by this template; "
                   "only answers have a loss")
      ->check(CLI::IsMember({"plain", "chatml", "llama3"}));
  command
      ->add_flag("--preference", arguments->preference,
                 "With --chat: each line is a pair of answers, {\"prompt\": ..., \"chosen\": ..., "
                 "\"rejected\": ...}, texts or messages, for preference.loss")
      ->needs("--chat");
  command
      ->add_option("--json-key", arguments->json_key,
                   "JSONL: the member that holds the text; Parquet: the column")
      ->capture_default_str();
  command
      ->add_option("--threads", arguments->threads,
                   "Threads that encode documents (default: one per core); the result is the same")
      ->check(between(1, 1024));
  command->add_flag("--no-eod", arguments->no_eod,
                    "Do not end each document with the end-of-document token");
  command->add_flag(
      "--replace-invalid", arguments->replace_invalid,
      "Replace bytes that are not UTF-8 by U+FFFD, as Python's errors=\"replace\" does, "
      "instead of refusing the file");
  command->add_flag("--overwrite", arguments->overwrite, "Replace the output if it exists");
  command->footer(
      "  braid tokenize --input corpus.txt --output tok --train-vocabulary 8192\n"
      "  braid tokenize --input corpus.txt --output corpus --tokenizer tok.model\n"
      "  braid tokenize --input data/ \"more/part-*.jsonl.zst\" --output corpus --tokenizer "
      "llama/tokenizer.json\n\n"
      "docs/data.md says how documents are read, and how several corpora are blended.");
  command->callback([arguments, &console] {
    if (arguments->train_vocabulary > 0) {
      train_tokenizer(*arguments, console);
    } else if (arguments->tokenizer.empty()) {
      throw_config_error(
          "--tokenizer: not given; name a tokenizer.json, a SentencePiece model or \"bytes\", or "
          "train a model with --train-vocabulary");
    } else {
      tokenize(*arguments, console);
    }
  });
}

}  // namespace braid
