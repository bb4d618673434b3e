#!/usr/bin/env python3
"""Runs clang-tidy on sources, and not again on those that were clean with the same inputs.

    scripts/tidy.py -p build/asan [-j N] source...

Inputs of a source are all files that the compiler reads for it, its command line, the compiler's predefined macros, the
version of clang-tidy and .clang-tidy. That a source was clean is remembered in the user's cache, as an empty file whose
name is a checksum of them, like compiled files in ccache: a second clone finds it too. What was not clean is not
remembered. Exit status 1 if any source is not clean.
"""
import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

KEPT_DAYS = 30  # how long a result is remembered that nobody asks for


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-p", metavar="BUILD", required=True, help="folder with compile_commands.json, of clang")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="sources at once (default 2)")
    parser.add_argument("sources", nargs="+")
    return parser.parse_args()


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "braid" / "tidy"


def forget_unused(folder):
    for entry in folder.iterdir():
        if time.time() - entry.stat().st_mtime > KEPT_DAYS * 86400:
            entry.unlink(missing_ok=True)


def checked_output(command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


@functools.cache
def checksum(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def flags_of(command, source):
    """The compiler and its options, without the source and what is written."""
    words = shlex.split(command)
    at = words.index("-o")
    return tuple(word for word in words[:at] + words[at + 2:] if word != "-c" and word != source)


@functools.cache
def predefined_macros(flags):
    """What options such as -march=native mean on this machine."""
    return checked_output([*flags, "-dM", "-E", "-x", "c++", os.devnull])


def files_read(entry, flags):
    """The source and all its headers, by the compiler's own list of them."""
    rule = checked_output([*flags, "-M", "-MT", "inputs", entry["file"]], cwd=entry["directory"])
    names = shlex.split(rule.replace("\\\n", " ").removeprefix("inputs:"))
    return sorted({os.path.normpath(os.path.join(entry["directory"], name)) for name in names})


def key_of(entry, common):
    """Checksum of the inputs of one source; paths below the current folder are relative, for the next clone."""
    flags = flags_of(entry["command"], entry["file"])
    lines = [common, predefined_macros(flags), entry["file"], shlex.join(flags)]
    lines += [f"{path} {checksum(path)}" for path in files_read(entry, flags)]
    return hashlib.sha256("\n".join(lines).replace(os.getcwd() + "/", "").encode()).hexdigest()


def is_clean(source, entry, build, common, cache):
    """Whether the source is clean, and whether clang-tidy had to look; prints what it found."""
    remembered = cache / key_of(entry, common)
    if remembered.exists():
        remembered.touch()
        return True, False
    result = subprocess.run(["clang-tidy-14", "-p", build, "--quiet", source], capture_output=True, text=True)
    if result.returncode == 0:
        remembered.touch()
    else:
        print(result.stdout + result.stderr, end="", flush=True)
    return result.returncode == 0, True


def main():
    arguments = parse_arguments()
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    forget_unused(cache)
    commands = {entry["file"]: entry for entry in json.loads(pathlib.Path(arguments.p, "compile_commands.json").read_text())}
    missing = [source for source in arguments.sources if os.path.abspath(source) not in commands]
    if missing:
        print(f"tidy.py: {missing[0]} is not in {arguments.p}/compile_commands.json: configure that folder again")
        return 1
    common = checked_output(["clang-tidy-14", "--version"]) + checksum(".clang-tidy")
    with concurrent.futures.ThreadPoolExecutor(arguments.j) as pool:
        results = list(pool.map(
            lambda source: is_clean(source, commands[os.path.abspath(source)], arguments.p, common, cache), arguments.sources))
    looked_at = sum(looked for _, looked in results)
    unclean = sum(not clean for clean, _ in results)
    print(f"{len(results)} sources: {len(results) - looked_at} known to be clean, {looked_at} looked at, {unclean} not clean")
    return 1 if unclean else 0


if __name__ == "__main__":
    sys.exit(main())
