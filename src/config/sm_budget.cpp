#include "config/sm_budget.h"

#include <algorithm>
#include <charconv>

#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

std::string_view parse_kind(std::string_view name, const std::string& entry) {
  const auto* const found = std::ranges::find(kCommKindNames, name);
  if (found == kCommKindNames.end()) {
    throw_config_error("overlap.comm_sms: {} names no kind of ranks; there are {}{}",
                       quote(entry, 60), join(kCommKindNames, ", "),
                       did_you_mean(name, kCommKindNames));
  }
  return *found;
}

int parse_number(std::string_view text, const std::string& entry) {
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size() || number < 1 ||
      number > kMostCommSms) {
    throw_config_error(
        "overlap.comm_sms: {}: the number of multiprocessors must be 1 to {}; without an entry "
        "NCCL chooses",
        quote(entry, 60), kMostCommSms);
  }
  return static_cast<int>(number);
}

}  // namespace

std::map<std::string_view, int> comm_sms_by_kind(const OverlapConfig& overlap) {
  std::map<std::string_view, int> by_kind;
  for (const std::string& entry : overlap.comm_sms) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) {
      throw_config_error(
          "overlap.comm_sms: {} does not have the form KIND=NUMBER; write for example \"tensor=8\"",
          quote(entry, 60));
    }
    const std::string_view text = entry;
    const std::string_view kind = parse_kind(text.substr(0, equals), entry);
    if (!by_kind.emplace(kind, parse_number(text.substr(equals + 1), entry)).second) {
      throw_config_error("overlap.comm_sms: {}: there is another number for {}; keep one",
                         quote(entry, 60), kind);
    }
  }
  return by_kind;
}

}  // namespace braid
