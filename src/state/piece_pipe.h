#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backends/host_block.h"

namespace braid {

/// Blocks of memory that one thread fills and another empties, in the order in which they were
/// filled: the next one is filled while the last one is emptied.
///   while there is more:  fill(pipe.next()), pipe.submit(size)
///   pipe.finish()
/// All calls come from one thread.
class PiecePipe {
 public:
  using Consume = std::function<void(std::span<const std::byte> piece)>;

  /// At least one block, of any sizes; with two or more, filling and emptying run beside each
  /// other. `consume` is called on a thread of the pipe's own. Throws DeviceError if there is no
  /// thread to be had.
  PiecePipe(std::vector<HostBlock> blocks, Consume consume);
  /// Without `finish` (an exception), pieces that wait are dropped.
  ~PiecePipe();
  PiecePipe(const PiecePipe&) = delete;
  PiecePipe& operator=(const PiecePipe&) = delete;

  /// The next block to fill, once it has been emptied. Rethrows what `consume` threw.
  std::span<std::byte> next();
  /// The first `size_bytes` bytes of the block from `next` are the next piece.
  void submit(size_t size_bytes);
  /// Waits until everything has been consumed. Rethrows what `consume` threw.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
