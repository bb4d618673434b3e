#!/usr/bin/env python3
"""Checks that code asks ops for what it wants to know instead of comparing their names.

    scripts/check_op_names.py [root]

Prints one line per violation and exits 1 if there is any. src/ops and folders called kernels may name ops; elsewhere a
task is made with kLinearOp.name and the like, and what a pass wants to know is a field of OpDefinition (src/ops/op.h).
"""
import pathlib
import re
import sys

# (path below root, literal) -> why it may stand there although an op is called so. Must still be needed.
EXEMPT = {
    ("src/config/choices.h", "all_gather"): "value of the key parallel.context_method",
    ("src/model/forward.h", "sequence_losses"): "value of a graph, the results of that op",
}

DEFINITION = re.compile(r'^const OpDefinition k\w+Op\{\s*\.name = "(\w+)"', re.MULTILINE)
COMPARISONS = [
    (re.compile(r'\bop(?:\.name)?\s*\.\s*(?:starts_with|ends_with|find|contains|substr|compare)\s*\('), "looks into the name of an op"),
    (re.compile(r'\bop(?:\.name)?\s*(?:\(\w*\)\s*)?[=!]=\s*"'), "compares the name of an op"),
    (re.compile(r'"\s*[=!]=\s*(?:\w+(?:\.|->))*op\b'), "compares the name of an op"),
    (re.compile(r'[=!]=\s*&?k\w+Op\b'), "compares with an op"),
    (re.compile(r'\bk\w+Op(?:\.name)?\s*[=!]='), "compares with an op"),
]
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def op_names(root):
    """The names of all ops, as their definitions say."""
    return {name for path in (root / "src" / "ops").glob("*.cpp") for name in DEFINITION.findall(path.read_text())}


def without_comments(text):
    """The text with comments as blanks, so that places stay what they are."""
    def blank(found):
        return re.sub(r"[^\n]", " ", found.group()) if found.group().startswith("/") else found.group()
    return re.sub(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', blank, text, flags=re.DOTALL)


def is_free(relative):
    return relative.parts[:2] == ("src", "ops") or "kernels" in relative.parts


def literals(code, names):
    """(place, name) of literals that mean an op. A name of one word may mean something else, unless the line has an op."""
    for found in LITERAL.finditer(code):
        begin = code.rfind("\n", 0, found.start()) + 1
        line = code[begin:code.find("\n", found.end())]
        if found.group(1) in names and ("_" in found.group(1) or re.search(r"\bop\b", LITERAL.sub("", line))):
            yield found.start(), found.group(1)


def file_violations(path, relative, names, used):
    """(line, reason) for one file. Adds the exemptions that it needs to `used`."""
    code = without_comments(path.read_text())
    for pattern, reason in COMPARISONS:
        for found in pattern.finditer(code):
            yield code.count("\n", 0, found.start()) + 1, f"{reason}: ask for a field of OpDefinition"
    for place, name in literals(code, names):
        key = (relative.as_posix(), name)
        if key in EXEMPT:
            used.add(key)
        else:
            yield code.count("\n", 0, place) + 1, f'"{name}" names an op: ask for a field of OpDefinition, or use the op\'s constant'


def violations(root):
    names, used = op_names(root), set()
    for path in sorted((root / "src").rglob("*")):
        relative = path.relative_to(root)
        if path.suffix in (".h", ".cpp", ".cu", ".cuh") and not is_free(relative):
            found = dict(reversed(list(file_violations(path, relative, names, used))))  # one reason a line
            for line, reason in sorted(found.items()):
                yield f"{relative}:{line}: {reason}"
    for path, name in EXEMPT:
        if (root / path).is_file() and (path, name) not in used:
            yield f'scripts/check_op_names.py: the exemption of "{name}" in {path} is not needed'


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"op names: {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
