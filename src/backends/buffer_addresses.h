#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"
#include "memory/memory_plan.h"

namespace braid {

/// Addresses of the arenas of a rank, in any kind of memory.
struct Arenas {
  std::byte* persistent = nullptr;
  std::byte* step = nullptr;
  std::byte* host = nullptr;  ///< step buffers in host memory
};

/// The address of each operand, parallel to Program::operands; an operand without elements has some
/// address in its arena. Throws InternalError if plan and program do not fit together, or a task
/// names a stream or an event that the program lacks.
std::vector<std::byte*> operand_addresses(const Program& program, const MemoryPlan& plan,
                                          const StepPlan& step_plan, const Arenas& arenas);

/// The persistent buffers of all programs of an executor, by name.
class PersistentBuffers {
 public:
  /// Throws InternalError if a buffer of the same name has another address.
  void add(const Program& program, const StepPlan& step_plan, const Arenas& arenas);

  /// Throws InternalError for an unknown name.
  std::span<std::byte> whole(std::string_view buffer) const;
  /// Throws InternalError for an unknown name or a range outside the buffer.
  std::span<std::byte> range(std::string_view buffer, int64_t offset_bytes,
                             size_t size_bytes) const;

 private:
  std::map<std::string, std::span<std::byte>, std::less<>> buffers_;
};

}  // namespace braid
