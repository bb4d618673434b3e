#include "train/tally_records.h"

#include "train/expert_watch.h"
#include "train/fp8_watch.h"
#include "train/gather_tallies.h"

namespace braid {

TallyRecords tally_records(const Engine& engine, ProcessGroup& processes,
                           const StepCalendar& calendar, int64_t step) {
  const RunSpec& run = engine.plan().run;
  const bool wants_fp8 = calendar.is_fp8_recorded(step);
  const bool wants_loads = run.watch_experts && calendar.are_loads_recorded(step);
  if (!wants_fp8 && !wants_loads) {
    return {};
  }
  const StepTallies tallies = gather_tallies(engine, processes);
  TallyRecords records;
  if (wants_fp8) {
    records.fp8 = fp8_records(step, tallies.tallies);
  }
  if (wants_loads) {
    records.experts = expert_records(tallies, {.step = step,
                                               .coefficients = run.router_losses,
                                               .with_counts = calendar.are_counts_recorded(step)});
  }
  return records;
}

}  // namespace braid
