// Any bytes as metrics.jsonl: records that print and read back the same, or DataError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/errors.h"
#include "fuzz_file.h"
#include "report/metrics_file.h"

namespace {

std::string printed(const braid::Metrics& metrics) {
  std::string lines;
  for (const braid::StepRecord& record : metrics.steps) {
    lines += braid::metrics_line(record);
  }
  for (const braid::EvalRecord& record : metrics.evaluations) {
    lines += braid::metrics_line(record);
  }
  for (const braid::Fp8Record& record : metrics.fp8) {
    lines += braid::metrics_line(record);
  }
  for (const braid::ExpertRecord& record : metrics.experts) {
    lines += braid::metrics_line(record);
  }
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const braid::FuzzFolder folder;
  const std::string path = folder.write("metrics.jsonl", data, size);
  try {
    const std::string lines = printed(braid::read_metrics(path));
    folder.write("metrics.jsonl", lines.data(), lines.size());
    if (printed(braid::read_metrics(path)) != lines) {
      std::abort();
    }
  } catch (const braid::DataError&) {
  }
  return 0;
}
