#include "config/sm_budget.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <optional>

#include "base/errors.h"
#include "base/text.h"
#include "config/value.h"

namespace braid {
namespace {

/// Kinds of groups whose communication NCCL may do.
constexpr std::array kKinds = {GroupKind::kData,    GroupKind::kTensor, GroupKind::kPipeline,
                               GroupKind::kContext, GroupKind::kExpert, GroupKind::kWorld};

std::vector<std::string_view> kind_names() {
  std::vector<std::string_view> names;
  std::ranges::transform(kKinds, std::back_inserter(names), group_kind_name);
  return names;
}

GroupKind parse_kind(std::string_view name, const std::string& entry) {
  const auto* const found = std::ranges::find(kKinds, name, group_kind_name);
  if (found == kKinds.end()) {
    const std::vector<std::string_view> names = kind_names();
    throw_config_error("overlap.comm_sms: {} names no kind of ranks; there are {}{}",
                       quote(entry, 60), join(names, ", "), did_you_mean(name, names));
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

SmBudget sm_budget(const OverlapConfig& overlap) {
  SmBudget budget{.comm_sms = {}, .product_margin = static_cast<int>(overlap.product_sm_margin)};
  for (const std::string& entry : overlap.comm_sms) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) {
      throw_config_error(
          "overlap.comm_sms: {} does not have the form KIND=NUMBER; write for example \"tensor=8\"",
          quote(entry, 60));
    }
    const std::string_view text = entry;
    const GroupKind kind = parse_kind(text.substr(0, equals), entry);
    if (!budget.comm_sms.emplace(kind, parse_number(text.substr(equals + 1), entry)).second) {
      throw_config_error("overlap.comm_sms: {}: there is another number for {}; keep one",
                         quote(entry, 60), group_kind_name(kind));
    }
  }
  return budget;
}

}  // namespace braid
