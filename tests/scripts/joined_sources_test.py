#!/usr/bin/env python3
"""Joined sources of a build folder (cmake/BraidUnity.cmake) name their parts as they lie from there, so that the compiler cache
knows them in another clone. Exits 77 (ctest: skipped) if the folder has none.

    tests/scripts/joined_sources_test.py BUILD
"""
import pathlib
import re
import sys


def main():
    joined = sorted(pathlib.Path(sys.argv[1], "joined").glob("*.cpp"))
    if not joined:
        print("each source is compiled by itself")
        return 77
    wrong = [f"{path.name}: {line}" for path in joined for line in path.read_text().splitlines()
             if not re.fullmatch(r'#include "\.\./[^"]+\.cpp"', line)]
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
