#!/usr/bin/env python3
"""Checks that relative links in the Markdown files of the repository lead somewhere.

    scripts/check_links.py [root]

Looks at inline links and images ([text](target), with an optional title) and at link definitions ([label]: target), outside
of code. A target with a scheme (https:, mailto:) is not looked at. A path must exist and lie inside the repository; a
fragment (#section) must be a heading of the Markdown file that it names. Prints one line per violation and exits 1 if
there is any.
"""
import os
import pathlib
import re
import sys
import urllib.parse

SKIPPED_FOLDERS = {".git", "build", "node_modules"}

FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
CODE_SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
INLINE = re.compile(r"\]\(\s*<?([^()\s<>]*(?:\([^()\s]*\)[^()\s<>]*)*)>?(?:\s+(?:\"[^\"]*\"|'[^']*'))?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?([^\s<>]+)>?")
SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*:|//)")
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")


def markdown_files(root):
    """All *.md below root, without build folders and the like."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in SKIPPED_FOLDERS)
        for name in sorted(names):
            if name.endswith(".md"):
                yield pathlib.Path(folder) / name


def lines_outside_code(text):
    """(line number, line) of the lines that are not in a fenced block."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        found = FENCE.match(line)
        if fence is None and found:
            fence = found.group(1)
        elif fence is not None:
            if found and found.group(1).startswith(fence) and line.strip() == found.group(1):
                fence = None
        else:
            yield number, line


def links(text):
    """(line number, target) of each link."""
    for number, line in lines_outside_code(text):
        line = CODE_SPAN.sub("", line)
        for pattern in (INLINE, DEFINITION):
            for found in pattern.finditer(line):
                yield number, found.group(1)


def anchors(text):
    """The fragments that the headings of a Markdown text make, as GitHub names them."""
    used = {}
    for _, line in lines_outside_code(text):
        found = HEADING.match(line)
        if found:
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found.group(1)).replace("`", "")
            name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
            count = used.get(name, 0)
            used[name] = count + 1
            yield name if count == 0 else f"{name}-{count}"


def fault(root, source, target):
    """Why the link is broken; None if it is not."""
    path_text, _, fragment = urllib.parse.unquote(target).partition("#")
    if path_text.startswith("/"):
        return "is absolute: link relative to the file"
    path = (source.parent / path_text).resolve() if path_text else source
    if not path.is_relative_to(root):
        return "leads out of the repository"
    if not path.exists():
        return "does not exist"
    if fragment and path.suffix == ".md" and fragment not in set(anchors(path.read_text())):
        return "names a heading that does not exist"
    return None


def violations(root):
    """'path:line: reason' for each broken link below root."""
    for source in markdown_files(root):
        for number, target in links(source.read_text()):
            if SCHEME.match(target):
                continue
            reason = fault(root, source, target)
            if reason:
                yield f"{source.relative_to(root)}:{number}: link {target} {reason}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"links: {len(found)} broken")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
