#!/usr/bin/env python3
"""Checks that names of the run file are compared only before `resolve_run`.

    scripts/check_choices.py [root]

A key like parallel.shard has a few names ("none", "optimizer", ...). src/config/choices.h turns them into types; the rest
of src/ reads those of a RunSpec. Prints one line per comparison of such a key, or of a dtype's name, with a text, and
exits 1 if there is any. Keys come from src/config/fields.cpp, the names of dtypes from src/config/choices.h.
"""
import pathlib
import re
import sys

# Folder or file below src/ -> why it may compare names.
EXEMPT = {
    "config/": "says what keys mean together before anything is resolved",
}

KEY = re.compile(r"BRAID_KEY\((\w+), (\w+)\), one_of\(")
# Keys whose names many other things have, too: found only behind the section.
COMMON = {"name"}
DTYPES = re.compile(r"kChoices<DType> =([^;]*);")


def keys_and_dtypes(config):
    """Keys that take one of a list of names, and the names of dtypes."""
    keys = {rf"{section}\.{key}" if key in COMMON else key
            for section, key in KEY.findall((config / "fields.cpp").read_text())}
    dtypes = DTYPES.search((config / "choices.h").read_text())
    return keys, re.findall(r'"([^"]*)"', dtypes[1])


def patterns(keys, dtypes):
    """(pattern, what it finds) for a line of code."""
    key = r"\b(" + "|".join(sorted(keys)) + r")\b"
    dtype = '"(' + "|".join(sorted(dtypes)) + ')"'
    text = r'(?:"|k[A-Z]\w*\b(?!::))'  # a literal, or a constant that stands for one
    return [
        (re.compile(key + r"\s*[!=]=\s*" + text), "{} is compared with a text"),
        (re.compile(r'"\s*[!=]=\s*(?:\w+(?:\.|->))*' + key), "{} is compared with a text"),
        (re.compile(r"(?:\.|->)" + key + r"\.(?:starts_with|ends_with|find|compare)\("), "{} is searched for a text"),
        (re.compile(r"[!=]=\s*" + dtype + "|" + dtype + r"\s*[!=]="), "a dtype is compared by its name"),
    ]


def violations(root):
    """'path:line: reason' for each comparison under root/src."""
    src = root / "src"
    rules = patterns(*keys_and_dtypes(src / "config"))
    for path in sorted(src.rglob("*")):
        relative = path.relative_to(src).as_posix()
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh") or relative.startswith(tuple(EXEMPT)):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("//")[0]
            for pattern, reason in rules:
                found = pattern.search(code)
                if found:
                    yield (f"{path.relative_to(root)}:{number}: {reason.format(found[1])}: read a RunSpec "
                           "(src/plan/run_spec.h), or use choice (src/config/choices.h)")
                    break


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    stale = [entry for entry in EXEMPT if not (root / "src" / entry).exists()]
    found = [f"scripts/check_choices.py: {entry} is exempt and does not exist" for entry in stale] + list(violations(root))
    for line in found:
        print(line)
    print(f"choices: {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
