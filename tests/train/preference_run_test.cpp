#include <gmock/gmock.h>

#include <filesystem>
#include <random>

#include "base/errors.h"
#include "base/expect_error.h"
#include "data/tokenize.h"
#include "support/whole_runs.h"
#include "train/reference.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Pairs of words of vowels and of other letters, behind random prompts. Words have different
/// lengths.
std::string pairs_of_words(int count, uint32_t seed) {
  std::mt19937 random(seed);
  const auto word = [&](const char* letters) {
    std::string text;
    for (size_t size = 2 + random() % 6; text.size() < size;) {
      text += letters[random() % 5];
    }
    return text;
  };
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const std::string prompt = word("abxyz");
    lines += fmt::format(R"({{"prompt": "{}:", "chosen": "{}", "rejected": "{}"}})", prompt,
                         word("aeiou"), word("bcdfg")) +
             "\n";
  }
  return lines;
}

class PreferenceRun : public WholeRuns {
 protected:
  PreferenceRun() {
    write_pairs("pairs", pairs_of_words(60, 1));
    write_pairs("others", pairs_of_words(24, 2));
  }

  void write_pairs(const std::string& name, const std::string& lines) {
    write_test_file(path(name + ".jsonl"), lines);
    tokenize_files(*load_tokenizer("bytes"), {.inputs = {path(name + ".jsonl")},
                                              .output_prefix = path(name),
                                              .chat = ChatTemplate::kPlain,
                                              .pairs = true});
  }

  RunConfig config(const std::string& run) const {
    RunConfig config = WholeRuns::config(run);
    config.preference.loss = "dpo";
    config.data.train = path("pairs");
    config.data.split = "80,20,0";
    config.runtime.rerun_steps = 0;
    return config;
  }

  TrainingSummary run(const RunConfig& config, std::optional<int64_t> stop_after = std::nullopt) {
    TrainerOptions options;
    options.stop_after_step = stop_after;
    return train_in(config, options);
  }

  void expect_same_preferences(const std::string& a, const std::string& b) const {
    const Metrics of_a = metrics(a);
    const Metrics of_b = metrics(b);
    EXPECT_EQ(records_of(of_a), records_of(of_b));
    for (size_t i = 0; i < of_a.steps.size(); ++i) {
      EXPECT_EQ(of_a.steps[i].preference, of_b.steps[i].preference) << "step " << i + 1;
    }
    for (size_t i = 0; i < of_a.evaluations.size(); ++i) {
      EXPECT_EQ(of_a.evaluations[i].preference, of_b.evaluations[i].preference);
    }
  }
};

TEST_F(PreferenceRun, HeldOutPairsAreToldApart) {
  RunConfig c = config("run");
  c.train.steps = 60;
  c.optimizer.learning_rate = 3e-3;
  c.preference.held_out = path("others");
  run(c);
  const Metrics learnt = metrics("run");
  // Before the first step, the model is its own reference.
  EXPECT_NEAR(learnt.steps.front().loss, std::log(2), 1e-6);
  EXPECT_NEAR(learnt.steps.front().preference.value().margin(), 0, 1e-6);
  const PreferenceRecord before = learnt.evaluations.front().preference.value();
  const PreferenceRecord after = learnt.evaluations.back().preference.value();
  EXPECT_NEAR(before.margin(), 0, 1e-6);
  EXPECT_LT(before.chosen_logp, 0);
  EXPECT_GT(after.margin(), 1);
  EXPECT_GT(after.accuracy, 0.95);
  EXPECT_LT(learnt.evaluations.back().loss, 0.4);
  EXPECT_NEAR(after.chosen_reward, 0.1 * (after.chosen_logp - before.chosen_logp), 1e-4);
  EXPECT_THAT(output_, AllOf(HasSubstr("60 pairs: 0% of the prompts cut"), HasSubstr("24 pairs"),
                             HasSubstr("loss: mean per pair of answers"), HasSubstr("  margin ")));
}

