#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/program.h"

namespace braid {

/// Scratch of the kernels of one executor. Its programs share streams of equal name and kind, and
/// the kernels of a stream take turns, so a stream has one block, as large as its largest kernel
/// asks for. Executors allocate by it, and checks before a run count with it.
class StreamScratch {
 public:
  /// Number of the executor's stream that a stream of a program is: the next one if no program had
  /// it before.
  size_t add(const Stream& stream);
  /// A kernel on that stream needs so much.
  void need(size_t stream, size_t size_bytes);

  size_t num_streams() const { return blocks_.size(); }
  int64_t size_bytes(size_t stream) const { return blocks_[stream].size_bytes; }
  /// Of all streams.
  int64_t size_bytes() const;

 private:
  struct Block {
    std::string name;
    StreamKind kind;
    int64_t size_bytes = 0;
  };
  std::vector<Block> blocks_;
};

/// Scratch of one kernel, by spec and the stream that it runs on.
using ScratchOf = std::function<size_t(const OpSpec& spec, const Stream& stream)>;

/// Adds what the compute tasks of a program need. Asks once per spec and stream: few specs, perhaps
/// a million tasks.
void count_scratch(const Program& program, const ScratchOf& scratch_of, StreamScratch& scratch);

}  // namespace braid
