#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "base/worker_pool.h"
#include "cli/commands.h"
#include "cli/rank_processes.h"
#include "cli/status_line.h"
#include "cli/trained_model.h"
#include "cli/validators.h"
#include "config/load.h"
#include "config/reference.h"
#include "data/documents.h"
#include "data/indexed_dataset.h"
#include "data/input_paths.h"
#include "data/tokenize.h"
#include "evaluate/held_out.h"
#include "evaluate/layout_model.h"
#include "evaluate/multiple_choice.h"
#include "launch/agreement.h"
#include "runtime/device.h"
#include "runtime/engine.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

struct EvalArguments {
  std::string path;
  std::vector<std::string> data;
  std::string choices;
  std::string requests;
  std::string tokenizer;
  std::string document_break = "blank-lines";
  std::string json_key = "text";
  ForwardArguments forward;
  int64_t limit = 0;
  std::vector<std::string> overrides;
  bool as_trained = false;
  bool json = false;
  bool ema = false;
};

/// What an evaluation works with.
struct Evaluation {
  const EvalArguments& arguments;
  const Console& console;
  const TrainedModel& trained;
  SequenceScorer& scorer;
};

/// Errors of an item as those of its line.
template <class Work>
auto in_line(const std::string& path, int64_t line, const Work& work) {
  try {
    return work();
  } catch (const DataError& error) {
    throw_data_error("'{}' line {}: {}", path, line, error.what());
  }
}

// ---- The loss of held-out text.

/// Passes the tokens of text and token files to the scorer, as training would read them.
class HeldOutReader {
 public:
  HeldOutReader(const Evaluation& eval, HeldOutScorer& scorer)
      : eval_(eval), scorer_(scorer), line_(eval.console) {}

  void read() {
    for (const std::string& input : eval_.arguments.data) {
      is_dataset(input) ? read_dataset(input) : read_texts(input);
    }
    line_.erase();
  }

  /// Of text files, without ends of documents; 0 if there were token files, too.
  int64_t text_bytes() const { return has_datasets_ ? 0 : text_bytes_; }
  const StatusLine& line() const { return line_; }

 private:
  void read_dataset(const std::string& input) {
    has_datasets_ = true;
    const IndexedDataset dataset(input);
    const SequenceIndex& index = dataset.index();
    const auto vocabulary = eval_.trained.model().vocabulary;
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < index.num_sequences(); ++i) {
      tokens.resize(static_cast<size_t>(index.length(i)));
      dataset.read(i, 0, tokens, vocabulary);
      add(tokens, static_cast<double>(i + 1) / static_cast<double>(index.num_sequences()));
    }
  }

  void read_texts(const std::string& input) {
    const Tokenizer& tokenizer = eval_.trained.tokenizer();
    const bool append_eod =
        eval_.trained.config().data.append_eod && tokenizer.eod_id().has_value();
    DocumentOptions options;
    options.json_key = eval_.arguments.json_key;
    options.text.document_break = eval_.arguments.document_break == "none"
                                      ? DocumentBreak::kNone
                                      : DocumentBreak::kBlankLines;
    for (const std::string& path : expand_inputs(std::vector<std::string>{input}, "--data")) {
      for_each_document(path, options, [&](const Document& document) {
        text_bytes_ += static_cast<int64_t>(document.text.size());
        const std::vector<int32_t> ids = tokenizer.encode(document.text);
        add(document_tokens(tokenizer, ids, append_eod),
            static_cast<double>(document.end_bytes) / static_cast<double>(document.file_bytes));
      });
    }
  }

  /// `done`: the part of the input that ends with these tokens.
  void add(std::span<const int32_t> tokens, double done) {
    scorer_.add(tokens);
    if (line_.is_due()) {
      const HeldOutScore& so_far = scorer_.so_far();
      line_.update(done,
                   fmt::format("{} tokens, loss {:.3f}, {} tokens/s", format_count(so_far.tokens),
                               so_far.loss(), format_count(line_.rate(so_far.tokens))));
    }
  }

  const Evaluation& eval_;
  HeldOutScorer& scorer_;
  StatusLine line_;
  int64_t text_bytes_ = 0;
  bool has_datasets_ = false;
};

