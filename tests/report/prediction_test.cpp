#include "report/prediction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/expect_error.h"
#include "report/traced_steps.h"

namespace braid {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Times are whole nanoseconds, so that JSON gives them back.
StepSummary some_step(double scale) {
  StepSummary step{.step_ns = 100e6 * scale,
                   .compute_ns = 70e6 * scale,
                   .copy_ns = 0,
                   .idle_ns = 10e6 * scale,
                   .communication = {40e6 * scale, 20e6 * scale},
                   .by_group = {},
                   .by_phase = {},
                   .ops = {{"adamw", 2, 1e6}, {"linear", 8, 60e6 * scale}}};
  step.by_group[static_cast<size_t>(GroupKind::kData)] = {40e6 * scale, 20e6 * scale};
  step.by_phase[static_cast<size_t>(Phase::kComm)] = {40e6 * scale, 20e6 * scale};
  return step;
}

RunReport run_with(const std::vector<TracedStep>& steps) {
  ReportInput input;
  input.title = "run";
  input.traced_steps = steps;
  input.steps = {
      {.step = 1, .step_ms = 300}, {.step = 2, .step_ms = 110}, {.step = 3, .step_ms = 120}};
  return run_report(input);
}

TEST(TracedSteps, ComeBackFromAReport) {
  const std::vector<TracedStep> steps = {{2, some_step(1)}, {3, some_step(1.25)}};
  const MeasuredSteps measured = measured_steps(run_with(steps), "runs/a");
  EXPECT_EQ(measured.traced, steps);
  EXPECT_EQ(measured.median_step_ns, 120e6);
}

TEST(TracedSteps, WaitsForOtherRanksComeBackAndAreNoneInOlderReports) {
  StepSummary waiting = some_step(1);
  waiting.communication.exposed_wait_ns = 5e6;
  waiting.by_group[static_cast<size_t>(GroupKind::kData)].exposed_wait_ns = 5e6;
  RunReport run = run_with({{2, waiting}});
  EXPECT_EQ(measured_steps(run, "runs/a").traced.at(0).summary, waiting);
  const std::string key = ",\"exposed_wait_ns\":";
  for (size_t at = run.json.find(key); at != std::string::npos; at = run.json.find(key)) {
    run.json.erase(at, run.json.find('}', at) - at);
  }
  EXPECT_EQ(measured_steps(run, "runs/a").traced.at(0).summary, some_step(1));
}

TEST(TracedSteps, ARunWithoutThemIsRefusedWithWhatHelps) {
  EXPECT_THAT(message_of<DataError>([] { measured_steps(run_with({}), "runs/a"); }),
              AllOf(HasSubstr("'runs/a' has no traced step"), HasSubstr("logging.trace_steps")));
  const RunReport damaged{.title = "", .json = R"({"data":{"traced_steps":[{"step":1}]}})"};
  EXPECT_THAT(message_of<DataError>([&] { measured_steps(damaged, "runs/b"); }),
              AllOf(HasSubstr("'runs/b'"), HasSubstr("damaged"), HasSubstr("step_ns")));
}

TEST(TracedSteps, AStepThatIsNoIntegerIsRefused) {
  for (const char* const step : {"1e300", "2.5", "18446744073709551615", "\"2\""}) {
    const RunReport damaged{
        .title = "", .json = fmt::format(R"({{"data":{{"traced_steps":[{{"step":{}}}]}}}})", step)};
    EXPECT_THAT(message_of<DataError>([&] { measured_steps(damaged, "runs/b"); }),
                AllOf(HasSubstr("'runs/b'"), HasSubstr("damaged")));
  }
}

TEST(PredictionError, IsPredictedOverMeasured) {
  EXPECT_NEAR(error_percent(200, 190), -5.0, 1e-9);
  EXPECT_DOUBLE_EQ(error_percent(200, 250), 25.0);
  EXPECT_DOUBLE_EQ(error_percent(0, 250), 0.0);
}

TEST(PredictionError, TheTableHasEachPartWithItsErrors) {
  Prediction prediction{.cost = "cpux2, measured",
                        .num_steps = 3,
                        .measured = some_step(1),
                        .predicted = some_step(0.95),
                        .measured_host_ns = 110e6,
                        .predicted_host_ns = 99e6};
  prediction.predicted.by_group[static_cast<size_t>(GroupKind::kTensor)] = {1e6, 1e6};
  const std::string text = describe_prediction_error(prediction);
  EXPECT_THAT(text, HasSubstr("cost      cpux2, measured\nmeasured  mean of 3 traced steps"));
  const auto line = [&](const std::string& name) {
    const size_t begin = text.find("\n" + name);
    return begin == std::string::npos ? "no " + name
                                      : text.substr(begin + 1, text.find('\n', begin + 1) - begin);
  };
  EXPECT_THAT(line("step"), AllOf(HasSubstr("100 ms"), HasSubstr("95.0 ms"), HasSubstr("-5.0%")));
  EXPECT_THAT(line("exposed communication"),
              AllOf(HasSubstr("20.0 ms"), HasSubstr("19.0 ms"), HasSubstr("-1.0%")));
  EXPECT_THAT(line("  data ranks"), HasSubstr("20.0 ms"));
  EXPECT_THAT(line("  tensor ranks"), HasSubstr(" - "));  // nothing measured: no percentage
  EXPECT_THAT(line("  phase comm"), HasSubstr("-5.0%"));
  EXPECT_THAT(line("with the host"), HasSubstr("-10.0%"));
  EXPECT_THAT(line("  linear"), AllOf(HasSubstr("60.0 ms"), HasSubstr("57.0 ms")));
  EXPECT_LT(text.find("  linear"), text.find("  adamw")) << "largest error first";
  EXPECT_EQ(text.find("copies"), std::string::npos);
}

TEST(PredictionError, TheTableSaysWhatWaitsForOtherRanksWhereThereAreAny) {
  Prediction prediction{.cost = "h200x2, measured",
                        .num_steps = 1,
                        .measured = some_step(1),
                        .predicted = some_step(1)};
  EXPECT_THAT(describe_prediction_error(prediction),
              testing::Not(HasSubstr("waits for other ranks")));
  prediction.measured.communication.exposed_wait_ns = 4e6;
  prediction.predicted.communication.exposed_wait_ns = 3e6;
  EXPECT_THAT(describe_prediction_error(prediction),
              testing::ContainsRegex("  waits for other ranks +4.00 ms +3.00 ms +-25.0% +-1.0%"));
}

TEST(PredictionError, JsonHasTheSame) {
  const Prediction prediction{.cost = "c",
                              .num_steps = 1,
                              .measured = some_step(1),
                              .predicted = some_step(1.5),
                              .measured_host_ns = 0,
                              .predicted_host_ns = 7};
  const nlohmann::ordered_json json = prediction_json(prediction);
  EXPECT_EQ(json["measured"]["step_ns"], 100'000'000);
  EXPECT_EQ(json["predicted"]["by_group"]["data"]["exposed_ns"], 30'000'000);
  EXPECT_EQ(json["error_percent"]["step"], 50.0);
  EXPECT_EQ(json["error_percent"]["host"], 0.0);
}

}  // namespace
}  // namespace braid
