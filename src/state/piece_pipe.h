#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backends/host_block.h"

namespace braid {

/// Blocks of memory that one thread fills and another empties, in the same order: the next one is
/// filled while the previous one is emptied.
///   while there is more:  fill(pipe.next()), pipe.submit(size)
///   pipe.finish()
/// All calls come from one thread.
class PiecePipe {
 public:
  using Consume = std::function<void(std::span<const std::byte> piece)>;

  /// At least one block, of any sizes; with two or more, filling and emptying run concurrently. The
  /// pipe calls `consume` on its own thread. Throws DeviceError if the thread cannot be started.
  PiecePipe(std::vector<HostBlock> blocks, Consume consume);
  /// Without `finish` (an exception), waiting pieces are dropped.
  ~PiecePipe();
  PiecePipe(const PiecePipe&) = delete;
  PiecePipe& operator=(const PiecePipe&) = delete;

  /// Waits for the next empty block and returns it. Rethrows what `consume` threw.
  std::span<std::byte> next();
  /// Submits the first `size_bytes` bytes of the block from `next` as the next piece.
  void submit(size_t size_bytes);
  /// Waits until everything has been consumed. Rethrows what `consume` threw.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
