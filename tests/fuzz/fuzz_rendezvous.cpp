#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/errors.h"
#include "comm/tcp/frame.h"
#include "comm/tcp/handshake.h"
#include "comm/tcp/rendezvous_board.h"

namespace {

constexpr int kNumProcesses = 3;

/// A stranger's first frame.
void say_hello(const braid::Frame& frame) {
  static const braid::HandshakeKey key{.magic = std::string(braid::kRendezvousMagic),
                                       .secret = "which nobody guesses"};
  braid::AcceptedHandshake handshake;
  if (handshake.take_hello(key, frame) == braid::AcceptedHandshake::Answer::kRight) {
    __builtin_trap();
  }
}

/// Frames of three processes in turn, each of which ends its connection as a damaged message does.
void take(braid::RendezvousBoard& board, int process, const braid::Frame& frame) {
  try {
    if (!board.has_left(process)) {
      board.take(process, frame);
    }
  } catch (const braid::DeviceError& error) {
    board.leave(process);
    board.abort(error.what());
  }
}

}  // namespace

/// The bytes that arrive at the server of a rendezvous: before the hello, and after it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  braid::RendezvousBoard board(kNumProcesses);
  for (int process = 0; process < kNumProcesses; ++process) {
    board.come(process, {});
  }
  braid::FrameBuffer in;
  const std::string text(reinterpret_cast<const char*>(data), size);
  int turn = 0;
  try {
    for (size_t begin = 0; begin < text.size(); begin += 64) {  // as pieces that arrive
      in.bytes() += text.substr(begin, 64);
      while (const std::optional<braid::Frame> frame = in.next(braid::kMaxHelloBytes)) {
        take(board, turn++ % kNumProcesses, *frame);
        try {
          say_hello(*frame);
        } catch (const braid::DeviceError&) {
        }
      }
    }
  } catch (const braid::DeviceError&) {  // a length that is too large
  }
  return 0;
}
