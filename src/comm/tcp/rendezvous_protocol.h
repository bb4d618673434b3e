#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace braid {

/// The messages between a process and the server of a TcpRendezvous, as frames (frame.h), after
/// the handshake (handshake.h). Its hello says: run, build, world, process, name; its welcome: the
/// name of process 0. Each request has a number that is unique within its process; the reply
/// repeats it.
enum class RendezvousMessage : uint8_t {
  // To the server.
  kPut = 2,  ///< request, key, value -> kDone with 0 or, if the key has a value, 1
  kGet,      ///< request, key -> kDone with the value, once there is one
  kGather,   ///< request, name, whether for all, bytes -> kDone with those of all processes
  kAbort,    ///< reason
  kPing,     ///< -> kPong
  kGoodbye,  ///< the run has ended successfully
  kAsk,      ///< request, question -> kQuestion to all others, and a kAnswered for each of them
  kAnswer,   ///< asking process, its request, whether there is an answer, answer
  // From the server.
  kDone = 80,  ///< request, and its result
  kAborted,    ///< reason
  kPong,
  kQuestion,  ///< asking process, its request, question -> kAnswer
  kAnswered,  ///< request, answering process, whether it has an answer, answer
};

inline constexpr std::string_view kRendezvousMagic = "braid rendezvous 2";
inline constexpr size_t kShownNameBytes = 100;  ///< of a process or a run, in messages
inline constexpr size_t kMaxMessageBytes = (size_t{1} << 30) + 4096;

}  // namespace braid
