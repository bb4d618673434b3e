#include "data/text_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "base/errors.h"
#include "base/text.h"
#include "data/new_characters.h"
#include "data/tokenizer_json.h"
#include "data/utf8.h"

namespace braid {

struct TextNormalizer::Form {
  std::string_view name;
  int options = 0;            // of utf8proc
  bool keeps_common = false;  // a text of kCommon alone is normal; else of ASCII alone
};

namespace {

/// Characters that NFC neither changes, moves nor composes with those before them (NFC_Quick_Check
/// = Yes and combining class 0), where much text is: Latin, Cyrillic, punctuation, arrows and
/// symbols, kana, ideographs, Hangul, fullwidth forms, emoji.
constexpr std::array kCommon = {
    CharacterRange{0x0000, 0x02FF},   CharacterRange{0x0400, 0x0482},
    CharacterRange{0x048A, 0x052F},   CharacterRange{0x2002, 0x205F},
    CharacterRange{0x2190, 0x219B},   CharacterRange{0x2500, 0x27BF},
    CharacterRange{0x3000, 0x3029},   CharacterRange{0x3030, 0x3098},
    CharacterRange{0x309B, 0x30FF},   CharacterRange{0x3400, 0x4DBF},
    CharacterRange{0x4E00, 0x9FFF},   CharacterRange{0xAC00, 0xD7A3},
    CharacterRange{0xFE00, 0xFE0F},   CharacterRange{0xFF01, 0xFF60},
    CharacterRange{0x1F000, 0x1FAFF},
};

struct FreeBytes {
  void operator()(utf8proc_uint8_t* bytes) const { std::free(bytes); }
};

std::string normal_form(std::string_view text, int options, std::string_view form) {
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), std::ssize(text), &bytes,
                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, FreeBytes> owner(bytes);
  if (size < 0) {
    throw_data_error("{} of a text of {} bytes: {}", form, text.size(), utf8proc_errmsg(size));
  }
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)};
}

/// Whether a character is in one of these ranges, which ascend.
bool is_in(std::span<const CharacterRange> ranges, uint32_t character) {
  const auto after = std::ranges::upper_bound(ranges, character, {}, &CharacterRange::first);
  return after != ranges.begin() && character <= std::prev(after)->last;
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_common(std::string_view text) {
  while (!text.empty()) {
    if (static_cast<unsigned char>(text.front()) < 0x80) {
      text.remove_prefix(1);
    } else if (!is_in(kCommon, take_code_point(text))) {
      return false;
    }
  }
  return true;
}

/// Bytes before the first of kUnmovedMarks; all if there is none.
size_t bytes_before_unmoved(std::string_view text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    if (static_cast<unsigned char>(rest.front()) < 0xDF) {  // before U+07C0: none of them
      rest.remove_prefix(1);
      continue;
    }
    std::string_view next = rest;
    if (is_in(kUnmovedMarks, take_code_point(next))) {
      break;
    }
    rest = next;
  }
  return text.size() - rest.size();
}

/// As Hugging Face's library does it: unmoved marks stay, and what they separate is normalized
/// apart.
std::string separate_normal_forms(std::string_view text, int options, std::string_view form) {
  std::string result;
  while (!text.empty()) {
    const size_t size = bytes_before_unmoved(text);
    result += normal_form(text.substr(0, size), options, form);
    text.remove_prefix(size);
    if (!text.empty()) {
      std::string_view rest = text;
      take_code_point(rest);
      result += text.substr(0, text.size() - rest.size());
      text = rest;
    }
  }
  return result;
}

}  // namespace

const TextNormalizer::Form* TextNormalizer::find_form(std::string_view name) {
  static constexpr std::array kForms = {
      Form{"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE, true},
      Form{"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
      Form{"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
      Form{"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
  };
  const auto* const found = std::ranges::find(kForms, name, &Form::name);
  return found == kForms.end() ? nullptr : found;
}

TextNormalizer::TextNormalizer(const nlohmann::json& json, const std::string& what) {
  if (!json.is_null()) {
    add(json, what);
  }
}

void TextNormalizer::add(const nlohmann::json& json, const std::string& what) {
  const std::string type = type_of_component(json, what, "normalizer");
  if (type == "Sequence") {
    for (const nlohmann::json& part : list_member(json, "normalizers", what)) {
      add(part, what);
    }
    return;
  }
  const Form* const form = find_form(type);
  if (form == nullptr) {
    refuse_component(what, "normalizer", type);
  }
  forms_.push_back(form);
}

std::string_view TextNormalizer::normalize(std::string_view text, std::string& buffer) const {
  for (const Form* const form : forms_) {
    const bool is_normal = form->keeps_common ? is_common(text) : is_ascii(text);
    if (!is_normal) {
      buffer = separate_normal_forms(text, form->options, form->name);
      text = buffer;
    }
  }
  return text;
}

std::string TextNormalizer::describe() const {
  std::vector<std::string_view> names;
  for (const Form* const form : forms_) {
    names.push_back(form->name);
  }
  return names.empty() ? "none" : join(names, ", ");
}

std::string describe_normalizer_library() {
  return fmt::format("utf8proc {}, Unicode {}", utf8proc_version(), utf8proc_unicode_version());
}

}  // namespace braid
