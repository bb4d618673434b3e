#pragma once

#include "ir/program.h"
#include "ops/op.h"

namespace braid {

/// offload: x -> y, equal shapes and dtypes; copies bytes from the device to the host: y is a
/// buffer with Placement::kHost. reload: x -> y; copies them back: x is the buffer on the host.
///
/// undefine: -> y; makes the content of y undefined. It does no work; executors only keep its place
/// in the order. It transfers the memory of a buffer between streams: a buffer that a copy stream
/// still reads returns to the stream that made it (which then waits for that copy), and a buffer
/// that a copy stream will write is taken from the stream that will read it. Without it, no stream
/// would know when the bytes are free, and no two such buffers could share memory.
extern const OpDefinition kOffloadOp;
extern const OpDefinition kReloadOp;
extern const OpDefinition kUndefineOp;

/// "undefine" of all elements of the buffer.
OpSpec undefine_spec(const Buffer& buffer);

/// True for ops that executors skip.
bool does_nothing(const OpSpec& spec);

}  // namespace braid
