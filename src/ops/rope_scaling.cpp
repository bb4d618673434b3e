#include "ops/rope_scaling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/errors.h"
#include "ir/op_spec.h"
#include "ops/attributes.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

constexpr double kTurn = 2.0 * std::numbers::pi;

/// The part of the unscaled frequency, 0 to 1; the rest is of the one divided by the factor.
double llama3_part(const RopeScaling& scaling, double frequency) {
  const double turns =
      static_cast<double>(scaling.original_max_position_embeddings) * frequency / kTurn;
  return std::clamp(
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0,
      1.0);
}

/// Pairs up to `low` keep their frequency, those from `high` on are scaled.
struct YarnBounds {
  double low = 0;
  double high = 0;

  YarnBounds(const RopeScaling& scaling, int64_t rotated, double theta) {
    const auto size = static_cast<double>(rotated);
    const auto positions = static_cast<double>(scaling.original_max_position_embeddings);
    const auto pair_with = [&](double turns) {
      return size * std::log(positions / (turns * kTurn)) / (2.0 * std::log(theta));
    };
    low = pair_with(scaling.beta_fast);
    high = pair_with(scaling.beta_slow);
    if (scaling.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, size - 1);
    if (low == high) {
      high += 0.001;  // a step, as in transformers
    }
  }

  double part_of(int64_t pair) const {
    return 1.0 - std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  }
};

double mixed(double frequency, double factor, double part) {
  return frequency / factor * (1.0 - part) + frequency * part;
}

/// The amplitude's logarithm of L is its divisor.
std::optional<RopeFault> longrope_fault(const RopeScaling& scaling) {
  if (scaling.original_max_position_embeddings < 2) {
    return RopeFault{"original_max_position_embeddings",
                     static_cast<double>(scaling.original_max_position_embeddings),
                     "must be at least 2 with longrope"};
  }
  if (!(scaling.attention_factor >= 0)) {
    return RopeFault{"attention_factor", scaling.attention_factor, "must be at least 0"};
  }
  return std::nullopt;
}

/// m(s) of the header.
double yarn_mscale(double factor, double s) {
  return 1.0 + 0.1 * s * std::log(factor);
}

}  // namespace

std::string_view rope_type_name(RopeType type) {
  const auto* const found =
      std::ranges::find(kRopeTypes, type, [](const auto& t) { return t.second; });
  check(found != kRopeTypes.end(), "no such type of rotary frequencies");
  return found->first;
}

RopeType find_rope_type(std::string_view name) {
  const auto* const found =
      std::ranges::find(kRopeTypes, name, [](const auto& t) { return t.first; });
  check(found != kRopeTypes.end(), "rope_type \"{}\" is unknown", name);
  return found->second;
}

std::optional<RopeFault> rope_fault(const RopeScaling& scaling) {
  if (scaling.type == RopeType::kDefault) {
    return std::nullopt;
  }
  if (!(scaling.factor >= 1)) {
    return RopeFault{"factor", scaling.factor, "must be at least 1"};
  }
  if (scaling.type == RopeType::kLinear) {
    return std::nullopt;
  }
  if (scaling.original_max_position_embeddings < 1) {
    return RopeFault{"original_max_position_embeddings",
                     static_cast<double>(scaling.original_max_position_embeddings),
                     "must be the positions of the model before its context was extended"};
  }
  if (scaling.type == RopeType::kLongrope) {
    return longrope_fault(scaling);
  }
  if (scaling.type == RopeType::kLlama3) {
    if (!(scaling.low_freq_factor > 0 && scaling.low_freq_factor < scaling.high_freq_factor)) {
      return RopeFault{"low_freq_factor", scaling.low_freq_factor,
                       fmt::format("must be positive and below rope_high_freq_factor = {}",
                                   scaling.high_freq_factor)};
    }
    return std::nullopt;
  }
  if (!(scaling.beta_slow > 0 && scaling.beta_slow < scaling.beta_fast)) {
    return RopeFault{
        "beta_slow", scaling.beta_slow,
        fmt::format("must be positive and below rope_beta_fast = {}", scaling.beta_fast)};
  }
  for (const auto& [name, value] : {std::pair<std::string_view, double>{"mscale", scaling.mscale},
                                    {"mscale_all_dim", scaling.mscale_all_dim},
                                    {"attention_factor", scaling.attention_factor}}) {
    if (!(value >= 0)) {
      return RopeFault{name, value, "must be at least 0"};
    }
  }
  return std::nullopt;
}

