#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace braid {

/// What a process and the server of a TcpRendezvous say to each other, as frames (frame.h). Each
/// request has a number of its process's, which comes back in its reply.
enum class RendezvousMessage : uint8_t {
  // To the server.
  kHello = 1,  ///< magic, token, world, process, name: the first one of a connection
  kPut,        ///< request, key, value -> kDone with 0 or, if the key has a value, 1
  kGet,        ///< request, key -> kDone with the value, once there is one
  kGather,     ///< request, name, whether for all, bytes -> kDone with those of all processes
  kAbort,      ///< reason
  kPing,       ///< -> kPong
  kGoodbye,    ///< the run has ended well
  kAsk,        ///< request, question -> kQuestion at all others, and kAnswered for each of theirs
  kAnswer,     ///< asking process, its request, whether there is an answer, answer
  // From the server.
  kWelcome = 64,  ///< name of process 0
  kRefused,       ///< reason
  kDone,          ///< request, and what it asked for
  kAborted,       ///< reason
  kPong,
  kQuestion,  ///< asking process, its request, question -> kAnswer
  kAnswered,  ///< request, answering process, whether it has an answer, answer
};

inline constexpr std::string_view kRendezvousMagic = "braid rendezvous 1";
inline constexpr size_t kMaxHelloBytes = 4096;  ///< before anybody is known
inline constexpr size_t kMaxMessageBytes = (size_t{1} << 30) + 4096;

}  // namespace braid
