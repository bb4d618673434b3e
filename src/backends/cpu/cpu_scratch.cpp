#include "backends/cpu/cpu_scratch.h"

#include "backends/cpu/kernel.h"
#include "backends/stream_scratch.h"

namespace braid {

int64_t cpu_scratch_bytes(std::span<const Program> programs, int num_workers) {
  StreamScratch scratch;
  for (const Program& program : programs) {
    count_scratch(
        program,
        [&](const OpSpec& spec, const Stream& stream) {
          return make_cpu_kernel(spec, workers_of(stream, num_workers)).scratch_bytes;
        },
        scratch);
  }
  return scratch.size_bytes();
}

}  // namespace braid
