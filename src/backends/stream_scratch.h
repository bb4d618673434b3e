#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/program.h"

namespace braid {

/// Scratch of the kernels of one executor. Its programs share streams of equal name and kind, and
/// the kernels of a stream run one at a time, so a stream has one block of the size of its largest
/// kernel's scratch. Executors allocate with it, and checks before a run estimate with it.
class StreamScratch {
 public:
  /// The executor's number for a stream of a program: a new number if no earlier program had the
  /// stream.
  size_t add(const Stream& stream);
  /// Registers the scratch of a kernel on that stream.
  void need(size_t stream, size_t size_bytes);

  size_t num_streams() const { return blocks_.size(); }
  int64_t size_bytes(size_t stream) const { return blocks_[stream].size_bytes; }
  /// Sum over all streams.
  int64_t size_bytes() const;

 private:
  struct Block {
    std::string name;
    StreamKind kind;
    int64_t size_bytes = 0;
  };
  std::vector<Block> blocks_;
};

/// Scratch of a kernel, by spec and the stream that it runs on.
using ScratchOf = std::function<size_t(const OpSpec& spec, const Stream& stream)>;

/// Adds the scratch of a program's compute tasks. Calls `scratch_of` once per spec and stream: few
/// specs, perhaps a million tasks.
void count_scratch(const Program& program, const ScratchOf& scratch_of, StreamScratch& scratch);

}  // namespace braid
