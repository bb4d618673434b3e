#pragma once

#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace braid {

/// See `load_tokenizer`.
std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path);

}  // namespace braid
