#include "data/added_tokens.h"

#include <algorithm>
#include <utility>

#include "data/utf8.h"

namespace braid {
namespace {

/// Unicode's White_Space, as of Unicode 6.3 and later.
bool is_white_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

/// Bytes of white space at the front.
size_t space_at_begin(std::string_view text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view next = rest;
    if (!is_white_space(take_code_point(next))) {
      break;
    }
    rest = next;
  }
  return text.size() - rest.size();
}

/// Where the white space at the end begins.
size_t begin_of_space_at_end(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    size_t last = begin - 1;
    while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xC0u) == 0x80u) {
      --last;
    }
    std::string_view character = text.substr(last, begin - last);
    if (!is_white_space(take_code_point(character))) {
      break;
    }
    begin = last;
  }
  return begin;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::ranges::sort(tokens_, {}, &AddedToken::content);
  for (const AddedToken& token : tokens_) {
    begins_token_[static_cast<unsigned char>(token.content.front())] = true;
  }
}

const AddedToken* AddedTokenFinder::token_at(std::string_view text) const {
  const AddedToken* longest = nullptr;
  auto first = tokens_.begin();  // [first, last) begin with the first `depth` bytes of the text
  auto last = tokens_.end();
  for (size_t depth = 0; first != last; ++depth) {
    if (first->content.size() == depth) {
      longest = &*first++;
    }
    if (depth == text.size()) {
      break;
    }
    const auto byte_of = [&](const AddedToken& token) {
      return static_cast<unsigned char>(token.content[depth]);
    };
    const auto byte = static_cast<unsigned char>(text[depth]);
    first = std::partition_point(first, last,
                                 [&](const AddedToken& token) { return byte_of(token) < byte; });
    last = std::partition_point(first, last,
                                [&](const AddedToken& token) { return byte_of(token) == byte; });
  }
  return longest;
}

void AddedTokenFinder::split(std::string_view text,
                             const std::function<void(const Part&)>& visit) const {
  size_t done = 0;  // visited so far
  for (size_t at = 0; at < text.size();) {
    const bool may_begin = begins_token_[static_cast<unsigned char>(text[at])];
    const AddedToken* const token = may_begin ? token_at(text.substr(at)) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    at += token->content.size();
    size_t end = at;
    if (token->strips_left) {
      begin = std::max(begin_of_space_at_end(text.substr(0, begin)), done);
    }
    if (token->strips_right) {
      end += space_at_begin(text.substr(end));
    }
    if (begin > done) {
      visit({.text = text.substr(done, begin - done), .id = std::nullopt});
    }
    visit({.text = text.substr(begin, end - begin), .id = token->id});
    done = end;
  }
  if (done < text.size()) {
    visit({.text = text.substr(done), .id = std::nullopt});
  }
}

}  // namespace braid
