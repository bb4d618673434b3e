#include "sim/device_file.h"

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "sim/analytic_model.h"
#include "sim/cluster.h"
#include "sim/sim_specs.h"
#include "support/source_path.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(std::string_view text) {
  return message_of<ConfigError>([&] { parse_device(text, "my.toml"); });
}

DeviceSpec like_h100(std::string_view rest) {
  return parse_device("like = \"h100\"\n" + std::string(rest), "my.toml");
}

// Predictions of the devices that were compiled in before they were files do not change.
TEST(BuiltInDevices, HaveTheirNumbers) {
  const DeviceSpec& h200 = *find_device("h200");
  EXPECT_EQ(h200.description, "NVIDIA H200 SXM");
  EXPECT_EQ(h200.memory_bytes, int64_t{139} << 30);
  EXPECT_EQ(h200.memory_bytes_per_s, 4.8e12);
  EXPECT_EQ(h200.bf16_flops_per_s, 989e12);
  EXPECT_EQ(h200.gemm_fraction, 0.715);
  EXPECT_EQ(h200.attention_backward.head_128.half_tokens, 650);
  EXPECT_TRUE(h200.hopper_products);
  const DeviceSpec& b200 = *find_device("b200");
  EXPECT_EQ(b200.memory_bytes_per_s, 7.7e12);
  EXPECT_EQ(b200.gemm_burst_fraction, 0.745);
  EXPECT_EQ(b200.fp8_parts.runs_of_32, 1);
  EXPECT_FALSE(b200.hopper_products);
  EXPECT_EQ(b200.node.inside.bytes_per_s, 900e9);
  EXPECT_EQ(b200.node.inside.ring_step_ns, 3'400);
  EXPECT_EQ(b200.node.inside.ring_step_middle_ns, 1'900);
  EXPECT_EQ(b200.node.multicast, 0.532);
  EXPECT_EQ(find_device("h100-pcie")->node.multicast, 0);
  const DeviceSpec& a100 = *find_device("a100");
  EXPECT_EQ(a100.memory_bytes_per_s, 2.039e12);
  EXPECT_EQ(a100.f32_flops_per_s, 19.5e12);
  EXPECT_EQ(a100.node.network.bytes_per_s, 25e9);
  EXPECT_EQ(a100.node.network.tree_step_small_ns, 5'000);
  const DeviceSpec& cpu = *find_device("cpu");
  EXPECT_TRUE(cpu.is_host);
  EXPECT_EQ(cpu.gemm_burst_fraction, 1);
  EXPECT_EQ(cpu.node.inside.bytes_per_s, 20e9);
}

TEST(BuiltInDevices, AreTheFilesOfTheRepository) {
  ASSERT_GE(built_in_devices().size(), 14u);
  for (const BuiltInFile& file : built_in_devices()) {
    const std::string path = "hardware/" + std::string(file.name) + ".toml";
    EXPECT_EQ(read_text_file(source_path(path), 1 << 20), file.text);
    EXPECT_EQ(parse_device(file.text, path).kind, file.name);
  }
}

TEST(DeviceFile, TakesWhatItLeavesOutFromAnother) {
  const DeviceSpec device = like_h100("[memory]\nusable_gib = 95\n[node]\ndevices = 4\n");
  EXPECT_EQ(device.memory_bytes, int64_t{95} << 30);
  EXPECT_EQ(device.bf16_flops_per_s, 989e12);
  EXPECT_EQ(device.node.devices, 4);
  EXPECT_EQ(device.node.inside.bytes_per_s, 450e9);
}

TEST(DeviceFile, TheExampleIsACluster) {
  const Cluster cluster = parse_cluster(source_path("examples/hardware/lab-h100.toml"));
  EXPECT_EQ(cluster.num_devices, 256);
  EXPECT_EQ(cluster.inter_node.bytes_per_s, 25e9);
  EXPECT_LT(cluster.device.gemm_fraction, find_device("h100")->gemm_fraction);
}

TEST(DeviceFile, LowerPowerLowersTheClockUnlessTheFileSaysWhatProductsReach) {
  EXPECT_NEAR(like_h100("[device]\npower_w = 350\n").gemm_fraction, 0.715 * 0.7071, 1e-4);
  EXPECT_EQ(like_h100("[device]\npower_w = 350\n[reached]\ngemm = 0.6\n").gemm_fraction, 0.6);
  EXPECT_EQ(like_h100("[device]\npower_w = 900\n").gemm_fraction, 0.715);
}

TEST(DeviceFile, RefusesMistakesByLineWithTheNearestValidOne) {
  EXPECT_THAT(error_of("[device"), HasSubstr("my.toml:1: not valid TOML"));
  EXPECT_THAT(error_of("like" + std::string(200'000, '.')), HasSubstr("at most 1000 dots"));
  EXPECT_THAT(error_of("like = \"h10\"\n"),
              AllOf(HasSubstr("my.toml:1: like = \"h10\": no known device"),
                    HasSubstr("did you mean \"h100\"?")));
  EXPECT_THAT(error_of("like = \"h100\"\n[memry]\n"),
              AllOf(HasSubstr("unknown section \"memry\""), HasSubstr("did you mean \"memory\"?")));
  EXPECT_THAT(error_of("like = \"h100\"\n[node]\ndevice = 4\n"),
              AllOf(HasSubstr("my.toml:3: unknown key node.device"),
                    HasSubstr("did you mean \"devices\"?")));
  EXPECT_THAT(error_of("like = \"h100\"\n[peak]\nbf16_tflops = \"fast\"\n"),
              HasSubstr("my.toml:3: peak.bf16_tflops = 'fast': expected a number from 1e-06 to"));
  EXPECT_THAT(error_of("like = \"h100\"\n[reached]\ngemm = 1.2\n"),
              HasSubstr("reached.gemm = 1.2 is outside 0.01 to 1; the nearest valid value is 1"));
  EXPECT_THAT(error_of("like = \"h100\"\n[node]\ndevices = 7.6\n"),
              HasSubstr("node.devices = 7.6: expected a whole number; the nearest is 8"));
  EXPECT_THAT(error_of("like = \"h100\"\n[node]\nkind = \"nvlnk\"\n"),
              HasSubstr("use one of nvlink, pcie, network, memory; did you mean \"nvlink\"?"));
  EXPECT_THAT(error_of("like = \"h100\"\n[device]\nmxfp8 = 1\n"),
              HasSubstr("device.mxfp8 = 1: expected true or false"));
  EXPECT_THAT(error_of("like = \"h100\"\n[device]\nbackend = \"rocm\"\n"),
              HasSubstr("device.backend = \"rocm\": use \"cuda\" or \"cpu\""));
  EXPECT_THAT(error_of("like = \"h100\"\n[device]\ndriver_names = \"H100\"\n"),
              HasSubstr("expected a list of texts"));
  EXPECT_THAT(error_of("like = \"h100\"\n[reached]\nattention_64 = [0.5]\n"),
              HasSubstr("expected [part of the peak, tokens"));
  EXPECT_THAT(error_of("[device]\nname = \"mine\"\n"),
              HasSubstr("my.toml: device.description is missing; give it, or begin with like"));
  EXPECT_THAT(error_of("like = \"h100\"\n[network]\nlevels = [[4, 1], [6, 2]]\n"),
              HasSubstr("a unit of 6 nodes does not consist of two or more units of 4; the nearest "
                        "valid size is 8"));
  EXPECT_THAT(error_of("like = \"h100\"\n[network]\nlevels = [[4, 3], [8, 2]]\n"),
              HasSubstr("the nearest valid value is 3"));
  EXPECT_THAT(error_of("like = \"h100\"\n[network]\nlevels = [[2.5, 3]]\n"),
              HasSubstr("a whole number of nodes"));
}

TEST(DeviceFile, EveryKeyIsDocumented) {
  const std::string page = read_text_file(source_path("docs/hardware.md"), 1 << 20) +
                           read_text_file(source_path("docs/stacks.md"), 1 << 20);
  for (const std::string& key : device_file_keys()) {
    EXPECT_THAT(page, HasSubstr("| `" + key + "` |"));
  }
}

constexpr AttentionSizes kLongAttention = {
    .sequences = 1, .sequence = 4096, .heads = 32, .kv_heads = 8, .head_size = 128};

DeviceSpec h100_with(const std::string& stack) {
  return with_stack(*find_device("h100"), stack);
}

TEST(Stack, BraidChangesNoCost) {
  const DeviceSpec& h100 = *find_device("h100");
  for (const OpSpec& spec : {linear_spec(4096, 4096, 4096), attention_spec(kLongAttention)}) {
    EXPECT_EQ(analytic_task_ns(h100_with("braid"), spec), analytic_task_ns(h100, spec)) << spec.op;
  }
}

TEST(Stack, ChangesWhatItsKeysSay) {
  DeviceSpec device = *find_device("h100");
  const OpSpec large = linear_spec(8192, 8192, 8192);
  const double launch = static_cast<double>(device.launch_ns);
  const double large_ns = analytic_task_ns(device, large) - launch;
  const OpSpec scores = attention_spec(kLongAttention);
  const double fused_ns = analytic_task_ns(device, scores);
  device.stack.gemm = 0.5;
  EXPECT_NEAR(analytic_task_ns(device, large) - launch, 2 * large_ns, 1);
  device.stack.attention = 0.5;
  EXPECT_NEAR(analytic_task_ns(device, scores) - launch, 2 * (fused_ns - launch), 1);
  // A pass over 32 matrices of 4096 x 4096 scores in bf16 takes 0.37 ms.
  device.stack.score_passes = 1;
  const double one_pass_ns = analytic_task_ns(device, scores);
  device.stack.score_passes = 11;
  EXPECT_NEAR(analytic_task_ns(device, scores) - one_pass_ns,
              10 * 2 * 32 * 4096.0 * 4096 / (3350 * 0.875), 1);
  device.stack.op_ns = 100'000'000;
  EXPECT_EQ(analytic_task_ns(device, large), 100'000'000);
  device.stack.op_gap_ns = 1'000;
  EXPECT_EQ(analytic_task_ns(device, large), 100'001'000);
}

TEST(Stack, RefusesUnknownNamesAndOtherSections) {
  EXPECT_THAT(message_of<ConfigError>([] { h100_with("megatron"); }),
              AllOf(HasSubstr("--stack \"megatron\": unknown; use one of braid, eager"),
                    HasSubstr("did you mean")));
  const TempFolder folder;
  write_test_file(folder / "mine.toml", "[stack]\nname = \"mine\"\ngemm = 0.9\n");
  EXPECT_EQ(h100_with(folder / "mine.toml").stack.gemm, 0.9);
  EXPECT_EQ(h100_with(folder / "mine.toml").stack.attention, 1);
  write_test_file(folder / "mine.toml", "[stack]\ngemm = 0.9\n[peak]\nsms = 3\n");
  EXPECT_THAT(message_of<ConfigError>([&] { h100_with(folder / "mine.toml"); }),
              HasSubstr("a stack has the section [stack] alone"));
  write_test_file(folder / "mine.toml", "[stack]\noverlap = \"on\"\n");
  EXPECT_THAT(message_of<ConfigError>([&] { h100_with(folder / "mine.toml"); }),
              HasSubstr("mine.toml:2: stack.overlap = \"on\": use \"auto\" or \"off\""));
}

class DeviceFileCluster : public ::testing::Test {
 protected:
  DeviceFileCluster() {
    write_test_file(path_, R"(like = "h100"
[network]
nodes = 16
levels = [[2, 2], [8, 4]]
)");
  }
  TempFolder folder_;
  std::string path_ = folder_ / "my.toml";
};

TEST_F(DeviceFileCluster, IsNamedByItsPath) {
  EXPECT_EQ(parse_cluster(path_).num_devices, 128);
  const Cluster cluster = parse_cluster(path_ + "x64:4");
  EXPECT_EQ(cluster.name, path_ + "x64:4");
  EXPECT_EQ(cluster.num_nodes(), 16);
  EXPECT_EQ(parse_cluster(cluster.name).name, cluster.name);
  EXPECT_EQ(cluster_for_ranks(cluster, 70).name, path_ + "x72:4");
  EXPECT_THAT(message_of<ConfigError>([&] { parse_cluster(path_ + "64"); }),
              HasSubstr("behind the file stands \"64\""));
  EXPECT_THAT(message_of<DataError>([&] { parse_cluster(folder_ / "none.tomlx8"); }),
              HasSubstr("none.toml"));
}

TEST_F(DeviceFileCluster, TrafficThatLeavesAUnitIsSlower) {
  const Cluster cluster = parse_cluster(path_);
  const auto group = [&](int last) { return place_group(cluster, std::array{0, last}); };
  EXPECT_EQ(group(7).oversubscription, 1);
  EXPECT_EQ(group(15).oversubscription, 1);
  EXPECT_EQ(group(16).oversubscription, 2);
  EXPECT_EQ(group(64).oversubscription, 4);
  const auto model = make_analytic_model(cluster);
  const auto ns = [&](int last) {
    return static_cast<double>(model->comm_ns(
        {.kind = CommKind::kSendRecv, .placement = group(last), .bytes = int64_t{1} << 30}));
  };
  EXPECT_NEAR(ns(16) / ns(8), 2, 0.01);
  EXPECT_NEAR(ns(64) / ns(8), 4, 0.01);
}

}  // namespace
}  // namespace braid
