// Refactoring must not change what runs. unchanged.txt records, byte for byte, the programs after
// all passes, the memory plans and the simulated steps of the run files below. A change that is
// meant to alter them updates the record in the same commit.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/philox.h"
#include "config/load.h"
#include "config/validate.h"
#include "ir/text.h"
#include "parity/layout_config.h"
#include "plan/run_costs.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"
#include "support/source_path.h"
#include "support/thinned.h"

namespace braid {
namespace {

constexpr const char* kRecord = "tests/plan/unchanged.txt";

struct UnchangedCase {
  std::string source;     ///< a run file, or the model of a parity layout
  std::string overrides;  ///< separated by blanks
  const char* cluster;

  std::string name() const {
    return overrides.empty() ? source : fmt::format("{} {}", source, overrides);
  }
};

void PrintTo(const UnchangedCase& it, std::ostream* out) {
  *out << it.name();
}

/// FNV-1a, which goes on from where it was: texts of all ranks need not lie in memory at once.
class TextHash {
 public:
  void add(std::string_view text) {
    hash_ = (hash_ ^ stable_hash(text.data(), text.size())) * 0x100000001b3ULL;
  }
  void add(int64_t value) { add(fmt::format("{} ", value)); }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325ULL;
};

void add_memory(const RankPlan& rank, TextHash& hash) {
  hash.add(rank.memory.persistent_bytes);
  hash.add(rank.memory.step_bytes);
  hash.add(rank.memory.host_bytes);
  const std::map<std::string, int64_t> offsets(rank.memory.persistent_offset_bytes.begin(),
                                               rank.memory.persistent_offset_bytes.end());
  for (const auto& [name, offset] : offsets) {
    hash.add(name);
    hash.add(offset);
  }
  for (const StepPlan& step : rank.memory.programs) {
    hash.add(step.max_live_bytes);
    for (const int64_t offset : step.offset_bytes) {
      hash.add(offset);
    }
  }
}

RunConfig config_of(const UnchangedCase& it) {
  if (!it.source.ends_with(".toml")) {
    const std::map<std::string, const char*> models = {
        {"llama", kLlamaModel}, {"gpt2", kGpt2Model}, {"qwen", kQwenModel}};
    return config_of(Layout{models.at(it.source), it.overrides});
  }
  const RunConfig config = load_config(source_path(it.source), words(it.overrides));
  validate(config);
  return resolved(config);
}

/// One line: what is recorded of a case.
std::string outcome(const UnchangedCase& it) {
  const RunConfig config = config_of(it);
  // The examples' tokenizers are files that a user makes.
  const int64_t vocabulary =
      config.model.preset.empty() && config.model.vocabulary.value_or(0) == 0 ? 4096 : 0;
  const auto model =
      with_links_of_run(make_analytic_model(parse_cluster(it.cluster)), config.links);
  const SimulatedRun run(resolve_run(config, vocabulary), *model, {},
                         PlannedRanks::kEveryPlaceInFull);
  TextHash programs;
  TextHash memory;
  size_t tasks = 0;
  int64_t peak_bytes = 0;
  for (const RankPlan& rank : run.plan().ranks) {
    for (const Program& program : rank.programs) {
      programs.add(print_program(program));
      tasks += program.tasks.size();
    }
    add_memory(rank, memory);
    peak_bytes = std::max(peak_bytes, rank.memory.peak_bytes());
  }
  TextHash times;
  for (const TaskTimes& time : run.result().times) {
    times.add(time.start_ns);
    times.add(time.end_ns);
  }
  return fmt::format(
      "{} tasks, programs {:016x}; peak {} bytes, memory {:016x}; step {} ns, times {:016x}", tasks,
      programs.value(), peak_bytes, memory.value(), run.step_ns(), times.value());
}

std::vector<UnchangedCase> run_files() {
  std::vector<UnchangedCase> list;
  for (const char* const name :
       {"data_parallel_cpu", "hybrid_cpu", "mtp_cpu", "quickstart", "tiny_cpu"}) {
    list.push_back({fmt::format("examples/{}.toml", name), "", "h200x8"});
  }
  for (const char* const name : {"gpt2-124m",
                                 "llama-1b",
                                 "llama-1b-accumulate",
                                 "llama-1b-accumulate-any-order",
                                 "llama-1b-any-order",
                                 "llama-8b-l16",
                                 "llama-8b-l16-any-order",
                                 "qwen2.5-7b-l14",
                                 "multi/llama-1b-tp",
                                 "multi/llama-1b-zero1",
                                 "multi/llama-70b-l8-tp",
                                 "multi/llama-8b-cp",
                                 "multi/llama-8b-cp-ring",
                                 "multi/llama-8b-pp",
                                 "multi/llama-8b-pp-dp",
                                 "multi/llama-8b-tp",
                                 "multi/llama-8b-zero1-accumulate",
                                 "multi/llama-8b-zero2-accumulate",
                                 "multi/llama-8b-zero3",
                                 "multi/qwen2.5-1.5b-zero1",
                                 "multi/qwen2.5-32b-zero3",
                                 "multi/qwen2.5-7b-zero1"}) {
    list.push_back({fmt::format("bench/gpu/cases/{}.toml", name), "", "h200x8"});
  }
  for (const char* const name : {"llama-8b-tp", "llama-8b-pp-dp", "llama-8b-cp"}) {
    list.push_back({fmt::format("bench/gpu/cases/multi/{}.toml", name),
                    "overlap.cost=h200x8 overlap.may_change_rounding=true", "h200x8"});
    list.push_back(
        {fmt::format("bench/gpu/cases/multi/{}.toml", name), "overlap.mode=off", "h100x8"});
  }
  return list;
}

/// Small models in all schedules, dimensions and levels of sharding.
std::vector<UnchangedCase> layouts() {
  std::vector<UnchangedCase> list;
  for (const char* const layout :
       {"ranks=4",
        "ranks=4 shard=optimizer",
        "ranks=4 shard=gradients",
        "ranks=4 shard=parameters memory.recompute=full model.tied_embeddings=true",
        "ranks=8 shard=parameters shard_replicas=4 bucket=virtual_stage",
        "ranks=4 shard=optimizer shard_replicas=2 bucket=bytes bucket_bytes=9000",
        "ranks=4 shard=parameters grad_reduce_dtype=bfloat16 train.dtype=bfloat16",
        "ranks=4 tensor=4 sequence_parallel=true memory.recompute=norms",
        "ranks=8 tensor=4 sequence_parallel=true shard=parameters",
        "ranks=2 pipeline=2 schedule=gpipe",
        "ranks=4 pipeline=4 schedule=1f1b",
        "ranks=3 pipeline=3 account_for_embedding=true account_for_loss=true",
        "ranks=2 pipeline=2 virtual_stages=2 schedule=interleaved",
        "ranks=4 pipeline=2 schedule=zb-h1 shard=gradients memory.recompute=norms "
        "memory.offload_layers=2 memory.offload_min_bytes=1",
        "ranks=2 pipeline=2 virtual_stages=2 schedule=zb-v",
        "ranks=2 pipeline=2 virtual_stages=2 schedule=dualpipe-v",
        "ranks=8 pipeline=4 pipeline_layout=Ett||t|tL shard=gradients",
        "ranks=16 pipeline=4 tensor=2 sequence_parallel=true shard=gradients",
        "ranks=3 context=3",
        "ranks=6 context=6 context_method=all_gather",
        "ranks=8 context=2 pipeline=2 virtual_stages=2 schedule=zb-v shard=optimizer",
        "ranks=8 context=4 context_method=a2a+ring context_inner=2 pipeline=2 shard=gradients "
        "train.sequence=16",
        "ranks=8 context=2 tensor=2 pipeline=2 context_method=all_gather sequence_parallel=true"}) {
    list.push_back({"llama", layout, "h100x16"});
  }
  for (const char* const layout :
       {"ranks=8 tensor=2 pipeline=2 virtual_stages=2 schedule=interleaved sequence_parallel=true "
        "shard=parameters memory.recompute=full memory.offload_layers=3 "
        "memory.offload_min_bytes=1",
        "ranks=4 context=4 context_method=a2a train.sequence=16",
        "ranks=4 pipeline=4 schedule=zb-h1"}) {
    list.push_back({"gpt2", layout, "h100x16"});
  }
  for (const char* const layout :
       {"ranks=4 tensor=2 sequence_parallel=true shard=optimizer",
        "ranks=8 pipeline=2 tensor=2 virtual_stages=2 schedule=interleaved shard=parameters"}) {
    list.push_back({"qwen", layout, "h100x16"});
  }
  return list;
}

/// What overlap can be asked for, by hand and by cost.
std::vector<UnchangedCase> overlaps() {
  const std::string pipeline =
      "ranks=8 tensor=2 pipeline=2 virtual_stages=2 schedule=interleaved sequence_parallel=true ";
  const std::string woven =
      pipeline +
      "shard=optimizer overlap.mode=manual overlap.pair_forward_backward=forward_backward "
      "overlap.overlap_p2p_comm=true overlap.overlap_p2p_backward_on_comm_stream=true ";
  return {
      {"llama", woven + "overlap.overlap_p2p_wgrad_delayed_layer_number=1", "h100x16"},
      {"llama",
       woven + "overlap.overlap_p2p_wgrad_delayed_layer_number=2 "
               "overlap.overlap_p2p_with_transformer_layer_wgrad=true overlap.fill_cooldown=true",
       "h100x16"},
      {"llama",
       pipeline + "overlap.mode=manual overlap.tp_comm_overlap=true "
                  "overlap.tp_comm_overlap_min_rows=1 overlap.defer_embedding_wgrad_compute=true "
                  "overlap.overlap_grad_reduce=true",
       "h100x16"},
      {"llama",
       "ranks=2 tensor=2 sequence_parallel=true overlap.mode=manual "
       "overlap.tp_comm_overlap=true overlap.pair_forward_backward=forward_halves",
       "h100x16"},
      {"llama",
       "ranks=4 tensor=2 sequence_parallel=true overlap.mode=manual "
       "overlap.tp_comm_overlap=true overlap.pair_forward_backward=halves",
       "h100x16"},
      {"llama", pipeline + "overlap.cost=h100x16 overlap.list_schedule=true", "h100x16"},
      {"llama", pipeline + "overlap.cost=h100x16 overlap.comm_engine=hidden", "h100x16"},
      {"llama",
       "ranks=8 shard=parameters overlap.mode=manual overlap.overlap_param_gather=true "
       "overlap.overlap_grad_reduce=true overlap.param_gather_prefetch_units=2",
       "h100x16"},
      {"llama",
       "ranks=8 shard=gradients overlap.mode=manual overlap.overlap_param_gather=true "
       "overlap.overlap_param_gather_with_optimizer_step=true",
       "h100x16"},
      {"gpt2",
       "ranks=4 context=4 context_method=a2a train.sequence=16 train.microbatch=1 "
       "overlap.may_change_rounding=true",
       "h100x16"},
      {"qwen", "ranks=8 tensor=2 pipeline=2 shard=gradients overlap.comm_engine=copy", "h100x16"},
  };
}

std::vector<UnchangedCase> cases() {
  std::vector<UnchangedCase> list = run_files();
  for (const auto& more : {layouts(), overlaps()}) {
    list.insert(list.end(), more.begin(), more.end());
  }
  return list;
}

std::map<std::string, std::string> read_record() {
  std::map<std::string, std::string> record;
  std::ifstream file(source_path(kRecord));
  std::string name;
  std::string line;
  while (std::getline(file, name) && std::getline(file, line)) {
    record[name] = line.substr(line.find_first_not_of(' '));
  }
  return record;
}

/// Of all cases that ran; written where the test runs, for those who mean their change.
class NewRecord : public testing::Environment {
 public:
  void add(const UnchangedCase& it, const std::string& line) {
    lines_ += fmt::format("{}\n  {}\n", it.name(), line);
  }
  void TearDown() override {
    if (!lines_.empty()) {
      std::ofstream("unchanged.txt") << lines_;
    }
  }

 private:
  std::string lines_;
};

NewRecord& new_record() {
  static auto* const kRecordOfThisRun =
      static_cast<NewRecord*>(testing::AddGlobalTestEnvironment(new NewRecord));
  return *kRecordOfThisRun;
}

class Unchanged : public testing::TestWithParam<UnchangedCase> {};

TEST_P(Unchanged, ProgramMemoryAndStep) {
  static const std::map<std::string, std::string> kRecorded = read_record();
  const std::string line = outcome(GetParam());
  new_record().add(GetParam(), line);
  const auto recorded = kRecorded.find(GetParam().name());
  ASSERT_NE(recorded, kRecorded.end()) << "not in " << kRecord;
  EXPECT_EQ(line, recorded->second)
      << "To see what changed, compare `braid plan --program` of both versions. A change that is "
         "meant: copy unchanged.txt from where this test ran to "
      << kRecord;
}

INSTANTIATE_TEST_SUITE_P(RunFiles, Unchanged, testing::ValuesIn(thinned(cases(), 13)));

}  // namespace
}  // namespace braid