void require_rope(const OperandChecker& operands, double theta, const RopeScaling& scaling) {
  operands.require(theta > 0, "theta must be positive");
  operands.require(scaling.type != RopeType::kYarn || theta > 1, "theta must be above 1 with yarn");
  const std::optional<RopeFault> fault = rope_fault(scaling);
  if (fault) {
    operands.require(false,
                     fmt::format("{} = {} {}", fault->parameter, fault->value, fault->limit));
  }
}

RopeScaling RopeScaling::for_tokens(int64_t tokens) const {
  RopeScaling scaling = *this;
  if (first_length_end() > 0) {
    scaling.short_factor = tokens > original_max_position_embeddings ? long_factor : short_factor;
    scaling.long_factor.clear();
  }
  return scaling;
}

std::vector<double> rope_factors(std::string_view list) {
  std::vector<double> factors;
  for (bool is_last = false; !is_last;) {
    const size_t end = std::min(list.find(','), list.size());
    is_last = end == list.size();
    std::string_view item = list.substr(0, end);
    item.remove_prefix(std::min(item.find_first_not_of(' '), item.size()));
    item = item.substr(0, item.find_last_not_of(' ') + 1);
    double factor = 0;
    const auto [rest, error] = std::from_chars(item.data(), item.data() + item.size(), factor);
    if (error != std::errc() || rest != item.data() + item.size() || !(factor > 0) ||
        !std::isfinite(factor)) {
      return {};
    }
    factors.push_back(factor);
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return factors;
}

std::string rope_factor_list(const std::vector<double>& factors) {
  return fmt::format("{}", fmt::join(factors, ", "));
}

OpSpec without_rope_scaling(OpSpec spec) {
  if (spec.find_attribute("rope_type") == nullptr) {
    return spec;
  }
  RopeScaling scaling;
  AttributeReader reader(spec);
  scaling.fields(reader);
  for (const Attribute& attribute : to_attributes(scaling)) {
    std::erase_if(spec.attributes, [&](const Attribute& a) { return a.name == attribute.name; });
  }
  return spec;
}

std::vector<double> rope_frequencies(int64_t rotated, double theta, const RopeScaling& scaling) {
  std::optional<YarnBounds> bounds;
  if (scaling.type == RopeType::kYarn) {
    bounds.emplace(scaling, rotated, theta);
  }
  std::vector<double> factors;
  if (scaling.type == RopeType::kLongrope) {
    factors = rope_factors(scaling.short_factor);
    check(std::ssize(factors) == rotated / 2 && scaling.long_factor.empty(),
          "longrope: {} factors for {} pairs", factors.size(), rotated / 2);
  }
  std::vector<double> frequencies;
  for (int64_t i = 0; i < rotated / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(rotated);
    const double frequency = std::pow(theta, exponent);
    switch (scaling.type) {
      case RopeType::kDefault:
        frequencies.push_back(frequency);
        break;
      case RopeType::kLinear:
        frequencies.push_back(frequency / scaling.factor);
        break;
      case RopeType::kLlama3:
        frequencies.push_back(mixed(frequency, scaling.factor, llama3_part(scaling, frequency)));
        break;
      case RopeType::kYarn:
        frequencies.push_back(mixed(frequency, scaling.factor, bounds->part_of(i)));
        break;
      case RopeType::kLongrope:
        frequencies.push_back(frequency / factors[static_cast<size_t>(i)]);
        break;
    }
  }
  return frequencies;
}

double rope_amplitude(const RopeScaling& scaling) {
  if (scaling.type != RopeType::kYarn && scaling.type != RopeType::kLongrope) {
    return 1.0;
  }
  if (scaling.attention_factor != 0) {
    return scaling.attention_factor;
  }
  if (scaling.type == RopeType::kLongrope) {
    const auto original = static_cast<double>(scaling.original_max_position_embeddings);
    return std::sqrt(1.0 + std::log(scaling.factor) / std::log(original));
  }
  return scaling.mscale != 0 && scaling.mscale_all_dim != 0
             ? yarn_mscale(scaling.factor, scaling.mscale) /
                   yarn_mscale(scaling.factor, scaling.mscale_all_dim)
             : yarn_mscale(scaling.factor, 1.0);
}

double rope_score_scale(const RopeScaling& scaling) {
  if (scaling.type != RopeType::kYarn) {
    return 1.0;
  }
  const double m = yarn_mscale(scaling.factor, scaling.mscale_all_dim);
  return m * m;
}

}  // namespace braid
