#pragma once

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/kernels/ptx.cuh"

// Instructions of Hopper: barriers in shared memory that count bytes, copies of tiles by the tensor
// memory accelerator, matrix products of warpgroups. Shared memory is named by its 32-bit address.
// Names and rules: PTX ISA 8.5, "mbarrier", "cp.async.bulk.tensor", "wgmma".
namespace braid::ptx {

/// Whether this is compiled for Hopper: elsewhere kernels with these instructions have no body, and
/// what only bodies call is not used.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool kIsHopper = true;
#else
inline constexpr bool kIsHopper = false;
#pragma nv_diag_suppress 177
#endif

// ---- shared memory

__device__ inline float load_shared(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline float2 load_shared_pair(uint32_t address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(address)
               : "memory");
  return value;
}
__device__ inline void store_shared_pair(uint32_t address, float2 value) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(value.x), "f"(value.y)
               : "memory");
}

// ---- barriers

/// For all threads: a phase ends when `arrivals` have arrived and the expected bytes have come.
__device__ inline void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Barriers that were initialised are visible to the cluster and to copies after its next sync.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives, and expects `bytes` of copies in this phase.
__device__ inline void arrive_and_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// Arrives at the same barrier of a block of the cluster. Its scope is the block, so nothing that
/// this thread wrote is published: with that of the cluster, each arrival is a fence of the GPU.
__device__ inline void arrive_at_block(uint32_t barrier, uint32_t block) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier),
      "r"(block)
      : "memory");
}
/// Waits for the end of the phase with that parity: 0 for the first phase, 1 for the second, ...
__device__ inline void wait_for_phase(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@!ended bra again;\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- clusters

__device__ inline uint32_t block_of_cluster() {
  uint32_t block;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(block));
  return block;
}
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// ---- copies of tiles; x: the element of a row, whose address must be a multiple of 16 bytes

/// To shared memory; the barrier counts the bytes. What lies outside of the matrix becomes zero.
__device__ inline void load_tile(uint32_t to, const CUtensorMap* map, uint32_t barrier, int64_t x,
                                 int64_t y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(static_cast<int>(x)), "r"(static_cast<int>(y))
      : "memory");
}
/// To the same place of the first two blocks of the cluster, where the same barrier counts.
__device__ inline void load_tile_of_two(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                        int64_t x, int64_t y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(static_cast<int>(x)), "r"(static_cast<int>(y)),
      "h"(static_cast<uint16_t>(3))
      : "memory");
}
/// From shared memory; what lies outside of the matrix is not written.
__device__ inline void store_tile(const CUtensorMap* map, uint32_t from, int64_t x, int64_t y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(from), "r"(static_cast<int>(x)), "r"(static_cast<int>(y))
      : "memory");
}
/// Until the tiles that this thread stored have been read: their shared memory is free then.
__device__ inline void wait_for_stored_tiles() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// What this thread wrote to shared memory is visible to copies that another one starts after a
/// barrier.
__device__ inline void fence_for_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- registers of a warpgroup, which all of its threads must ask for

template <int kRegisters>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- products of a warpgroup

/// A matrix in shared memory whose rows are 128 bytes, swizzled in units of 128 bytes (see
/// CU_TENSOR_MAP_SWIZZLE_128B), at a multiple of 1,024 bytes. Adding n moves it by 16 n bytes along
/// its rows.
__device__ inline uint64_t describe_rows_of_128_bytes(uint32_t address) {
  constexpr uint64_t kNoStride = uint64_t{1} << 16;
  constexpr uint64_t kEightRows = uint64_t{1024 / 16} << 32;
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return (address & 0x3FFFFu) >> 4 | kNoStride | kEightRows | kSwizzle128;
}

/// Products may use the registers that were written before.
__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void end_product_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending groups are under way.
template <int kPending>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Before a product writes to c, and between the wait for it and the first use of c: the compiler
/// does not know that a product goes on.
template <int kElems>
__device__ void keep_order(float (&c)[kElems]) {
#pragma unroll
  for (float& element : c) {
    asm volatile("" : "+f"(element)::"memory");
  }
}
template <int kTiles>
__device__ void keep_order(float (&c)[kTiles][4]) {
#pragma unroll
  for (auto& tile : c) {
    keep_order(tile);
  }
}

/// The same for a matrix whose rows are the depth of a product: 64 columns per row of 128 bytes,
/// the next 64 columns `panel_bytes` further on. Adding 128 n moves it by 16 n rows.
__device__ inline uint64_t describe_depths_of_128_bytes(uint32_t address, int panel_bytes) {
  constexpr uint64_t kEightRows = uint64_t{1024 / 16} << 32;
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return (address & 0x3FFFFu) >> 4 | static_cast<uint64_t>(panel_bytes / 16) << 16 | kEightRows |
         kSwizzle128;
}

/// How the right factor of a product lies in shared memory: rows are its columns, or its depth.
enum class Right { kRowsAreColumns = 0, kRowsAreDepths = 1 };

/// c [64, 8 tiles] f32 = a b, or += with `adds`; a [64,16] in shared memory, whose rows are rows,
/// or in registers, b [16, columns] in shared memory, both bf16. Thread t of the warpgroup has
/// c[j][2 i + e] = row 16 (t / 32) + t % 32 / 4 + 8 i, column 8 j + 2 (t % 4) + e, and of a what
/// mma.m16n8k16 takes for the 16 rows of its warp.
template <Right kRight>
__device__ void multiply_bf16(float (&c)[8][4], uint64_t a, uint64_t b, bool adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, %35;\n}\n"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
        "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
        "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]),
        "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
        "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
        "+f"(c[7][2]), "+f"(c[7][3])
      : "l"(a), "l"(b), "r"(static_cast<int>(adds)), "n"(static_cast<int>(kRight)));
}
template <Right kRight>
__device__ void multiply_bf16(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b, bool adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
        "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
        "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]),
        "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
        "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
        "+f"(c[7][2]), "+f"(c[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)),
        "n"(static_cast<int>(kRight)));
}
template <Right kRight>
__device__ void multiply_bf16(float (&c)[16][4], const uint32_t (&a)[4], uint64_t b, bool adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
        "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
        "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]),
        "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
        "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
        "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]),
        "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]),
        "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]),
        "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]),
        "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]), "+f"(c[14][0]),
        "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]), "+f"(c[15][1]),
        "+f"(c[15][2]), "+f"(c[15][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)),
        "n"(static_cast<int>(kRight)));
}

/// c [64,128] f32 = a b^T, or += with `adds`; a [64,32] and b [128,32] of f8e4m3 in shared memory.
/// Thread t of the warpgroup has c[4 j + 2 i + e] = row 16 (t / 32) + t % 32 / 4 + 8 i, column 8 j
/// + 2 (t % 4) + e.
__device__ inline void multiply_e4m3(float (&c)[64], uint64_t a, uint64_t b, bool adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, "
      "p, 1, 1;\n}\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
        "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
        "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]),
        "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
        "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]),
        "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
        "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]),
        "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]),
        "+f"(c[63])
      : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
}

}  // namespace braid::ptx
