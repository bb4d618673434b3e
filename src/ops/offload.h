#pragma once

#include "ir/program.h"
#include "ops/op.h"

namespace braid {

/// offload: x -> y, equal shapes and dtypes; copies bytes from the device to the host: y is a
/// buffer with Placement::kHost. reload: x -> y; copies them back: x is the one on the host.
///
/// undefine: -> y; y holds nothing defined afterwards. Does nothing: executors only keep its place
/// in the order. So a buffer that a copy stream still reads comes back to the stream that made it
/// (which then waits for that copy), and one that a copy stream will write is taken from the stream
/// that will read it; without that, no stream could know when its bytes are free, and no two such
/// buffers could share any.
extern const OpDefinition kOffloadOp;
extern const OpDefinition kReloadOp;
extern const OpDefinition kUndefineOp;

/// "undefine" of all elements of such a buffer.
OpSpec undefine_spec(const Buffer& buffer);

/// True for what executors pass over.
bool does_nothing(const OpSpec& spec);

}  // namespace braid
