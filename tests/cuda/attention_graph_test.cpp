#include "backends/cuda/kernels/attention_graph.h"

#include <gmock/gmock.h>

#include "base/errors.h"

namespace braid {
namespace {

using testing::HasSubstr;

TEST(CheckCudnnBackward, RefusesVersionsThatWriteOutsideTheirBuffers) {
  EXPECT_NO_THROW(check_cudnn_backward(91501, 1000));
  EXPECT_NO_THROW(check_cudnn_backward(91400, 1024));
  try {
    check_cudnn_backward(91500, 1000);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cuDNN 9.15.0"));
    EXPECT_THAT(error.what(), HasSubstr("1000 tokens"));
    EXPECT_THAT(error.what(), HasSubstr("cuDNN 9.15.1 or later"));
    EXPECT_THAT(error.what(), HasSubstr("such as 1024"));
  }
}

}  // namespace
}  // namespace braid
