#pragma once

// The only file with assembly: instructions that CUDA C++ does not provide.
namespace braid::ptx {

/// 2^x with a relative error of 2^-22; results below 2^-126 are 0. One instruction, where exp2f
/// takes five to keep subnormal results.
__device__ inline float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace braid::ptx
