#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace braid {

struct WeightGradPartsArgs {
  const float* parts = nullptr;       ///< [num_parts, rows]
  const int32_t* num_rows = nullptr;  ///< rows from there on are not written
  float* d_weights = nullptr;         ///< [rows]
  int64_t num_parts = 0;
  int64_t rows = 0;
};

/// d_weights of each row is the sum of its parts, the first one first.
void sum_weight_grad_parts(const WeightGradPartsArgs& args, cudaStream_t stream);

}  // namespace braid
