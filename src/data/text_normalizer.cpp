#include "data/text_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/text.h"
#include "data/new_characters.h"
#include "data/tokenizer_json.h"
#include "data/utf8.h"

namespace braid {

struct TextNormalizer::Form {
  std::string_view name;
  int options = 0;                  // of utf8proc
  unsigned char first_lead = 0x80;  // every text of smaller bytes is normal
};

namespace {

/// U+0300, the first character that NFC may change, begins with this byte.
constexpr unsigned char kFirstCombining = 0xCC;

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

bool is_unmoved(uint32_t character) {
  const auto* const after =
      std::ranges::upper_bound(kUnmovedMarks, character, {}, &CharacterRange::first);
  return after != kUnmovedMarks.begin() && character <= std::prev(after)->last;
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
    if (is_unmoved(take_code_point(next))) {
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
      Form{"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE, kFirstCombining},
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
    const bool is_normal = std::ranges::all_of(
        text, [&](char c) { return static_cast<unsigned char>(c) < form->first_lead; });
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
