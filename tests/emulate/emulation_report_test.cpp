#include "emulate/emulation_report.h"

#include <gmock/gmock.h>

#include "base/file.h"
#include "base/temp_folder.h"
#include "plan/emulated_peers.h"
#include "plan/rank_programs.h"
#include "sim/analytic_model.h"
#include "support/emulated_layouts.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

/// The second stage of a pipeline.
class EmulationReport : public ::testing::Test {
 protected:
  const RunConfig config_ = emulated_layout(small_planned_run(), "tensor_pipeline", 4);
  const std::unique_ptr<CostModel> model_ = make_analytic_model(parse_cluster("h200x4"));
  const SimulatedRun run_{resolve_run(config_, 0),
                          *model_,
                          {.starts_on_arrival = true},
                          PlannedRanks::kEveryPlaceInFull};
  const int rank_ = run_.plan().ranks.back().programs[kTrainProgram].rank;
  const RankEmulation emulation_ = emulate_rank(run_.plan(), rank_, emulated_peers(run_, rank_),
                                                {.warmup_steps = 0, .steps = 1});
};

TEST_F(EmulationReport, HasTheStepAsItRan) {
  const ReportInput report = emulated_step(emulation_, run_, "some title");
  EXPECT_EQ(report.title, "some title");
  ASSERT_EQ(report.timeline.ranks.size(), 1u);
  EXPECT_EQ(report.timeline.ranks.front().tasks, emulation_.timeline.ranks.front().tasks);
  EXPECT_EQ(report.simulation, "");
  EXPECT_EQ(report.memory_rank, rank_);
  EXPECT_EQ(report.memory.peak_bytes(), plan_of_rank(run_.plan(), rank_).memory.peak_bytes());
  ASSERT_EQ(report.memory_over_time.size(), 1u);
  EXPECT_EQ(report.memory_over_time.front().rank, rank_);
  EXPECT_LE(report.memory_over_time.front().high_bytes + report.memory.persistent_bytes,
            report.memory.peak_bytes());
}

TEST_F(EmulationReport, IsWrittenBesideTheSimulation) {
  const TempFolder folder;
  const std::string report = folder / "report";
  EXPECT_EQ(write_emulation_report(report, emulation_, run_), report + "/report.html");
  const std::string page = read_text_file(report + "/report.html", int64_t{1} << 28);
  EXPECT_THAT(page, HasSubstr(fmt::format("rank {} of", rank_)));
  EXPECT_THAT(page, HasSubstr("as simulated"));
  EXPECT_THAT(read_text_file(report + "/config.toml", 1 << 20), HasSubstr("pipeline = 2"));
  EXPECT_THAT(read_text_file(report + "/report.json", int64_t{1} << 28), HasSubstr("emulated"));
}

}  // namespace
}  // namespace braid