TEST_F(PreferenceRun, EveryLossLearns) {
  for (const char* const loss : {"hinge", "ipo"}) {
    RunConfig c = config(loss);
    c.train.steps = 30;
    c.optimizer.learning_rate = 3e-3;
    c.preference.loss = loss;
    run(c);
    EXPECT_GT(metrics(loss).evaluations.back().preference.value().accuracy, 0.9) << loss;
    EXPECT_LT(metrics(loss).evaluations.back().loss, metrics(loss).evaluations.front().loss)
        << loss;
  }
}

TEST_F(PreferenceRun, ResumeIsBitwiseAndComputesNoReferenceAgain) {
  run(config("whole"));
  EXPECT_THAT(output_, HasSubstr("reference log-probabilities of 120 answers of "));
  EXPECT_TRUE(run(config("parts"), 5).stopped_early);
  const std::string kept = read("parts/data/reference.bin");
  const auto written = fs::last_write_time(path("parts/data/reference.bin"));
  EXPECT_FALSE(run(config("parts")).stopped_early);
  EXPECT_THAT(output_, Not(HasSubstr("reference log-probabilities")));
  EXPECT_EQ(read("parts/data/reference.bin"), kept);
  EXPECT_EQ(fs::last_write_time(path("parts/data/reference.bin")), written);
  expect_same_files("parts", "whole", 12, 2);
  expect_same_preferences("parts", "whole");
}

TEST_F(PreferenceRun, KeptReferencesCountForTheSameWeightsAlone) {
  RunConfig c = config("run");
  c.checkpoint.resume = "none";
  c.train.steps = 1;
  run(c);
  const std::string first = read("run/data/reference.bin");
  run(c);
  EXPECT_THAT(output_, HasSubstr("of 120 answers of " + path("pairs") + " are those of " +
                                 path("run/data/reference.bin")));
  c.train.seed = 77;
  c.data.seed = 1;
  run(c);
  EXPECT_THAT(output_, Not(HasSubstr("are those of")));
  EXPECT_NE(read("run/data/reference.bin"), first);
}

TEST_F(PreferenceRun, ADamagedReferenceIsComputedAgainOrRefused) {
  RunConfig c = config("run");
  run(c, 5);
  const std::string file = path("run/data/reference.bin");
  const std::string whole = read("run/data/reference.bin");
  const auto refusal = [&] { return message_of<DataError>([&] { run(c); }); };
  std::string changed = whole;
  changed.back() ^= 1;
  for (const std::string& bytes :
       {whole.substr(0, whole.size() - 4), whole.substr(0, 20), std::string(), changed}) {
    write_test_file(file, bytes);
    EXPECT_THAT(refusal(), HasSubstr("are missing, damaged or of other pairs; put the file back"));
  }
  fs::remove(file);
  EXPECT_THAT(refusal(), HasSubstr("'" + file + "'"));
  // One of other weights, which is whole.
  RunConfig other = config("other");
  other.train.seed = 3;
  run(other, 1);
  write_test_file(file, read("other/data/reference.bin"));
  EXPECT_THAT(refusal(), HasSubstr("and the checkpoint is of a run that began with"));
  write_test_file(file, whole);
  EXPECT_EQ(run(c).last_step, 12);
  // From scratch, it is made again.
  write_test_file(file, whole.substr(0, 20));
  c.checkpoint.resume = "none";
  c.train.steps = 1;
  run(c);
  EXPECT_EQ(read("run/data/reference.bin"), whole);
}

TEST_F(PreferenceRun, OtherPairsAreAnotherRun) {
  RunConfig c = config("run");
  run(c, 5);
  c.data.train = path("others");
  EXPECT_THAT(message_of<ConfigError>([&] { run(c); }), HasSubstr("is of another run"));
}