void evaluate_held_out(const Evaluation& eval) {
  HeldOutScorer scorer(eval.scorer);
  HeldOutReader reader(eval, scorer);
  reader.read();
  const HeldOutScore score = scorer.finish();
  const double bits = score.nats / std::numbers::ln2;
  const int64_t tokens_per_s = reader.line().rate(score.tokens);
  Json json = {{"tokens", score.tokens},
               {"windows", score.windows},
               {"context", eval.scorer.max_tokens()},
               {"loss", score.loss()},
               {"perplexity", score.perplexity()}};
  std::string per_byte;
  if (reader.text_bytes() > 0) {
    json["bits_per_byte"] = bits / static_cast<double>(reader.text_bytes());
    per_byte = fmt::format(", {:.4f} bits per byte", json["bits_per_byte"].get<double>());
  }
  json["tokens_per_s"] = tokens_per_s;
  eval.console.print(
      eval.arguments.json
          ? json.dump() + "\n"
          : fmt::format("{} tokens in {} windows of {}, {} tokens/s\nloss {:.6f}, perplexity "
                        "{:.4f}{}\n",
                        score.tokens, score.windows, eval.scorer.max_tokens(),
                        format_count(tokens_per_s), score.loss(), score.perplexity(), per_byte));
}

// ---- Multiple choice.

struct NamedNorm {
  std::string_view name;
  ChoiceNorm norm;
  std::string_view meaning;
};

constexpr std::array kNorms = {
    NamedNorm{"acc", ChoiceNorm::kSum, "likeliest ending"},
    NamedNorm{"acc_norm", ChoiceNorm::kCharacters, "likeliest ending per character"},
    NamedNorm{"acc_token", ChoiceNorm::kTokens, "likeliest ending per token"}};

void print_accuracies(const Evaluation& eval, std::span<const ChoiceScore> scores) {
  Json json = {{"items", scores.size()}};
  std::string text = fmt::format("{} items\n", scores.size());
  for (const NamedNorm& norm : kNorms) {
    const Accuracy accuracy = accuracy_of(scores, norm.norm);
    json[std::string(norm.name)] = accuracy.value;
    json[std::string(norm.name) + "_stderr"] = accuracy.standard_error;
    text += fmt::format("{:<9} {:.4f} +- {:.4f}  {}\n", norm.name, accuracy.value,
                        accuracy.standard_error, norm.meaning);
  }
  eval.console.print(eval.arguments.json ? json.dump() + "\n" : text);
}

/// Continuations and the lines of the file that they belong to.
struct Continuations {
  std::vector<ContinuationTokens> tokens;
  std::vector<int64_t> lines;
};

/// Scores all, as many at once as the scorer likes, and calls `visit` with each score, in order.
void score_all(const Evaluation& eval, const std::string& path, const Continuations& all,
               const std::function<void(const ContinuationScore&)>& visit) {
  const auto at_once = static_cast<size_t>(eval.scorer.sequences_at_once());
  for (size_t begin = 0; begin < all.tokens.size(); begin += at_once) {
    const size_t count = std::min(at_once, all.tokens.size() - begin);
    const auto group = std::span(all.tokens).subspan(begin, count);
    const std::vector<ContinuationScore> scores =
        in_line(path, all.lines[begin], [&] { return score_continuations(eval.scorer, group); });
    std::ranges::for_each(scores, visit);
  }
}

