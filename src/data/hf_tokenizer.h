#pragma once

#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace braid {

/// A tokenizer.json of Hugging Face's library with byte-level BPE, as GPT-2, Llama 3, Qwen and
/// DeepSeek have it. Ids are those of the library's `encode`, up to characters that are newer than
/// the Unicode of the installed PCRE2 and utf8proc; bytes that are not UTF-8 become U+FFFD first.
/// "truncation" and "padding" are not used: they are about batches.
///
/// Files beside it are read where they are there: tokenizer_config.json names the tokens that end
/// (`eod_id`) and begin a text; eos_token_id of generation_config.json is for `stop_ids`.
///
/// Throws DataError for a file that is damaged, or has a component that braid does not compute.
std::unique_ptr<Tokenizer> load_hf_tokenizer(const std::string& path);

}  // namespace braid
