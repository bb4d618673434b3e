#include "backends/kernel_name.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

TEST(KernelName, IsDemangledWithoutReturnTypeAndParameters) {
  EXPECT_EQ(kernel_name("_Z9my_kernelPKfi"), "my_kernel");
  EXPECT_EQ(kernel_name("_ZN5braid12_GLOBAL__N_14rowsIfLi4EEEvPKT_i"), "braid::rows<float, 4>");
}

TEST(KernelName, KeepsParenthesesInsideTemplateArguments) {
  // void f<(E)1>(int)
  EXPECT_EQ(kernel_name("_Z1fIL1E1EEvi"), "f<(E)1>");
}

TEST(KernelName, KeepsPlainSymbols) {
  EXPECT_EQ(kernel_name("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT"),
            "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT");
  EXPECT_EQ(kernel_name(""), "");
  EXPECT_EQ(kernel_name("_Z"), "_Z");
}

TEST(KernelName, ShortensWhatIsLongerThanALine) {
  const std::string name = kernel_name(std::string(5000, 'x'));
  EXPECT_EQ(name, std::string(117, 'x') + "...");
}

}  // namespace
}  // namespace braid