void evaluate_choices(const Evaluation& eval) {
  const std::string& path = eval.arguments.choices;
  const std::vector<ChoiceItem> items = read_choices(path, eval.arguments.limit);
  Continuations all;
  for (const ChoiceItem& item : items) {
    in_line(path, item.line, [&] {
      for (ContinuationTokens& ending : encode_choices(eval.trained.tokenizer(), item)) {
        check_continuation(ending, eval.scorer.max_tokens());
        all.tokens.push_back(std::move(ending));
        all.lines.push_back(item.line);
      }
    });
  }
  StatusLine line(eval.console);
  std::vector<ChoiceScore> scores;
  std::vector<ContinuationScore> endings;  // of the next item
  score_all(eval, path, all, [&](const ContinuationScore& ending) {
    endings.push_back(ending);
    const ChoiceItem& item = items[scores.size()];
    if (endings.size() == item.endings.size()) {
      scores.push_back(choice_score(item, std::exchange(endings, {})));
      line.update(static_cast<double>(scores.size()) / static_cast<double>(items.size()),
                  fmt::format("{} of {} items", scores.size(), items.size()));
    }
  });
  line.erase();
  print_accuracies(eval, scores);
}

// ---- Log probabilities of given texts.

void evaluate_requests(const Evaluation& eval) {
  const std::string& path = eval.arguments.requests;
  const Tokenizer& tokenizer = eval.trained.tokenizer();
  Continuations all;
  for (const ContinuationRequest& request : read_requests(path, eval.arguments.limit)) {
    in_line(path, request.line, [&] {
      ContinuationTokens tokens =
          encode_continuation(tokenizer, request.context, request.continuation);
      check_continuation(tokens, eval.scorer.max_tokens());
      all.tokens.push_back(std::move(tokens));
      all.lines.push_back(request.line);
    });
  }
  score_all(eval, path, all, [&](const ContinuationScore& score) {
    const Json is_greedy = score.is_greedy ? Json(*score.is_greedy) : Json(nullptr);
    const Json json = {
        {"logprob", score.logprob}, {"is_greedy", is_greedy}, {"tokens", score.tokens}};
    eval.console.print(json.dump() + "\n");
  });
}

void evaluate(const Evaluation& eval) {
  if (!eval.arguments.data.empty()) {
    evaluate_held_out(eval);
  } else if (!eval.arguments.choices.empty()) {
    evaluate_choices(eval);
  } else {
    evaluate_requests(eval);
  }
}

// ---- Where the model runs.

void evaluate_on_device(const EvalArguments& arguments, const Console& console,
                        const TrainedModel& trained) {
  const std::unique_ptr<CausalModel> model =
      load_causal_model(trained, arguments.forward, !arguments.data.empty());
  WorkerPool workers(threads_per_rank(trained.config().runtime.threads, 1));
  DeviceScorer scorer(*model, workers);
  evaluate({arguments, console, trained, scorer});
}

/// Keys that say where and how an evaluation runs; all others are those of the model.
void check_overrides(const std::vector<std::string>& overrides) {
  constexpr std::array<std::string_view, 5> kKeys = {"parallel.", "runtime.", "overlap.comm_engine",
                                                     "moe.capacity", "train.microbatch"};
  for (const std::string& override : overrides) {
    if (std::ranges::none_of(kKeys,
                             [&](std::string_view key) { return override.starts_with(key); })) {
      throw_config_error(
          "--set {}: an evaluation reads keys of [parallel] and [runtime], overlap.comm_engine, "
          "moe.capacity and train.microbatch only",
          override);
    }
  }
}

RunConfig layout_config(const EvalArguments& arguments, const TrainedModel& trained) {
  check_overrides(arguments.overrides);
  RunConfig config = trained.config();
  config.parallel.data = 0;  // it was derived from the ranks of the run
  config = parse_config(to_toml(config), trained.path(), arguments.overrides);
  return evaluation_config(config, trained.model(), context_tokens(trained, arguments.forward),
                           forward_device(arguments.forward, config));
}

void evaluate_in_layout(const EvalArguments& arguments, const Console& console,
                        const TrainedModel& trained) {
  const RunConfig config = layout_config(arguments, trained);
  run_on_ranks(config, [&](const RankProcess& process) {
    ProcessGroup& processes = process.processes;
    finish_or_abort(processes, [&] {
      LayoutModel model(config, trained.model(), trained.weights(),
                        {.processes = &processes, .local_process = process.local_process});
      const Console own = process.may_have_terminal ? console : console.plain();
      evaluate({arguments, processes.leads() ? own : Console::silent(), trained, model});
    });
  });
}

