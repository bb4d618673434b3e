#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// The "normalizer" of a tokenizer.json: Unicode's normal forms, by utf8proc. Immutable,
/// thread-safe.
class TextNormalizer {
 public:
  /// `json`: null, {"type": "NFC"} (or NFD, NFKC, NFKD), or a Sequence of them. Throws DataError,
  /// beginning with `what`, for any other.
  TextNormalizer(const nlohmann::json& json, const std::string& what);

  /// Returns `text`, which must be well-formed UTF-8, if it is normal already, else a view of
  /// `buffer`, which gets the normal form.
  std::string_view normalize(std::string_view text, std::string& buffer) const;

  /// "NFC", "none".
  std::string describe() const;

 private:
  struct Form;
  static const Form* find_form(std::string_view name);
  void add(const nlohmann::json& json, const std::string& what);

  std::vector<const Form*> forms_;
};

/// "utf8proc 2.8.0, Unicode 15.0.0".
std::string describe_normalizer_library();

}  // namespace braid
