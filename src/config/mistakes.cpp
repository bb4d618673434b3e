#include "config/mistakes.h"

#include <fmt/format.h>

namespace braid {

ConfigMistakes::ConfigMistakes(std::vector<std::string> mistakes)
    : ConfigError(fmt::format("{}", fmt::join(mistakes, "; "))), mistakes_(std::move(mistakes)) {}

std::vector<std::string> mistakes_of(const ConfigError& error) {
  const auto* const several = dynamic_cast<const ConfigMistakes*>(&error);
  return several != nullptr ? several->mistakes() : std::vector<std::string>{error.what()};
}

void Mistakes::add(const ConfigError& error) {
  for (std::string& mistake : mistakes_of(error)) {
    list_.push_back(std::move(mistake));
  }
}

void Mistakes::throw_if_any() const {
  if (list_.size() == 1) {
    throw ConfigError(list_.front());
  }
  if (!list_.empty()) {
    throw ConfigMistakes(list_);
  }
}

}  // namespace braid
