#pragma once

#include <cstdint>

// Instructions that CUDA C++ does not provide; those of Hopper alone are in ptx_sm90.cuh. No other
// file has assembly.
namespace braid::ptx {

/// 2^x with a relative error of 2^-22; results below 2^-126 are 0. One instruction, where exp2f
/// takes five to keep subnormal results.
__device__ inline float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// 1 / x with an error of one unit in the last place; 0 for results below 2^-126. One instruction,
/// where a division takes about ten and a branch.
__device__ inline float reciprocal_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// An address in shared memory, as the instructions below take it.
__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Four bytes of shared memory.
__device__ inline uint32_t load_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

/// Starts a copy of 16 bytes from global to shared memory, both multiples of 16; with `valid` false
/// nothing is read and zeros are written.
__device__ inline void copy_16_async(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}

/// Ends the group of copies that this thread started since the last group.
__device__ inline void end_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Waits until `threads` threads, of whole warps, have come to barrier 1 to 15 or arrived at it.
__device__ inline void sync_some(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
/// Arrives, without waiting for the others.
__device__ inline void arrive_some(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Four matrices [8,8] of 16-bit elements from shared memory, one per register; what other threads
/// wrote there is visible after a barrier, as for a plain load. Lane l gives the
/// address of row l % 8 of matrix l / 8 and gets elements (l / 4, 2 (l % 4)) and the next.
__device__ inline void load_matrices(uint32_t (&matrices)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(shared_address(row)));
}

/// The same, each matrix transposed.
__device__ inline void load_transposed_matrices(uint32_t (&matrices)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(shared_address(row)));
}

/// c [16,8] f32 += a [16,16] b [16,8] of bf16, in the layouts of mma.m16n8k16.
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace braid::ptx
