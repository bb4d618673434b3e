#!/usr/bin/env python3
"""Writes the binary seeds of the fuzzers, small valid inputs: tests/fuzz/corpus/{index,mesh,rendezvous,safetensors}/.

The text seeds (config, launch, program) are written by hand. Run again after a change of a format, and commit the result.
"""
import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"

# Megatron's codes of token types, and their sizes.
UINT8, INT32, UINT16 = 1, 4, 8
SIZES = {UINT8: 1, INT32: 4, UINT16: 2}


def index(code, lengths, boundaries):
    """The size of the .bin, then a Megatron .idx: lengths of the sequences in tokens, boundaries of the documents in
    sequences."""
    offsets = [sum(lengths[:i]) * SIZES[code] for i in range(len(lengths))]
    return (struct.pack("<q", sum(lengths) * SIZES[code]) + b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(boundaries))
            + struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(offsets)}q", *offsets)
            + struct.pack(f"<{len(boundaries)}q", *boundaries))


def safetensors(tensors, metadata=None):
    """A safetensors file: tensors maps a name to (dtype, shape, bytes)."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def frame(kind, body):
    """A frame of a connection between processes."""
    return struct.pack("<IB", len(body), kind) + body


def text(value):
    return struct.pack("<Q", len(value)) + value


def call(op, send_elems, recv_elems, data, number=1, begin=0, count=None, ranks=(0, 1)):
    """A call of rank 1, of f32 elements, as remote_call.cpp packs it."""
    count = len(data) // 4 if count is None else count
    return frame(1, text(b"data") + struct.pack("<BQ", 0, len(ranks)) + struct.pack(f"<{len(ranks)}i", *ranks)
                 + struct.pack("<BqqBqqqq", op, send_elems, recv_elems, 1, 0, 0, 0, 0) + text(b"x") + struct.pack("<qqq", number, begin, count)
                 + data)


# Frames to the server of a rendezvous (rendezvous_protocol.h).
PUT, GET, GATHER, ABORT, PING, GOODBYE, ASK, ANSWER = range(2, 10)
REQUEST = struct.pack("<I", 7)
MAGIC = b"braid rendezvous 2"

SEEDS = {
    "rendezvous/hello": frame(1, MAGIC + text(b"n" * 32) + text(b"hello") + text(b"p" * 32)),
    "rendezvous/put_get": frame(GET, REQUEST + text(b"key")) + frame(PUT, REQUEST + text(b"key") + text(b"value"))
                          + frame(GET, REQUEST + text(b"key")),
    "rendezvous/gather": b"".join(frame(GATHER, REQUEST + text(b"all") + b"\1" + text(bytes([i]))) for i in range(3)),
    "rendezvous/ask_answer": frame(ASK, REQUEST + text(b"where")) + frame(ANSWER, struct.pack("<i", 0) + REQUEST + b"\1" + text(b"there")),
    "rendezvous/ping_abort_goodbye": frame(PING, b"") + frame(ABORT, b"why") + frame(GOODBYE, b""),
    "mesh/all_reduce": call(0, 4, 4, b"\0\0\x80\x3f" * 4),
    "mesh/reduce_scatter": call(2, 4, 2, b"\0\0\x80\x3f" * 2),
    "mesh/three_calls": call(0, 4, 4, b"\0" * 16) + call(0, 4, 4, b"\1" * 16, number=2) + call(0, 4, 4, b"\2" * 16, number=3),
    "mesh/other_group": call(0, 4, 4, b"\0" * 16, ranks=(1, 0)),
    "index/two_documents_u16": index(UINT16, [3, 2], [0, 1, 2]),
    "index/one_document_two_sequences_i32": index(INT32, [5, 7], [0, 2]),
    "index/no_documents": index(UINT16, [], [0]),
    "index/empty_sequence_u8": index(UINT8, [4, 0, 1], [0, 1, 2, 3]),
    "safetensors/empty": safetensors({}),
    "safetensors/one_scalar": safetensors({"step": ("I64", [], struct.pack("<q", 7))}),
    "safetensors/two_tensors": safetensors(
        {"wte": ("F32", [2, 3], struct.pack("<6f", *range(6))), "norm": ("BF16", [2], b"\x80\x3f\x80\x3f")},
        {"format": "pt"}),
    "safetensors/empty_tensor": safetensors({"none": ("F32", [0, 4], b"")}),
}


def main():
    for name, content in SEEDS.items():
        path = CORPUS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
