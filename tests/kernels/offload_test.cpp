#include "ops/offload.h"

#include "support/kernel_harness.h"

namespace braid {
namespace {

TEST(OffloadAndReload, CopyBits) {
  for (const char* const op : {"offload", "reload"}) {
    for (const DType dtype : {DType::kBF16, DType::kF64, DType::kI32}) {
      for (const int64_t n : {int64_t{1}, int64_t{1009}, int64_t{3 * 16384 + 5}}) {
        KernelCase kernel({op, {}, {read(dtype, {n}), write(dtype, {n})}});
        kernel.run(3);
        EXPECT_EQ(kernel.bytes(1), kernel.bytes(0));
      }
    }
  }
}

}  // namespace
}  // namespace braid