void evaluate(const EvalArguments& arguments, const Console& console) {
  const int given = static_cast<int>(!arguments.data.empty()) +
                    static_cast<int>(!arguments.choices.empty()) +
                    static_cast<int>(!arguments.requests.empty());
  if (given != 1) {
    throw_config_error("give one of --data, --choices and --requests: {} of them are given", given);
  }
  const TrainedModel trained(
      arguments.path, arguments.tokenizer,
      arguments.ema ? TrainedModel::Weights::kAverages : TrainedModel::Weights::kLast);
  if (arguments.as_trained || !arguments.overrides.empty()) {
    evaluate_in_layout(arguments, console, trained);
  } else {
    evaluate_on_device(arguments, console, trained);
  }
}

}  // namespace

void add_eval_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<EvalArguments>();
  CLI::App* command = app.add_subcommand(
      "eval", "Score a trained model: loss of held-out text, multiple choice, log probabilities");
  command
      ->add_option("path", arguments->path,
                   "Run folder or checkpoint, or a Hugging Face folder of weights")
      ->required()
      ->type_name("FOLDER");
  command
      ->add_option(
          "--data", arguments->data,
          "Print loss and perplexity of these: text, JSONL, Parquet, folders and patterns as "
          "`braid tokenize --input` takes them, or .bin/.idx pairs")
      ->type_name("PATH");
  command
      ->add_option(
          "--choices", arguments->choices,
          "Print the accuracy on a file in HellaSwag's format: JSONL with ctx, endings and "
          "label")
      ->type_name("FILE");
  command
      ->add_option(
          "--requests", arguments->requests,
          "Print the log probability of each continuation of a JSONL file with context and "
          "continuation, a JSON object per line")
      ->type_name("FILE");
  command
      ->add_option("--limit", arguments->limit,
                   "The first items of --choices or --requests only; 0 = all")
      ->check(at_least(0))
      ->capture_default_str();
  command
      ->add_option(
          "--context", arguments->forward.context,
          "Tokens of a window of --data, and the most that an item may look back (default: "
          "train.sequence of the run)")
      ->check(between(1, kMostContextTokens));
  command->add_option(
      "--tokenizer", arguments->tokenizer,
      "tokenizer.json, SentencePiece model or \"bytes\", instead of the model's own");
  command
      ->add_option("--document-break", arguments->document_break,
                   "What ends a document of a text file")
      ->check(CLI::IsMember({"none", "blank-lines"}))
      ->capture_default_str();
  command
      ->add_option("--json-key", arguments->json_key,
                   "JSONL: the member that holds the text; Parquet: the column")
      ->capture_default_str();
  command
      ->add_option("--device", arguments->forward.device,
                   "Where the model runs (default: as in the run, or on the CPU if this machine "
                   "lacks the GPU). A GPU computes in bfloat16")
      ->check(CLI::IsMember(device_names()));
  command->add_flag("--as-trained", arguments->as_trained,
                    "Evaluate on all ranks of the run, in its layout, instead of on one device");
  command
      ->add_option("--set", arguments->overrides,
                   "The same with another layout: \"parallel.ranks=4\", \"parallel.tensor=2\"; "
                   "keys of [parallel] and [runtime], overlap.comm_engine, moe.capacity and "
                   "train.microbatch")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_flag("--ema", arguments->ema,
                    "Score the averages of the weights (optimizer.ema) instead of the weights");
  command->add_flag("--json", arguments->json, "Print a JSON object instead of text");
  command->footer(
      "  braid eval runs/quickstart --data held_out.txt\n"
      "  braid eval Qwen2.5-0.5B --choices hellaswag_val.jsonl --limit 1000\n"
      "  braid eval runs/quickstart --requests requests.jsonl > logprobs.jsonl\n"
      "  braid eval runs/llama_70b --data held_out.jsonl --set parallel.ranks=8 --set "
      "parallel.tensor=8\n\n"
      "docs/evaluation.md says what the figures are, and how lm-eval uses the last one.");
  command->callback([arguments, &console] { evaluate(*arguments, console); });
}

}  // namespace braid
