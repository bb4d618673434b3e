#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace braid {

class OperandChecker;  // ops/operand_checker.h
struct OpSpec;         // ir/op_spec.h

/// How the frequencies of rotary embeddings are scaled, so that a model reads longer sequences than
/// those it was first trained with.
enum class RopeType : uint8_t { kDefault, kLinear, kLlama3, kYarn, kLongrope };

/// Their names in config.json and in run files.
inline constexpr std::array<std::pair<std::string_view, RopeType>, 5> kRopeTypes{
    {{"default", RopeType::kDefault},
     {"linear", RopeType::kLinear},
     {"llama3", RopeType::kLlama3},
     {"yarn", RopeType::kYarn},
     {"longrope", RopeType::kLongrope}}};

std::string_view rope_type_name(RopeType type);
/// Throws InternalError for another name.
RopeType find_rope_type(std::string_view name);

/// Pair i of R elements turns by f_i = theta^(-2i/R) per position. With L =
/// original_max_position_embeddings:
///   linear  f_i / factor
///   llama3  between f_i / factor where f_i makes up to low_freq_factor turns in L positions, and
///           f_i from high_freq_factor turns on; linear in the turns between
///   yarn    the same from beta_slow to beta_fast turns, but linear in i. With `truncate` the two
///           bounds in i are rounded away from each other.
///   longrope  f_i / short_factor[i] where a sequence has up to L tokens, f_i / long_factor[i]
///   where
///           it has more; see `for_tokens`
/// yarn and longrope also multiply cosines and sines by `rope_amplitude`, and with yarn latent
/// attention its scores by `rope_score_scale`. Sources: Chen et al., Extending context window of
/// large language models via positional interpolation, 2023; Llama 3.1's published code; Peng et
/// al., YaRN, 2023, sections 3.2 to 3.4; Ding et al., LongRoPE, 2024. Rounding of bounds and all
/// factors as in Hugging Face's modeling_rope_utils.py, which has these names.
struct RopeScaling {
  RopeType type = RopeType::kDefault;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;
  double mscale = 0.0;            ///< 0: not given
  double mscale_all_dim = 0.0;    ///< 0: not given
  double attention_factor = 0.0;  ///< the amplitude; 0: it follows from the others
  /// A number for each pair, "1, 1.25, 3". `rope_factors` reads them.
  std::string short_factor;
  std::string long_factor;  ///< empty: short_factor holds for all sequences

  /// The scaling of sequences of so many tokens: longrope's with their factors alone. Others have
  /// one for all.
  RopeScaling for_tokens(int64_t tokens) const;
  /// The longest sequences that have other frequencies than longer ones; 0: all have the same.
  int64_t first_length_end() const {
    return type == RopeType::kLongrope && !long_factor.empty() ? original_max_position_embeddings
                                                               : 0;
  }

  /// The parameters that the type has.
  void parameters(auto&& visit) {
    if (type == RopeType::kDefault) {
      return;
    }
    visit("factor", factor);
    if (type == RopeType::kLinear) {
      return;
    }
    visit("original_max_position_embeddings", original_max_position_embeddings);
    if (type == RopeType::kLongrope) {
      visit("attention_factor", attention_factor);
      visit("short_factor", short_factor);
      visit("long_factor", long_factor);
      return;
    }
    if (type == RopeType::kLlama3) {
      visit("low_freq_factor", low_freq_factor);
      visit("high_freq_factor", high_freq_factor);
      return;
    }
    visit("beta_fast", beta_fast);
    visit("beta_slow", beta_slow);
    visit("truncate", truncate);
    visit("mscale", mscale);
    visit("mscale_all_dim", mscale_all_dim);
    visit("attention_factor", attention_factor);
  }
  void fields(auto&& visit) {
    std::string name(rope_type_name(type));
    visit("rope_type", name);
    type = find_rope_type(name);
    parameters(visit);
  }

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

/// A parameter with a value that it cannot have.
struct RopeFault {
  std::string_view parameter;
  double value = 0;
  std::string limit;  ///< "must be at least 1"
};
std::optional<RopeFault> rope_fault(const RopeScaling& scaling);

/// The numbers of a list such as short_factor; empty if it is not one of positive numbers.
std::vector<double> rope_factors(std::string_view list);
/// The list of these numbers, each with all of its bits.
std::string rope_factor_list(const std::vector<double>& factors);

/// For checks of ops.
void require_rope(const OperandChecker& operands, double theta, const RopeScaling& scaling);

/// The spec without the attributes of a scaling, if it has them: it takes equally long.
OpSpec without_rope_scaling(OpSpec spec);

/// Radians per position of each of rotated / 2 pairs. The scaling must have no fault.
std::vector<double> rope_frequencies(int64_t rotated, double theta, const RopeScaling& scaling);

/// yarn: attention_factor, or m(mscale) / m(mscale_all_dim) if both are given, or m(1), where
/// m(s) = 1 + s * log(factor) / 10. longrope: attention_factor, or sqrt(1 + log(factor) / log(L)).
/// Others: 1.
double rope_amplitude(const RopeScaling& scaling);

/// The factor of scores that DeepSeek's models have beside the amplitude: m(mscale_all_dim)^2 with
/// yarn, else 1.
double rope_score_scale(const RopeScaling& scaling);

}  // namespace braid
