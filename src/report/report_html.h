#pragma once

#include <string>
#include <vector>

#include "memory/memory_plan.h"
#include "passes/runner.h"
#include "report/records.h"
#include "trace/timeline.h"

namespace braid {

/// What the report of a run shows. Parts that are empty are left out of the page, which says why.
struct ReportInput {
  std::string title;
  std::string config_toml;         ///< the resolved configuration
  std::string model;               ///< description of the model, one line
  std::vector<PassRecord> passes;  ///< of the training program
  MemoryPlan memory;               ///< of one rank
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evaluations;  ///< in the order of their steps
  double unigram_entropy = 0;           ///< of the held-out tokens, nats; 0: not known
  Timeline timeline;                    ///< one traced step of some ranks
};

/// The report as one HTML page that needs no network and no other file: headline figures, loss and
/// throughput over the steps, the timeline of a step (zoom, pan, hover), exposed communication by
/// kind, memory by class, passes, configuration. Opened as report.html#selfcheck, the page operates
/// itself and says in the element "selfcheck" what does not work. Texts may hold anything; bytes
/// that are not UTF-8 become U+FFFD.
std::string report_html(const ReportInput& input);

}  // namespace braid
