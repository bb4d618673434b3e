#include "runtime/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "config/validate.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

RunConfig config_for(const std::string& device, const std::string& dtype, int64_t ranks = 1) {
  RunConfig config;
  config.model.layers = 2;
  config.model.width = 32;
  config.model.heads = 2;
  config.train.sequence = 32;
  config.train.dtype = dtype;
  config.parallel.ranks = ranks;
  config.runtime.device = device;
  return resolved(config);
}

const FoundGpus kOneGpu{{.usable = {{0, "GPU of the test", int64_t{1} << 30}}, .why_none = ""}};
const FoundGpus kNoGpu{{.usable = {}, .why_none = "there is no GPU"}};

TEST(Device, IsNamedByItsBackend) {
  std::vector<std::string> names{"auto"};
  for (const Backend* const backend : backends()) {
    names.emplace_back(backend->name);
    EXPECT_EQ(named_backend(config_for(names.back(), "float32")), backend);
  }
  EXPECT_EQ(device_names(), names);
  EXPECT_EQ(named_backend(config_for("auto", "float32")), nullptr);
}

TEST(Device, AutoIsAGpuThatCanRunIt) {
  const Device device = choose_device(config_for("auto", "bfloat16"), kOneGpu);
  ASSERT_TRUE(device.gpu.has_value());
  EXPECT_EQ(describe_device(device), "device   cuda: GPU of the test, 1.00 GiB\n");
}

TEST(Device, AutoIsTheCpuWithAReasonElse) {
  const auto reason_of = [](const RunConfig& config, const FoundGpus& gpus) {
    const Device device = choose_device(config, gpus);
    EXPECT_FALSE(device.gpu.has_value());
    return describe_device(device);
  };
  EXPECT_EQ(reason_of(config_for("auto", "bfloat16"), kNoGpu), "device   cpu: there is no GPU\n");
  EXPECT_EQ(reason_of(config_for("auto", "float32"), kOneGpu),
            "device   cpu: train.dtype = \"float32\", and GPUs run \"bfloat16\" only\n");
  EXPECT_EQ(reason_of(config_for("auto", "bfloat16", 2), kOneGpu),
            "device   cpu: parallel.ranks = 2, and there is 1 GPU here\n");
  RunConfig linked = config_for("auto", "bfloat16", 2);
  linked.links.data_latency_us = 10;
  EXPECT_EQ(reason_of(linked, kOneGpu),
            "device   cpu: section [links] emulates links, which only CPU ranks can have\n");
}

TEST(Device, EveryRankHasAGpuOfItsOwn) {
  const DeviceInfo second{3, "GPU of the test", int64_t{1} << 30};
  FoundGpus gpus{{.usable = {kOneGpu.usable[0], second, second}, .why_none = ""}};
  const Device device = choose_device(config_for("cuda", "bfloat16", 2), gpus);
  ASSERT_EQ(device.gpus.size(), 2u);
  EXPECT_EQ(device.gpus[1].device, 3);
  EXPECT_EQ(describe_device(device), "device   cuda: 2 x GPU of the test, 1.00 GiB\n");
  EXPECT_THAT(
      message_of<ConfigError>([&] { choose_device(config_for("cuda", "bfloat16", 4), gpus); }),
      HasSubstr("parallel.ranks = 4, and there are 3 GPUs here"));
  gpus.why_alone = "this build has no NCCL";
  EXPECT_THAT(
      message_of<ConfigError>([&] { choose_device(config_for("cuda", "bfloat16", 2), gpus); }),
      HasSubstr("\"cuda\": this build has no NCCL; change that"));
}

TEST(Device, AProcessTakesTheGpuWithItsNumberOrTheOnlyOne) {
  const DeviceInfo second{3, "GPU of the test", int64_t{1} << 30};
  const FoundGpus gpus{{.usable = {kOneGpu.usable[0], second}, .why_none = ""}};
  const RunConfig config = config_for("cuda", "bfloat16", 8);
  const Device device = choose_device(config, gpus, 1);
  ASSERT_TRUE(device.gpu.has_value());
  EXPECT_EQ(device.gpu->device, 3);
  EXPECT_TRUE(device.gpus.empty());
  EXPECT_EQ(describe_device(device), "device   cuda: 8 x GPU of the test, 1.00 GiB\n");
  EXPECT_EQ(choose_device(config, kOneGpu, 5).gpu->device, kOneGpu.usable[0].device);
  EXPECT_THAT(message_of<ConfigError>([&] { choose_device(config, gpus, 2); }),
              HasSubstr("this is process 2 of its host, counted from 0, but the host has 2 GPUs"));
}

