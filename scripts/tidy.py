#!/usr/bin/env python3
"""Runs clang-tidy on sources, and not again on those that were clean with the same inputs.

    scripts/tidy.py -p build/asan [-j N] source...

Inputs of a source are all files that the compiler reads for it, its command line, the compiler's predefined macros, the
version of clang-tidy and .clang-tidy. That a source was clean is remembered in the user's cache, as an empty file whose
name is a checksum of them, like compiled files in ccache: a second clone finds it too. What was not clean is not
remembered. Exit status 1 if any source is not clean.

Most of the time goes into headers, so clang-tidy looks at several sources as one file; where that is not clean, at parts of
them, down to one source, where its words are printed.
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
import tempfile
import time

from group_sources import groups_of

KEPT_DAYS = 30  # how long a result is remembered that nobody asks for
MOST_AT_ONCE = 10  # sources in one file


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


def run_clang_tidy(build, source):
    command = ["clang-tidy-14", "-p", build, "--config-file=.clang-tidy", "--quiet", source]
    return subprocess.run(command, capture_output=True, text=True)


def is_clean_together(sources, commands):
    with tempfile.TemporaryDirectory() as folder:
        joined = os.path.join(folder, "joined.cpp")
        pathlib.Path(joined).write_text("".join(pathlib.Path(source).read_text() for source in sources))
        entry = commands[os.path.abspath(sources[0])]
        flags = flags_of(entry["command"], entry["file"])
        pathlib.Path(folder, "compile_commands.json").write_text(json.dumps([
            {"directory": entry["directory"], "file": joined, "command": shlex.join([*flags, "-o", "joined.o", "-c", joined])}]))
        return run_clang_tidy(folder, joined).returncode == 0


def unclean_of(sources, commands, build):
    """Those of the sources that are not clean; prints what clang-tidy found in them. Halves of what is not clean together
    may be."""
    if len(sources) > 1:
        if is_clean_together(sources, commands):
            return []
        middle = len(sources) // 2
        return unclean_of(sources[:middle], commands, build) + unclean_of(sources[middle:], commands, build)
    result = run_clang_tidy(build, sources[0])
    if result.returncode == 0:
        return []
    print(result.stdout + result.stderr, end="", flush=True)
    return sources


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
        keys = pool.map(lambda source: key_of(commands[os.path.abspath(source)], common), arguments.sources)
        remembered = dict(zip(arguments.sources, (cache / key for key in keys)))
        unknown = [source for source in arguments.sources if not remembered[source].exists()]
        # A name that keeps sources apart is not overlooked for long: what is not clean together is looked at in parts.
        entries = {source: commands[os.path.abspath(source)] for source in unknown}
        batches = groups_of(unknown, MOST_AT_ONCE, lambda source: flags_of(entries[source]["command"], entries[source]["file"]))
        unclean = []
        for batch, found in zip(batches, pool.map(lambda batch: unclean_of(batch, commands, arguments.p), batches)):
            unclean += found
            for source in set(batch) - set(found):
                remembered[source].touch()
    for source in set(arguments.sources) - set(unknown):
        remembered[source].touch()
    print(f"{len(remembered)} sources: {len(remembered) - len(unknown)} known to be clean, {len(unknown)} looked at, "
          f"{len(unclean)} not clean")
    return 1 if unclean else 0


if __name__ == "__main__":
    sys.exit(main())
