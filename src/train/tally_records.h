#pragma once

#include <cstdint>
#include <vector>

#include "comm/process_group.h"
#include "report/records.h"
#include "runtime/engine.h"
#include "train/step_calendar.h"

namespace braid {

/// What a step's tallies say, for metrics.jsonl.
struct TallyRecords {
  std::vector<Fp8Record> fp8;
  std::vector<ExpertRecord> experts;
};

/// The records that the calendar wants of the step that the engine has ended last, of all ranks;
/// empty in processes other than the first. All processes must call it.
TallyRecords tally_records(const Engine& engine, ProcessGroup& processes,
                           const StepCalendar& calendar, int64_t step);

}  // namespace braid
