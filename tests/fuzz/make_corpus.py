#!/usr/bin/env python3
"""Writes the binary seeds of the fuzzers, small valid files: tests/fuzz/corpus/{index,safetensors}/.

The text seeds (config, program) are written by hand. Run again after a change of a format, and commit the result.
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


SEEDS = {
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