// The same pairs in the same steps, whatever the layout.
TEST_F(PreferenceRun, AnyLayoutHasTheSameFigures) {
  RunConfig one = config("one");
  one.parallel.ranks = 1;
  one.train.steps = 4;
  one.train.global_batch = 8;
  one.eval.interval = 2;
  run(one);
  const Metrics expected = metrics("one");
  struct Case {
    const char* name;
    std::function<void(RunConfig&)> change;
  };
  const Case cases[] = {
      {"data", [](RunConfig& c) { c.parallel.ranks = 4; }},
      {"shards",
       [](RunConfig& c) {
         c.parallel.ranks = 2;
         c.parallel.shard = "parameters";
       }},
      {"tensor",
       [](RunConfig& c) {
         c.parallel.ranks = c.parallel.tensor = 2;
         c.parallel.sequence_parallel = true;
       }},
      {"pipeline", [](RunConfig& c) { c.parallel.ranks = c.parallel.pipeline = 2; }},
      {"context", [](RunConfig& c) { c.parallel.ranks = c.parallel.context = 2; }},
      {"accumulation", [](RunConfig& c) { c.train.microbatch = 4; }}};
  for (const Case& one_case : cases) {
    RunConfig c = one;
    c.logging.run_folder = path(one_case.name);
    one_case.change(c);
    run(c);
    const Metrics found = metrics(one_case.name);
    ASSERT_EQ(found.steps.size(), expected.steps.size());
    const auto expect_near = [&](const PreferenceRecord& a, const PreferenceRecord& b) {
      EXPECT_NEAR(a.chosen_reward, b.chosen_reward, 1e-5) << one_case.name;
      EXPECT_NEAR(a.rejected_reward, b.rejected_reward, 1e-5) << one_case.name;
      EXPECT_NEAR(a.chosen_logp, b.chosen_logp, 1e-4) << one_case.name;
      EXPECT_NEAR(a.rejected_logp, b.rejected_logp, 1e-4) << one_case.name;
    };
    for (size_t i = 0; i < found.steps.size(); ++i) {
      EXPECT_NEAR(found.steps[i].loss, expected.steps[i].loss, 1e-5) << one_case.name;
      expect_near(*found.steps[i].preference, *expected.steps[i].preference);
    }
    for (size_t i = 0; i < found.evaluations.size(); ++i) {
      EXPECT_NEAR(found.evaluations[i].loss, expected.evaluations[i].loss, 1e-5) << one_case.name;
      expect_near(*found.evaluations[i].preference, *expected.evaluations[i].preference);
    }
  }
}

TEST_F(PreferenceRun, OverlapChangesNoBit) {
  const auto with = [&](const char* name, const char* mode) {
    RunConfig c = config(name);
    c.parallel.ranks = 4;
    c.parallel.tensor = 2;
    c.parallel.sequence_parallel = true;
    c.parallel.shard = "optimizer";
    c.train.steps = 5;
    c.overlap.mode = mode;
    if (c.overlap.mode == "manual") {
      c.overlap.overlap_grad_reduce = true;
      c.overlap.overlap_param_gather = true;
      c.overlap.tp_comm_overlap = true;
      c.overlap.tp_comm_overlap_min_rows = 1;
    }
    return c;
  };
  run(with("off", "off"));
  run(with("on", "manual"));
  expect_same_preferences("on", "off");
  expect_same_files("on", "off", 5, 4);
}

// B of the adapters begins at 0, so the base is the reference.
TEST_F(PreferenceRun, AdaptersStartFromTheirBase) {
  RunConfig c = config("adapters");
  c.lora.rank = 4;
  c.lora.base = "initial";
  c.train.steps = 30;
  c.optimizer.learning_rate = 1e-2;
  run(c);
  EXPECT_NEAR(metrics("adapters").steps.front().loss, std::log(2), 1e-6);
  EXPECT_GT(metrics("adapters").evaluations.back().preference.value().margin(), 0.1);
}

TEST_F(PreferenceRun, OrdinaryDataAreRefused) {
  RunConfig c = config("run");
  c.data.train = path("corpus.txt");
  EXPECT_THAT(message_of<DataError>([&] { run(c); }),
              HasSubstr("make them with `braid tokenize --chat TEMPLATE --preference`"));
}

TEST(Reference, IsReadBackForItsKey) {
  TempFolder folder;
  const std::string path = folder / "a/reference.bin";
  EXPECT_FALSE(read_reference(path, "key"));
  const std::vector<float> values{-1.5f, -0.0f, -300.25f};
  write_reference(path, "key", values);
  EXPECT_EQ(read_reference(path, "key").value(), values);
  EXPECT_FALSE(read_reference(path, "kez"));
  EXPECT_FALSE(read_reference(path, "key2"));
  EXPECT_NE(reference_checksum(values), reference_checksum(std::vector<float>{-1.5f, 0, -300.25f}));
}

}  // namespace
}  // namespace braid
