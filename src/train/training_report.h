#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/run_plan.h"
#include "report/metrics_file.h"
#include "report/report_html.h"
#include "report/run_file.h"
#include "trace/chrome_trace.h"
#include "trace/timeline.h"

namespace braid {

/// The report files of a training run: report.json for `braid report`, and at its end report.html
/// and trace.json.
class TrainingReport {
 public:
  struct Source {
    const RunPlan& plan;  ///< must outlive the report
    int64_t first_step = 1;
    double unigram_entropy = 0;
  };
  explicit TrainingReport(const Source& source) : source_(source) {}

  /// Adds a traced step, in place of itself and of later ones if the run went back.
  void add(int64_t step, Timeline timeline);
  /// The timelines of the traced steps, in order.
  const std::vector<Timeline>& timelines() const { return timelines_; }

  /// Writes report.json. Throws DataError.
  RunReport save(const Metrics& metrics) const;
  /// Writes all files, and returns the path of report.html. Throws DataError.
  std::string write(const Metrics& metrics) const;

 private:
  const RankPlan* plan_of(int rank) const;
  std::vector<MemoryCurve> memory_over_time(const Timeline& timeline) const;
  std::vector<TraceCounter> memory_counters() const;
  ReportInput input(const Metrics& metrics) const;

  Source source_;
  std::vector<Timeline> timelines_;
};

}  // namespace braid
