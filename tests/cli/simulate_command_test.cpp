#include "cli/cli_fixture.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class SimulateCommand : public Cli {
 protected:
  SimulateCommand() { write_run(); }

  nlohmann::json json_of(Words arguments) const {
    arguments.insert(arguments.begin(), {"simulate", "run.toml", "--json"});
    return nlohmann::json::parse(output_of(arguments));
  }
  /// 4 ranks in a pipeline of two stages, 4 microbatches each.
  static Words pipeline(const Words& more) {
    Words words{"--set", "parallel.ranks=4",     "--set", "parallel.pipeline=2",
                "--set", "train.global_batch=16"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST_F(SimulateCommand, ForecastsAMonthWithFailures) {
  const Words failures{"--cluster", "h100x4", "--failures", "100", "--save-seconds", "2"};
  const nlohmann::json json = json_of(pipeline(failures));
  const nlohmann::json& goodput = json["goodput"];
  EXPECT_EQ(goodput["mean_s"], 90000);
  EXPECT_EQ(goodput["repair_s"], 4 * 3600);
  EXPECT_EQ(goodput["spare_nodes"], 3);
  const double useful = goodput["useful"];
  EXPECT_NEAR(useful + double{goodput["saves"]} + double{goodput["failures"]}, 1, 1e-12);
  EXPECT_LT(goodput["useful_without_spares"], useful);
  EXPECT_NEAR(double{goodput["tokens_per_month"]}, double{json["tokens_per_s"]} * useful * 2592000,
              1.0);
  EXPECT_NEAR(double{goodput["interval_s"]},
              double{goodput["interval_steps"]} * 1e-9 * double{json["step_ns"]}, 1e-6);
  Words words = pipeline(failures);
  words.insert(words.begin(), {"simulate", "run.toml"});
  EXPECT_THAT(output_of(words),
              AllOf(HasSubstr("\nfailures  one every 1 d 01 h (4 devices, each every 100 hours); "
                              "save 2.00 s, restart 5 min 00 s, repair 4 h 00 min\ngoodput   99."),
                    HasSubstr("\nspares    3 nodes beside 1 (300.0% more), so that 99% of failures "
                              "wait for no repair; without any, goodput is 8")));
  EXPECT_THAT(error_of({"simulate", "run.toml", "--save-seconds", "2"}, 2),
              HasSubstr("--failures"));
}

TEST_F(SimulateCommand, SaysHowFarTheStepMayBe) {
  const Words machine{"--cluster", "h100x4"};
  const nlohmann::json plain = json_of(pipeline(machine));
  EXPECT_LT(plain["range"]["low_ns"], plain["step_ns"]);
  EXPECT_GT(plain["range"]["high_ns"], plain["step_ns"]);
  EXPECT_FALSE(plain.contains("samples"));
  const nlohmann::json json = json_of(pipeline(
      {"--cluster", "h100x4", "--samples", "5", "--seed", "3", "--slow-node", "3", "--why"}));
  EXPECT_EQ(json["step_ns"], plain["step_ns"]);
  EXPECT_EQ(json["samples"]["count"], 5);
  EXPECT_LE(json["samples"]["median_ns"], json["samples"]["p90_ns"]);
  EXPECT_GT(json["slow"]["step_ns"], json["step_ns"]);
  EXPECT_FALSE(plain["critical_path"]["parts"][0].contains("gain_ns"));
  EXPECT_TRUE(std::ranges::any_of(json["critical_path"]["parts"],
                                  [](const auto& part) { return part.contains("gain_ns"); }));
  EXPECT_TRUE(json["gains"].contains("changes"));
  EXPECT_THAT(error_of({"simulate", "run.toml", "--cluster", "h100x2", "--seed", "1"}, 2),
              HasSubstr("--samples"));
  EXPECT_THAT(error_of({"simulate", "run.toml", "--cluster", "h100x2", "--slow-node", "0.5"}, 2),
              HasSubstr("--slow-node"));
}

TEST_F(SimulateCommand, SaysWhereTheStepGoes) {
  const std::string text = output_of({"simulate", "run.toml", "--cluster", "h100x2"});
  for (const char* part :
       {"layout    2 ranks", "cost      h100x2, analytic", "\nstep      ", "tokens/s and ",
        "on each of 2 ranks, MFU ", "\ncompute   ", "\nexposed   ", "data ", "\nidle      ",
        "\nbusiest   rank 0", "\nmemory    ", " of 79.0 GiB", "\nstage   rank", "\npath      ",
        "\nmatrix products "}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_FALSE(exists("runs"));
}

TEST_F(SimulateCommand, PartsOfTheStepAddUp) {
  const nlohmann::json json = json_of(pipeline({"--cluster", "h100x8"}));
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["distinct_ranks"], 2);
  EXPECT_EQ(json["stages"].size(), 2u);
  const nlohmann::json& mean = json["mean"];
  const double step_ns = json["step_ns"].get<double>() - json["host_ns"].get<double>();
  EXPECT_NEAR(mean["compute_ns"].get<double>() + mean["exposed_ns"].get<double>() +
                  mean["copy_ns"].get<double>() + mean["idle_ns"].get<double>(),
              step_ns, 1e-6 * step_ns);
  EXPECT_GT(mean["warmup_ns"].get<double>(), 0);
  EXPECT_GT(mean["communication"]["pipeline"]["total_ns"].get<double>(), 0);
  EXPECT_NEAR(json["tokens_per_s"].get<double>(), 16 * 32 / (json["step_ns"].get<double>() * 1e-9),
              1);
}

TEST_F(SimulateCommand, OtherSoftwareTakesLonger) {
  const nlohmann::json braid = json_of({"--cluster", "h100x2"});
  const nlohmann::json eager = json_of({"--cluster", "h100x2", "--stack", "eager"});
  EXPECT_GT(eager["mean"]["compute_ns"], braid["mean"]["compute_ns"]);
  EXPECT_THAT(output_of({"simulate", "run.toml", "--cluster", "h100x2", "--stack", "eager"}),
              HasSubstr("h100x2, analytic: NVIDIA H100 SXM, stack eager"));
  EXPECT_THAT(error_of({"simulate", "run.toml", "--cluster", "h100x2", "--stack", "egar"}, 2),
              AllOf(HasSubstr("--stack \"egar\": unknown; use one of"),
                    HasSubstr("did you mean \"eager\"?")));
  EXPECT_THAT(error_of({"simulate", "run.toml", "--profile", "p.json", "--stack", "eager"}, 2),
              HasSubstr("give --cluster instead of --profile"));
}

TEST_F(SimulateCommand, HardwareOfAFileStandsInPlaceOfAName) {
  write_test_file(path("slow.toml"), "like = \"h100\"\n[reached]\ngemm = 0.1\ngemm_burst = 0.1\n");
  const std::string file = path("slow.toml");
  EXPECT_GT(json_of({"--cluster", file + "x2"})["step_ns"],
            json_of({"--cluster", "h100x2"})["step_ns"]);
  EXPECT_THAT(output_of({"plan", "run.toml", "--cost", file + "x2", "--device-memory", file}),
              HasSubstr("slow.tomlx2"));
  write_test_file(path("slow.toml"), "like = \"h100\"\n[memory]\nusable_gib = 0\n");
  EXPECT_THAT(error_of({"simulate", "run.toml", "--cluster", file + "x2"}, 2),
              HasSubstr("slow.toml:3: memory.usable_gib = 0 is outside 0.1 to 100000; the nearest "
                        "valid value is 0.1"));
}

TEST_F(SimulateCommand, SkewedRoutingIsBesideTheBalancedStep) {
  const Words experts{"--cluster", "h100x2",
                      "--set",     "model.experts=8",
                      "--set",     "model.experts_per_token=2",
                      "--set",     "model.expert_ffn=16",
                      "--set",     "parallel.expert=2"};
  const nlohmann::json balanced = json_of(experts);
  EXPECT_FALSE(balanced.contains("skewed"));
  Words words = experts;
  words.insert(words.end(), {"--routing-skew", "0.1"});
  const nlohmann::json json = json_of(words);
  EXPECT_EQ(json["step_ns"], balanced["step_ns"]);
  EXPECT_GE(json["skewed"]["step_ns"], json["step_ns"]);
  EXPECT_GT(json["skewed"]["busiest_rank_load"], 1.1);
  EXPECT_EQ(json["skewed"]["source"], "Dirichlet(0.1)");
  words.insert(words.begin(), {"simulate", "run.toml"});
  EXPECT_THAT(output_of(words), HasSubstr("\nskewed    "));
  write_test_file(path("loads.jsonl"),
                  "{\"expert_layer\":\"layers.0\",\"step\":4,\"max_violation\":1,\"min_ratio\":0,"
                  "\"std_ratio\":1,\"entropy\":0.5,\"dead\":4,\"balance_loss\":1,\"z_loss\":null,"
                  "\"counts\":[1,1,1,1,0,0,0,0]}\n");
  words = experts;
  words.insert(words.end(), {"--routing-loads", path("loads.jsonl")});
  EXPECT_EQ(json_of(words)["skewed"]["busiest_rank_load"], 2);
  words.back() = path("none.jsonl");
  words.insert(words.begin(), {"simulate", "run.toml"});
  EXPECT_THAT(error_of(words, 2), HasSubstr("none.jsonl\": no such file, or it has no records"));
}

TEST_F(SimulateCommand, SearchKeepsTheEngineThatIsGiven) {
  const Words words{"simulate", "run.toml", "--cluster", "h200x2", "--auto-overlap"};
  const auto found_with = [&](const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    all.insert(all.end(), {"--save-config", "found.toml"});
    output_of(all);
    return read("found.toml");
  };
  EXPECT_THAT(found_with({"--set", "overlap.comm_engine=nccl_copy"}),
              HasSubstr("comm_engine = \"nccl_copy\""));
  // The search replaces the choices of another mode.
  EXPECT_THAT(
      found_with({"--set", "overlap.comm_engine=nccl_copy", "--set", "overlap.mode=manual"}),
      Not(HasSubstr("comm_engine = \"nccl_copy\"")));
  // Ranks that share a GPU have no other.
  EXPECT_THAT(found_with({"--set", "overlap.comm_engine=copy", "--set", "overlap.mode=manual",
                          "--set", "runtime.ranks_per_gpu=2"}),
              HasSubstr("comm_engine = \"copy\""));
}

TEST_F(SimulateCommand, TheDeviceOfCostsIsTheOneThatIsSimulated) {
  const Words cost{"--set", "overlap.cost=device", "--cluster", "h200x2"};
  Words named = cost;
  named[1] = "overlap.cost=h200x2";
  EXPECT_EQ(json_of(cost), json_of(named));
  EXPECT_THAT(error_of({"plan", "run.toml", "--set", "overlap.cost=device"}, 2),
              HasSubstr("overlap.cost = \"device\": means the GPU that `braid train` finds"));
  EXPECT_THAT(output_of({"plan", "run.toml", "--set", "overlap.cost=device", "--cost", "h200x2"}),
              HasSubstr("auto overlap: "));
}

TEST_F(SimulateCommand, SearchesTheOverlapAndKeepsWhatItFound) {
  const std::string text = output_of({"simulate", "run.toml", "--cluster", "h200x2",
                                      "--auto-overlap", "--save-config", "found.toml"});
  EXPECT_THAT(text, AllOf(HasSubstr("auto overlap: "), HasSubstr(" settings tried in "),
                          HasSubstr("auto     memory "), HasSubstr("\nstep      ")));
  const std::string found = read("found.toml");
  EXPECT_THAT(found, AllOf(HasSubstr("mode = \"manual\"\ncost = \"h200x2\"\n"),
                           HasSubstr("may_change_rounding = false")));
  // The run file that was found has the step that was promised, and needs no search.
  const nlohmann::json by_key = json_of(
      {"--cluster", "h200x2", "--set", "overlap.mode=auto", "--set", "overlap.cost=h200x2"});
  const nlohmann::json kept =
      nlohmann::json::parse(output_of({"simulate", "found.toml", "--cluster", "h200x2", "--json"}));
  EXPECT_EQ(by_key, kept);
  EXPECT_LE(kept["step_ns"], json_of({"--cluster", "h200x2"})["step_ns"]);
}

TEST_F(SimulateCommand, RefusesCostsThatAreNone) {
  EXPECT_THAT(
      error_of({"simulate", "run.toml", "--cluster", "h200x2", "--set", "overlap.cost=h200x1"}, 2),
      HasSubstr("overlap.cost = \"h200x1\": cluster h200 has 1 devices"));
}

TEST_F(SimulateCommand, EqualQuestionsHaveEqualAnswers) {
  const Words words{"simulate", "run.toml", "--cluster", "h200x8", "--json"};
  EXPECT_EQ(output_of(words), output_of(words));
}

TEST_F(SimulateCommand, ContentionCostsTime) {
  const double with = json_of({"--cluster", "h100x2"})["step_ns"];
  const double without = json_of({"--cluster", "h100x2", "--no-contention"})["step_ns"];
  EXPECT_GT(with, without);
}

TEST_F(SimulateCommand, RanksScaleTheDataDimensionAndTheBatch) {
  const nlohmann::json json = json_of(pipeline({"--cluster", "h200x8", "--ranks", "64"}));
  EXPECT_EQ(json["ranks"], 64);
  EXPECT_EQ(json["global_batch"], 16 * 64 / 4);
  EXPECT_THAT(json["cost"], HasSubstr("h200x64"));
}

TEST_F(SimulateCommand, RanksThatDoNotDivideAreRefused) {
  Words words = pipeline({"--cluster", "h200x8", "--ranks", "63"});
  words.insert(words.begin(), {"simulate", "run.toml"});
  EXPECT_EQ(error_of(words, 2),
            "--ranks 63 is not a multiple of tensor 1 x context 1 x pipeline 2 = 2; the nearest "
            "are 62 and 64");
  words.back() = "1";
  EXPECT_THAT(error_of(words, 2), HasSubstr("the nearest is 2"));
}

TEST_F(SimulateCommand, ClusterMustHaveADevicePerRank) {
  EXPECT_THAT(error_of({"simulate", "run.toml", "--cluster", "h200"}, 2),
              AllOf(HasSubstr("cluster h200 has 1 devices"), HasSubstr("use h200x2")));
  EXPECT_THAT(error_of({"simulate", "run.toml"}, 2), HasSubstr("--cluster (h200x8, h100x1024)"));
  EXPECT_THAT(error_of({"simulate", "run.toml", "--cluster", "h2x8"}, 2),
              HasSubstr("unknown device"));
}

TEST_F(SimulateCommand, TracesOpenInPerfetto) {
  output_of({"simulate", "run.toml", "--cluster", "h100x2", "--trace", "step.json", "--trace-ranks",
             "0,1"});
  const nlohmann::json trace = nlohmann::json::parse(read("step.json"));
  const nlohmann::json& events = trace.is_array() ? trace : trace["traceEvents"];
  int tasks[2] = {};
  for (const nlohmann::json& event : events) {
    if (event["ph"] == "X") {
      ++tasks[event["pid"].get<int>() - 1];
    }
  }
  EXPECT_GT(tasks[0], 50);
  EXPECT_EQ(tasks[0], tasks[1]);
}

TEST_F(SimulateCommand, TraceRanksMustExist) {
  EXPECT_EQ(error_of({"simulate", "run.toml", "--cluster", "h100x2", "--trace", "step.json",
                      "--trace-ranks", "2"},
                     2),
            "--trace-ranks 2: the ranks are 0 to 1");
  EXPECT_THAT(error_of({"simulate", "run.toml", "--cluster", "h100x2", "--trace-ranks", "0,a"}, 2),
              HasSubstr("--trace-ranks: a is not an integer"));
  EXPECT_FALSE(exists("step.json"));
}

TEST_F(SimulateCommand, SaysWhatIsHiddenAndWhyNot) {
  const std::string text =
      output_of({"simulate", "run.toml", "--cluster", "h100x2", "--trace-ranks", "1"});
  EXPECT_THAT(text, HasSubstr("\nhidden    or why not; sums over rank 1\noverlap   data: "));
  EXPECT_THAT(text, ::testing::ContainsRegex("% hidden; [0-9.]+ [mun]?s exposed "));
}

TEST_F(SimulateCommand, ReportsCanBeComparedWithEachOtherAndWithRuns) {
  const auto simulate = [&](const Words& more) {
    Words words{"simulate", "run.toml", "--cluster", "h100x2"};
    words.insert(words.end(), more.begin(), more.end());
    return output_of(words);
  };
  const std::string text = simulate({"--report", "sim/on"});
  EXPECT_THAT(text, HasSubstr("\nreport    sim/on/report.html\n"));
  for (const char* file : {"config.toml", "report.json", "report.html", "simulation.json"}) {
    EXPECT_TRUE(exists(std::string("sim/on/") + file)) << file;
  }
  EXPECT_EQ(read("sim/on/simulation.json"), simulate({"--json"}));
  const std::string json =
      simulate({"--json", "--report", "sim/off/", "--set", "overlap.mode=off"});
  EXPECT_EQ(read("sim/off/simulation.json"), json);
  EXPECT_THAT(output_of({"report", "sim/off", "--compare", "sim/on"}),
              AllOf(HasSubstr("\nstep time, median"), HasSubstr("report   sim/off/compare.html\n"),
                    Not(HasSubstr("loss"))));
  EXPECT_THAT(read("sim/off/compare.html"), HasSubstr("<title>off and on "));
  output_of(train({}));
  output_of({"report", "sim/on", "--compare", "runs/run", "--out", "both.html"});
  EXPECT_THAT(read("both.html"), HasSubstr("<title>on and run "));
}

TEST_F(SimulateCommand, ReportsOfTrainedRunsAreNotLost) {
  write("trained/metrics.jsonl", "");
  EXPECT_THAT(error_of({"simulate", "run.toml", "--cluster", "h100x2", "--report", "trained"}, 2),
              AllOf(HasSubstr("--report trained: this folder belongs to a run that trained"),
                    HasSubstr("`braid report trained --compare`")));
  EXPECT_FALSE(exists("trained/report.json"));
  EXPECT_THAT(
      error_of({"simulate", "run.toml", "--cluster", "h100x2", "--report", "corpus.txt/x"}, 1),
      HasSubstr("--report corpus.txt/x: cannot make the folder"));
}

TEST_F(SimulateCommand, ProfilesAreReadAndRefused) {
  EXPECT_THAT(error_of({"simulate", "run.toml", "--profile", "none.json"}, 1),
              HasSubstr("none.json"));
  write("bad.json", "{}");
  EXPECT_THAT(error_of({"simulate", "run.toml", "--profile", "bad.json"}, 1),
              HasSubstr("bad.json"));
}

TEST_F(SimulateCommand, ThousandsOfRanksTakeAsLongAsTheDistinctOnes) {
  write("large.toml",
        "[model]\npreset = \"llama-8b\"\n[train]\nsequence = 8192\nglobal_batch = 8192\n"
        "dtype = \"bfloat16\"\n[parallel]\nranks = 8192\ntensor = 2\nsequence_parallel = true\n"
        "pipeline = 4\n");
  const std::string text = output_of({"simulate", "large.toml", "--cluster", "h100x8192"});
  EXPECT_THAT(text, HasSubstr("simulated 8 programs, 8 distinct ranks"));
}

}  // namespace
}  // namespace braid
