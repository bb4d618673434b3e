#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "evaluate/continuation.h"

namespace braid {

/// An item of a file in HellaSwag's format.
struct ChoiceItem {
  std::string context;
  std::vector<std::string> endings;
  int64_t label = 0;  ///< of the right ending
  int64_t line = 0;   ///< of the file
};

/// A context and what follows it, of a file of requests.
struct ContinuationRequest {
  std::string context;
  std::string continuation;
  int64_t line = 0;
};

/// Reads JSONL, which may be compressed, with "ctx", "endings" (two or more) and "label" (a number,
/// or one in quotes); other members do not matter. `limit`: the first items only; 0: all. Throws
/// DataError naming path, line and member.
std::vector<ChoiceItem> read_choices(const std::string& path, int64_t limit);

/// The same with "context" and "continuation".
std::vector<ContinuationRequest> read_requests(const std::string& path, int64_t limit);

/// Scores of an item's endings, each after the context and a blank.
struct ChoiceScore {
  int64_t label = 0;
  std::vector<ContinuationScore> endings;
  std::vector<int64_t> characters;  ///< of each ending, without the blank
};

/// An item's endings after its context. Throws as `encode_continuation`.
std::vector<ContinuationTokens> encode_choices(const Tokenizer& tokenizer, const ChoiceItem& item);

/// `endings`: those of `encode_choices`, scored.
ChoiceScore choice_score(const ChoiceItem& item, std::span<const ContinuationScore> endings);

/// The share of items whose right ending scores best, the first of equal ones, and its standard
/// error as lm-eval has it: sqrt(p (1 - p) / (n - 1)).
struct Accuracy {
  double value = 0;
  double standard_error = 0;
};

/// By what the endings of an item are compared.
enum class ChoiceNorm {
  kSum,         ///< log probability: lm-eval's "acc"
  kCharacters,  ///< per character of the ending: lm-eval's "acc_norm"
  kTokens,      ///< per token: llm.c's accuracy of HellaSwag
};

Accuracy accuracy_of(std::span<const ChoiceScore> scores, ChoiceNorm norm);

}  // namespace braid
