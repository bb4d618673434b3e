#!/usr/bin/env python3
"""Compares the ids of `braid tokenize` with those of Hugging Face's library `tokenizers`.

    tokenizers_test.py BRAID [--python PYTHON]

Tokenizers as of GPT-2, Llama 3 and Qwen, made by the library (tokenizers_side.py, which says of what the text consists): 10 MB of mixed
text, bytes that are not UTF-8 among it, and every code point of the planes in use. All ids must be equal. Prints tokens/s of both, one
thread each. Exits 77 (ctest: skipped) without the packages of `scripts/setup.sh --reference`, or of the Python that --python names.
"""
import argparse
import array
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIDE = pathlib.Path(__file__).with_name("tokenizers_side.py")
TYPES = {4: "i", 8: "H"}  # of Megatron's .idx, as array's


def run(*command, environment=None):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, errors="replace", timeout=500,
                          env=os.environ | (environment or {}))
    if done.returncode != 0:
        raise SystemExit(f"FAILED: {' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def sequences(prefix):
    """The documents of a .bin/.idx pair as lists of ids."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    tokens = array.array(TYPES[index[17]], pathlib.Path(f"{prefix}.bin").read_bytes())
    count = int.from_bytes(index[18:26], "little")
    lengths = array.array("i", index[34:34 + 4 * count])
    begin = 0
    for length in lengths:
        yield tokens[begin:begin + length].tolist()
        begin += length


def reference(path):
    ids = array.array("i", path.read_bytes())
    at = 0
    while at < len(ids):
        yield ids[at + 1:at + 1 + ids[at]].tolist()
        at += 1 + ids[at]


def compare(braid, folder, name):
    begin = time.monotonic()
    run(braid, "tokenize", "--input", folder / "documents.txt", "--document-break", "marker", "--replace-invalid", "--no-eod",
        "--threads", "1", "--tokenizer", folder / name, "--output", folder / f"{name}-braid")
    seconds = time.monotonic() - begin
    ours, theirs = list(sequences(folder / f"{name}-braid")), list(reference(folder / f"{name}.ids"))
    before = 1 if name == "llama3" else 0  # its template begins every document
    wrong = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a[before:] != b]
    print(f"{name}: {sum(map(len, ours)) / seconds:.0f} tokens/s by braid; {len(ours)} documents, {len(wrong)} differ")
    return len(ours) == len(theirs) and not wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("braid", type=pathlib.Path)
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / "build/reference/bin/python")
    arguments = parser.parse_args()
    if not arguments.python.exists():
        print("skipped: no Hugging Face tokenizers in build/reference; `scripts/setup.sh --reference` installs it")
        return 77
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        print(run(arguments.python, SIDE, "large", folder, environment={"RAYON_NUM_THREADS": "1"}), end="")
        results = [compare(arguments.braid.resolve(), folder, name) for name in ("gpt2", "llama3", "qwen")]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
