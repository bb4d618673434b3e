#!/usr/bin/env python3
"""Writes seeds of the fuzzers.

    make_corpus.py               the small binary ones, valid files: tests/fuzz/corpus/NAME/
    make_corpus.py --large PATH  large ones of 1 MiB each, most of them hostile: PATH/NAME/

The text seeds are written by hand. Run the first form again after a change of a format, and commit the result. scripts/fuzz.sh
runs the second.
"""
import json
import pathlib
import struct
import sys

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


def varint(value):
    """A protocol buffer's number."""
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def field(number, content):
    """A protocol buffer's field of bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def piece(text, kind=1):
    """A SentencePiece model's piece. Kinds: 1 normal, 2 unknown, 3 control, 6 byte."""
    return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", -len(text)) + b"\x18" + varint(kind))


def tokenizer(pieces, byte_fallback=False):
    """A SentencePiece model of the unigram kind, without normalisation. Pieces of kind byte need byte_fallback."""
    start = piece("<unk>", 2) + piece("<s>", 3) + piece("</s>", 3)
    trainer = b"\x18\x01" + (varint(35 << 3) + b"\1" if byte_fallback else b"")
    return start + b"".join(pieces) + field(2, trainer) + field(3, field(1, b"identity"))


def byte_level():
    """A tokenizer.json with a token for each byte, a merge, and one of each component that braid computes."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [chr(0x100 + i) for i in range(256 - len(itself))]
    vocabulary = {token: i for i, token in enumerate([*map(chr, itself), *others, "ab"])}
    split = {"type": "Split", "pattern": {"Regex": r" ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"}, "behavior": "Isolated", "invert": False}
    string = {"type": "Split", "pattern": {"String": "x"}, "behavior": "Removed", "invert": False}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [257]}}}
    return json.dumps({
        "added_tokens": [{"id": 257, "content": "<s>", "special": True, "normalized": False, "lstrip": True, "rstrip": True}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, string, {"type": "Digits", "individual_digits": True},
                                                                {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}]},
        "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b"], "ignore_merges": False}}, separators=(",", ":")).encode()


def algorithm_cache(lines):
    """A file of measured choices, with its FNV-1a checksum."""
    text = "".join(["braid algorithms 1\n", *lines])
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{text}checksum {value:016x}\n".encode()


def frame(kind, body):
    """A frame of a connection between processes."""
    return struct.pack("<IB", len(body), kind) + body


def text(value):
    return struct.pack("<Q", len(value)) + value


# CommOp of op_traits.h.
(ALL_REDUCE, ALL_REDUCE_MAX, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, REDUCE, RING_SHIFT, SEND, RECV, DISPATCH_ROWS,
 COMBINE_ROWS) = range(12)
F32 = 1  # DType of dtype.h


def remote_call(op, send_elems, recv_elems, data, number=1, begin=0, ranks=(0, 1), peer=0, shift=0, rows=(1, 1, 0, 0), has_weights=False,
                count=None):
    """A call of f32 elements, as pack_call writes it, and what it sends: `count` elements, or rows. `rows`: experts, ranks that share
    them, rows of x, rows of y."""
    return (text(b"data") + struct.pack("<BQ", 0, len(ranks)) + struct.pack(f"<{len(ranks)}i", *ranks)
            + struct.pack("<BqqBqqqq", op, send_elems, recv_elems, F32, 0, peer, 0, shift)
            + struct.pack("<qqqqBBq", *rows, F32, has_weights, 0) + text(b"x")
            + struct.pack("<qqq", number, begin, len(data) // 4 if count is None else count) + data)


# Of 2 experts, 3 rows of 2 elements, and room for 4.
DISPATCHED = {"rows": (2, 1, 3, 4), "has_weights": True}
COMBINED = {"rows": (2, 1, 4, 3)}


def call(*values, **more):
    """A frame with a call of rank 1."""
    return frame(1, remote_call(*values, **more))


# Frames to the server of a rendezvous (rendezvous_protocol.h).
PUT, GET, GATHER, ABORT, PING, GOODBYE, ASK, ANSWER = range(2, 10)
REQUEST = struct.pack("<I", 7)
MAGIC = b"braid rendezvous 2"

SEEDS = {
    "rendezvous/hello": frame(1, MAGIC + text(b"n" * 32) + text(b"hello") + text(b"p" * 32)),
    "rendezvous/put_get": frame(GET, REQUEST + text(b"key")) + frame(PUT, REQUEST + text(b"key") + text(b"value"))
                          + frame(GET, REQUEST + text(b"key")),
    "rendezvous/gather": b"".join(frame(GATHER, REQUEST + text(b"all") + b"\1" + text(bytes([i]))) for i in range(3)),
    "rendezvous/twice_in_a_gathering": b"".join(frame(GATHER, REQUEST + text(b"all") + b"\1" + text(b"x")) for i in range(4)),
    "rendezvous/answer_to_nobody": frame(ANSWER, struct.pack("<i", 3) + REQUEST + b"\1" + text(b"there")),
    "rendezvous/ask_answer": frame(ASK, REQUEST + text(b"where")) + frame(ANSWER, struct.pack("<i", 0) + REQUEST + b"\1" + text(b"there")),
    "rendezvous/ping_abort_goodbye": frame(PING, b"") + frame(ABORT, b"why") + frame(GOODBYE, b""),
    "mesh/all_reduce": call(ALL_REDUCE, 4, 4, b"\0\0\x80\x3f" * 4),
    "mesh/reduce_scatter": call(REDUCE_SCATTER, 4, 2, b"\0\0\x80\x3f" * 2),
    "mesh/all_to_all": call(ALL_TO_ALL, 4, 4, b"\0\0\x80\x3f" * 2),
    "mesh/three_calls": b"".join(call(ALL_REDUCE, 4, 4, bytes([i]) * 16, number=i + 1) for i in range(3)),
    "mesh/all_reduce_max": call(ALL_REDUCE_MAX, 4, 4, b"\0\0\x80\x3f" * 4),
    "mesh/rows": call(DISPATCH_ROWS, 6, 8, b"\0\0\x80\x3f" * 3, count=1, **DISPATCHED)
                 + call(COMBINE_ROWS, 8, 6, b"\0\0\x80\x3f" * 4, count=2, **COMBINED),
    "mesh/too_many_rows": call(DISPATCH_ROWS, 6, 8, b"\0\0\x80\x3f" * 6, count=2, **DISPATCHED),
    "mesh/other_group": call(ALL_REDUCE, 4, 4, b"\0" * 16, ranks=(1, 0)),
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
    "tokenizer/byte_level": byte_level(),
    "tokenizer/three_letters": tokenizer([piece(text) for text in ("\u2581", "a", "b", "\u2581a")]),
    "tokenizer/bytes": tokenizer([piece(f"<0x{byte:02X}>", 6) for byte in range(256)]),
    "tokenizer/byte_fallback": tokenizer([piece("\u2581")] + [piece(f"<0x{byte:02X}>", 6) for byte in range(256)], byte_fallback=True),
    "algorithm_cache/two_choices": algorithm_cache(["gemm 64\tsm90\n", "gemm 8\t1 2 3\n"]),
    "algorithm_cache/empty": algorithm_cache([]),
    "remote_call/all_reduce": remote_call(ALL_REDUCE, 2, 2, b"12345678"),
    "remote_call/all_gather": remote_call(ALL_GATHER, 2, 4, b"12345678"),
    "remote_call/reduce_scatter": remote_call(REDUCE_SCATTER, 4, 2, b"12345678", begin=2),
    "remote_call/all_to_all": remote_call(ALL_TO_ALL, 4, 4, b"12345678", begin=2),
    "remote_call/broadcast": remote_call(BROADCAST, 2, 2, b"12345678"),
    "remote_call/reduce": remote_call(REDUCE, 2, 2, b""),  # its root is rank 0
    "remote_call/ring_shift": remote_call(RING_SHIFT, 2, 2, b"12345678", shift=1),
    "remote_call/send": remote_call(SEND, 2, 0, b"12345678", peer=1),
    "remote_call/recv": remote_call(RECV, 0, 2, b"", peer=1),
    "remote_call/dispatch_rows": remote_call(DISPATCH_ROWS, 6, 8, b"123456789012", count=1, **DISPATCHED),
    "remote_call/combine_rows": remote_call(COMBINE_ROWS, 8, 6, b"1234567890123456", count=2, **COMBINED),
    "remote_call/nothing": remote_call(ALL_REDUCE, 0, 0, b"", ranks=(1, 0, 3)),
}

# Readers of JSON documents, of JSON lines, and of JSON behind its size.
JSON = ("hf_config", "hf_index", "json", "profile", "report", "state", "tensor_index")
LINES = ("documents", "metrics")
LARGE_BYTES = 1 << 20


def large_json():
    """(name, text) of documents of half LARGE_BYTES to all of it."""
    n = LARGE_BYTES
    yield "arrays", "[" * n
    yield "closed_arrays", '{"format":' + "[" * (n // 2) + "]" * (n // 2) + "}"
    yield "objects", '{"a":' * (n // 5)
    yield "closed_objects", '{"a":' * (n // 6) + "0" + "}" * (n // 6)
    yield "many_keys", "{" + ",".join(f'"{i}":{{}}' for i in range(n // 24)) + "}"
    yield "many_values", '{"tensors":[' + "[]," * (n // 6) + "0]}"
    yield "long_text", '{"format":"' + "\\u0001\x7f" * (n // 7) + '"}'
    yield "long_number", '{"version":' + "9" * n + "}"


def large_seeds():
    """(path, content)"""
    for name, document in large_json():
        for reader in JSON:
            yield f"{reader}/{name}", document.encode()
        for reader in LINES:
            yield f"{reader}/{name}", f'{{"text":"a"}}\n{document}\n{document}\n'.encode()
        yield f"safetensors/{name}", struct.pack("<Q", len(document)) + document.encode()
    yield "safetensors/many_tensors", safetensors({f"t{i}": ("U8", [1], b"x") for i in range(LARGE_BYTES // 64)})
    yield "config/arrays", b"[train]\nsteps = " + b"[" * LARGE_BYTES
    yield "config/tables", b"".join(b"[a.a%d]\n" % i for i in range(LARGE_BYTES // 12))
    yield "program/brackets", b"task(" * (LARGE_BYTES // 5)
    yield "tokenizer/many_pieces", tokenizer([piece(f"p{i}") for i in range(LARGE_BYTES // 24)])
    nested = b""
    while len(nested) < 1 << 14:  # each level adds its size before all others
        nested = field(1, nested)
    yield "tokenizer/nested", nested + field(2, b"") + field(3, b"")
    yield "tokenizer/groups", field(2, b"\x7b" * LARGE_BYTES) + field(3, b"")
    yield "index/many_sequences", index(UINT8, [1] * (LARGE_BYTES // 20), list(range(LARGE_BYTES // 20 + 1)))
    yield "algorithm_cache/lines", b"braid algorithms 1\n" + b"key\tvalue\n" * (LARGE_BYTES // 10)
    yield "launch/long_number", b"RANK=" + b"9" * LARGE_BYTES + b"\nWORLD_SIZE=2\n"
    yield "launch/many_hosts", (CORPUS / "launch/srun.txt").read_bytes() + b"SLURM_STEP_NODELIST=" + b"node[1-2]," * (LARGE_BYTES // 10)
    yield "launch/many_variables", b"".join(b"V%d=1\n" % i for i in range(LARGE_BYTES // 9))
    yield "mesh/many_ranks", call(ALL_REDUCE, 0, 0, b"", ranks=[0, 1] * (LARGE_BYTES // 16))
    yield "mesh/many_calls", b"".join(call(ALL_REDUCE, 4, 4, bytes(16), number=i + 1) for i in range(LARGE_BYTES // 150))
    yield "rendezvous/many_keys", b"".join(frame(GET, REQUEST + text(b"%d" % i)) for i in range(LARGE_BYTES // 24))
    yield "rendezvous/long_key", frame(PUT, REQUEST + text(b"k" * (LARGE_BYTES // 2)) + text(b"v" * (LARGE_BYTES // 2)))
    yield "remote_call/many_ranks", remote_call(ALL_REDUCE, 0, 0, b"", ranks=[0, 1] * (LARGE_BYTES // 8))


def main():
    folder, seeds = CORPUS, SEEDS.items()
    if len(sys.argv) > 2 and sys.argv[1] == "--large":
        folder, seeds = pathlib.Path(sys.argv[2]), large_seeds()
    for name, content in seeds:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
