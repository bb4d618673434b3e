#include "report/comparison.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "report/report_html.h"

namespace braid {
namespace {

/// A run whose loss is `loss` in step 1, and falls by a tenth from step to step.
RunReport run_of(const std::string& title, int64_t num_steps, double loss, double step_ms,
                 int64_t memory_bytes) {
  ReportInput input;
  input.title = title;
  input.memory.persistent_bytes = memory_bytes;
  for (int64_t step = 1; step <= num_steps; ++step, loss -= 0.1) {
    input.steps.push_back(
        {.step = step, .loss = loss, .step_ms = step_ms, .tokens_per_s = 1e6 / step_ms});
  }
  input.evaluations = {{.step = num_steps, .loss = loss}};
  return run_report(input);
}

TEST(Comparison, HasLossesOverFifthsOfTheCommonStepsSpeedAndMemory) {
  const RunReport wide = run_of("bf16", 12, 5.0, 200, int64_t{2} << 30);
  const RunReport narrow = run_of("a run with a title that is long", 10, 5.05, 160, 1 << 30);
  EXPECT_EQ(describe_comparison(wide, narrow),
            "                                             bf16 ...itle that is long  difference\n"
            "loss, steps 1 to 2                         4.9500               5.0000      +1.01%\n"
            "loss, steps 3 to 4                         4.7500               4.8000      +1.05%\n"
            "loss, steps 5 to 6                         4.5500               4.6000      +1.10%\n"
            "loss, steps 7 to 8                         4.3500               4.4000      +1.15%\n"
            "loss, steps 9 to 10                        4.1500               4.2000      +1.20%\n"
            "held-out loss, last                        3.8000               4.0500      +6.58%\n"
            "step time, median                          200 ms               160 ms      -20.0%\n"
            "tokens/s, median                             5000                 6250      +25.0%\n"
            "peak memory of a rank                    2.00 GiB             1.00 GiB      -50.0%\n");
}

TEST(Comparison, LeavesOutWhatOneRunLacks) {
  const RunReport some = run_of("some", 2, 5.0, 100, 100);
  ReportInput none;
  none.title = "none";
  EXPECT_EQ(describe_comparison(some, run_report(none)),
            "                                             some                 none  difference\n"
            "peak memory of a rank                       100 B                  0 B     -100.0%\n");
  EXPECT_EQ(describe_comparison(some, some).substr(0, 180),
            "                                             some                 some  difference\n"
            "loss, step 1                               5.0000               5.0000      +0.00%\n"
            "loss, step 2  ");
}

}  // namespace
}  // namespace braid
