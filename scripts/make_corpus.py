#!/usr/bin/env python3
"""Writes the demo's corpus: the entries of two English dictionaries of computing from Debian packages (dict-jargon: the
Jargon File, public domain; dict-foldoc: FOLDOC, GNU FDL), one document per entry, a line "%" before each.

usage: make_corpus.py OUTPUT
"""
import gzip
import os
import sys

FOLDER = "/usr/share/dictd"
NAMES = ["jargon", "foldoc"]
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def number(text):
    """Numbers of a dictd index are written in base 64, most significant digit first."""
    value = 0
    for digit in text:
        value = value * 64 + DIGITS.index(digit)
    return value


def entries(name):
    """Texts of a dictionary's entries in file order. Several headwords may lead to one entry; the packages' own notices, under
    headwords "00-database...", are left out."""
    with gzip.open(f"{FOLDER}/{name}.dict.dz", "rb") as file:
        data = file.read()
    spans = set()
    with open(f"{FOLDER}/{name}.index", encoding="utf-8") as file:
        for line in file:
            headword, begin, size = line.rstrip("\n").split("\t")[:3]
            if not headword.startswith(("00-database", "00database")):
                spans.add((number(begin), number(size)))
    for begin, size in sorted(spans):
        yield data[begin : begin + size].decode("utf-8").strip("\n")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    output = sys.argv[1]
    for name in NAMES:
        for ending in ("dict.dz", "index"):
            path = f"{FOLDER}/{name}.{ending}"
            if not os.path.exists(path):
                sys.exit(f"make_corpus.py: {path} is missing: apt-get install dict-{name}")
    os.makedirs(os.path.dirname(output) or ".", exist_ok=True)
    with open(output + ".tmp", "w", encoding="utf-8") as file:
        for name in NAMES:
            for text in entries(name):
                file.write(f"%\n{text}\n")
    os.replace(output + ".tmp", output)


if __name__ == "__main__":
    main()
