#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct ModelSpec;
struct Parameter;

/// Low-rank adapters of matrices: y = x W^T + (alpha / rank) (x A^T) B^T. A [rank, in] starts
/// uniform in +-1/sqrt(in), B [out, rank] at 0; both are trained, and all other weights are frozen.
/// Where a weight holds several matrices (query, key and value; gate and up), each has its own
/// adapter; their A lie one below the other in one parameter, so that x is read once. Source: Hu et
/// al., LoRA, 2021; initial values as in peft.
struct LoraSpec {
  int64_t rank = 0;  ///< 0: there are no adapters, and all weights are trained
  double alpha = 0.0;
  bool magnitudes = false;           ///< DoRA: lengths of rows are trained apart (ops/magnitude.h)
  std::vector<std::string> targets;  ///< names of matrices, with * and ? for any characters

  bool is_on() const { return rank > 0; }
  double scale() const { return alpha / static_cast<double>(rank); }
  /// `matrix` is one of Parameter::matrices.
  bool adapts(std::string_view matrix) const;

  friend bool operator==(const LoraSpec&, const LoraSpec&) = default;
};

/// The parameters A and B of "<site>.weight".
std::string lora_a_name(std::string_view site);
std::string lora_b_name(std::string_view site, std::string_view matrix);

/// The changes [out] of the lengths of all rows of "<site>.weight"; 0 at the start, and always in
/// rows without an adapter.
std::string lora_magnitude_name(std::string_view site);

/// A matrix in a weight, and its adapter: rows first_row, first_row + row_stride, ... of the
/// weight; B has as many rows, and A is rows [a_row, a_row + rank) of a parameter.
struct AdaptedMatrix {
  std::string_view name;
  int64_t first_row = 0;
  int64_t row_stride = 1;
  int64_t num_rows = 0;
  int64_t a_row = 0;
  std::string a;  ///< names of the parameters
  std::string b;
  std::string
      magnitude;  ///< whose element of a row has the number of the row; empty: there is none
};

/// The matrices of a weight that have adapters, in the order of their A.
std::vector<AdaptedMatrix> adapted_matrices(const LoraSpec& lora, const Parameter& weight);

/// Throws ConfigError naming the key if a target is no matrix of the model, or the model has blocks
/// without adapters.
void check_lora(const ModelSpec& spec);

/// `spec` without adapters: the model that they adapt.
ModelSpec base_model(ModelSpec spec);

}  // namespace braid
