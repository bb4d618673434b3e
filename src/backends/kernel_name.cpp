#include "backends/kernel_name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string_view>

namespace braid {
namespace {

constexpr size_t kMaxCharacters = 120;  // templates of kernel libraries have names of kilobytes

std::string demangled(const std::string& symbol) {
  struct Free {
    void operator()(char* text) const { std::free(text); }  // __cxa_demangle allocates by malloc
  };
  int status = 0;
  const std::unique_ptr<char, Free> text(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status));
  return status == 0 && text != nullptr ? text.get() : symbol;
}

void remove_all(std::string& text, std::string_view part) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) {
    text.erase(at, part.size());
  }
}

/// The position of the parameter list: the first parenthesis outside of template arguments.
size_t parameters_begin(std::string_view name) {
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') {
      ++depth;
    } else if (name[i] == '>') {
      --depth;
    } else if (name[i] == '(' && depth == 0) {
      return i;
    }
  }
  return name.size();
}

}  // namespace

std::string kernel_name(const std::string& symbol) {
  std::string name = demangled(symbol);
  remove_all(name, "(anonymous namespace)::");
  name.resize(parameters_begin(name));
  if (name.starts_with("void ")) {
    name.erase(0, 5);
  }
  if (name.size() > kMaxCharacters) {
    name.resize(kMaxCharacters - 3);
    name += "...";
  }
  return name;
}

}  // namespace braid
