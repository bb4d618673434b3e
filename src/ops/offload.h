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
///
/// await: x ->; does no work either. Later tasks of its stream run after what wrote x, on whichever
/// stream that was. So compute waits for communication that is not to run beside it.
extern const OpDefinition kOffloadOp;
extern const OpDefinition kReloadOp;
extern const OpDefinition kUndefineOp;
extern const OpDefinition kAwaitOp;

/// "undefine" of all elements of the buffer.
OpSpec undefine_spec(const Buffer& buffer);

/// "await" of that many elements of the buffer.
OpSpec await_spec(const Buffer& buffer, int64_t num_elems);

/// True for ops that executors skip.
bool does_nothing(const OpSpec& spec);
/// True for those of them that make their operand undefined.
bool undefines(const OpSpec& spec);

}  // namespace braid