RunConfig shared_config(int64_t ranks, int64_t ranks_per_gpu) {
  RunConfig config = config_for("cuda", "bfloat16", ranks);
  config.runtime.ranks_per_gpu = ranks_per_gpu;
  config.overlap.comm_engine = "copy";
  return config;
}

TEST(Device, RanksShareAGpu) {
  const DeviceInfo second{3, "GPU of the test", int64_t{1} << 30};
  const FoundGpus gpus{
      {.usable = {kOneGpu.usable[0], second}, .why_none = "", .why_alone = "there is no NCCL"}};
  const RunConfig config = shared_config(8, 4);
  std::vector<int> devices;
  for (int process = 0; process < 8; ++process) {
    devices.push_back(choose_device(config, gpus, process).gpu->device);
  }
  EXPECT_EQ(devices, (std::vector{0, 0, 0, 0, 3, 3, 3, 3}));
  EXPECT_EQ(describe_device(choose_device(config, gpus, 5)),
            "device   cuda: 8 ranks, 4 on each GPU of the test, 1.00 GiB\n");
  EXPECT_TRUE(choose_device(config, gpus).gpu.has_value());  // as before processes are started
  EXPECT_EQ(choose_device(shared_config(8, 8), kOneGpu, 7).gpu->device, 0);
  EXPECT_EQ(choose_device(shared_config(3, 8), kOneGpu, 2).ranks_per_gpu, 3);
}

TEST(Device, TooManyRanksOfAGpuAreRefused) {
  const FoundGpus gpus{{.usable = {kOneGpu.usable[0], kOneGpu.usable[0]}, .why_none = ""}};
  EXPECT_THAT(message_of<ConfigError>([&] { choose_device(shared_config(8, 3), gpus, 6); }),
              HasSubstr("this is process 6 of its host, counted from 0, but the host has 2 GPUs "
                        "with runtime.ranks_per_gpu = 3"));
  EXPECT_THAT(message_of<ConfigError>([&] { choose_device(shared_config(8, 3), gpus); }),
              HasSubstr("parallel.ranks = 8 with runtime.ranks_per_gpu = 3, and there are 2 GPUs"));
}

TEST(Device, CopiesNeedNoNccl) {
  const FoundGpus gpus{{.usable = {kOneGpu.usable[0], kOneGpu.usable[0]},
                        .why_none = "",
                        .why_alone = "this build has no NCCL"}};
  RunConfig config = shared_config(2, 1);
  EXPECT_EQ(choose_device(config, gpus).gpus.size(), 2u);
  config.overlap.comm_engine = "auto";
  EXPECT_THAT(message_of<ConfigError>([&] { choose_device(config, gpus); }),
              HasSubstr("this build has no NCCL"));
}

TEST(Device, ContextRanksHaveGpusLikeOthers) {
  RunConfig config = config_for("auto", "bfloat16", 1);
  config.parallel.ranks = 2;
  config.parallel.context = 2;
  const FoundGpus gpus{{.usable = {kOneGpu.usable[0], kOneGpu.usable[0]}, .why_none = ""}};
  EXPECT_EQ(choose_device(resolved(config), gpus).gpus.size(), 2u);
}

TEST(Device, RanksOfExpertsHaveGpusLikeOthers) {
  RunConfig config = config_for("cuda", "bfloat16", 2);
  config.parallel.expert = 2;
  const FoundGpus gpus{{.usable = {kOneGpu.usable[0], kOneGpu.usable[0]}, .why_none = ""}};
  EXPECT_EQ(choose_device(config, gpus).gpus.size(), 2u);
}

TEST(Device, CpuIsTheCpu) {
  EXPECT_EQ(describe_device(choose_device(config_for("cpu", "bfloat16"), kOneGpu)),
            "device   cpu\n");
}

TEST(Device, CudaThatCannotBeIsRefused) {
  EXPECT_EQ(message_of<ConfigError>([] { choose_device(config_for("cuda", "float32"), kOneGpu); }),
            "runtime.device = \"cuda\": train.dtype = \"float32\", and GPUs run \"bfloat16\" only; "
            "change that, or set runtime.device = \"cpu\"");
  EXPECT_THAT(
      message_of<ConfigError>([] { choose_device(config_for("cuda", "bfloat16"), kNoGpu); }),
      HasSubstr("there is no GPU"));
}

}  // namespace
}  // namespace braid
