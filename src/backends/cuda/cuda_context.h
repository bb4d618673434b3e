#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "ops/expert_exchange.h"

typedef struct cublasLtContext* cublasLtHandle_t;
typedef struct cudnnContext* cudnnHandle_t;

namespace braid {

class AlgorithmCache;

/// The device of one rank and the library handles for making kernels. Only one thread at a time may
/// make kernels.
class CudaContext {
 public:
  /// `cache_folder`: keeps measured algorithm choices between runs; empty: they are not kept.
  CudaContext(int device, std::string cache_folder);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  int device() const { return device_; }
  int num_sms() const { return num_sms_; }
  /// Multiprocessors for products whose blocks stay to their end (kernels/sm90_products.h).
  int product_sms() const { return num_sms_ - left_.by_long_blocks(); }
  /// For the other products; 0: for cuBLASLt to choose.
  int plain_product_sms() const { return left_.by_all == 0 ? 0 : num_sms_ - left_.by_all; }
  /// Products that are made later leave these multiprocessors. None at first. `to_exchanges`
  /// changes no bits, nor which kernel is chosen.
  void leave_sms(const LeftSms& left);
  cublasLtHandle_t cublas_lt() const { return cublas_lt_; }
  cudnnHandle_t cudnn() const { return cudnn_; }
  AlgorithmCache& algorithms() { return *algorithms_; }

 private:
  int device_ = 0;
  int num_sms_ = 0;
  LeftSms left_;
  cublasLtHandle_t cublas_lt_ = nullptr;
  cudnnHandle_t cudnn_ = nullptr;
  std::unique_ptr<AlgorithmCache> algorithms_;
};

}  // namespace braid
