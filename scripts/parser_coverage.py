#!/usr/bin/env python3
"""Counts the branches of braid's parsers that the unit tests and the seeds of the fuzzers take, and how many more with the
inputs that fuzzers found (tests/fuzz/kept).

    parser_coverage.py           build in build/coverage (clang 14), run, print a table
    parser_coverage.py --only    print the table of the last run again
    parser_coverage.py --lines   also print the lines with a branch that neither tests nor seeds take

A parser reads what others wrote: files, messages, environment variables. Branches are those of the source, by clang's
source-based coverage: each side of a condition counts, edges of exceptions do not.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
BUILD = SOURCE / "build/coverage"
sys.path.insert(0, str(SOURCE / "tests/fuzz"))
import kept_corpus  # noqa: E402
GOAL = 90

# What each parser consists of, below src/.
PARSERS = {
    "JSON": ["base/json.cpp"],
    "run file": ["config/load.cpp", "config/value.cpp"],
    "safetensors": ["checkpoint/safetensors.cpp"],
    "checkpoint state": ["checkpoint/state_file.cpp"],
    "tensor index": ["checkpoint/tensor_index.cpp", "checkpoint/tensor_index.h"],
    "token files": ["data/indexed_dataset.cpp"],
    "documents": ["data/documents.cpp", "data/text_corpus.cpp", "data/text_lines.cpp", "data/utf8.cpp"],
    "tokenizer": ["data/tokenizer.cpp", "data/sentencepiece_tokenizer.cpp"],
    "HF config": ["hugging_face/model_config.cpp"],
    "HF index": ["hugging_face/tensor_folder.cpp"],
    "metrics": ["report/metrics_file.cpp"],
    "report.json": ["report/run_file.cpp"],
    "frames": ["comm/tcp/frame.cpp", "comm/tcp/handshake.cpp", "comm/tcp/received_parts.cpp"],
    "rendezvous": ["comm/tcp/rendezvous_board.cpp"],
    "mesh": ["comm/tcp/remote_meeting.cpp"],
    "remote call": ["comm/tcp/remote_call.cpp"],
    "launchers": ["launch/environment/find_launch.cpp", "launch/environment/run_secret.cpp"],
    "algorithm cache": ["backends/cuda/algorithm_cache.cpp"],
    "program text": ["ir/text_parser.cpp", "ir/text_cursor.cpp"],
    "profiles": ["sim/profile_reader.cpp"],
}
# Test programs by folder, with the cases that read something.
TESTS = {
    "base": "*", "ir": "*", "data": "*", "checkpoint": "*", "hugging_face": "*", "config": "*", "report": "*",
    "sim": "Profile*:MeasuredModel*:OperandText*",
    "comm": "Arrivals*:Board*:ConnectTo*:Enter*:MeetingKey*:ReceivedParts*:Remote*:SocketTransport*:TcpRendezvous*",
    "launch_environment": "*",
}


def build():
    subprocess.run(["cmake", "--preset", "coverage"], cwd=SOURCE, check=True, stdout=subprocess.DEVNULL)
    targets = ["braid_fuzzers"] + [f"braid_{folder}_tests" for folder in TESTS]
    subprocess.run(["cmake", "--build", BUILD, "--target", *targets], check=True)


def fuzzers():
    names = sorted(path.stem for path in (SOURCE / "tests/fuzz").glob("fuzz_*.cpp"))
    return [BUILD / "tests/fuzz" / name for name in names]


def runs():
    """(name, command) of the tests, and of the fuzzers with their seeds."""
    for folder, cases in TESTS.items():
        program = BUILD / f"tests/braid_{folder}_tests"
        if program.exists():
            yield folder, [program, f"--gtest_filter={cases}", "--gtest_brief=1"]
    for program in filter(pathlib.Path.exists, fuzzers()):
        yield program.name, [program, *kept_corpus.seeds(program.name.removeprefix("fuzz_"))]


def kept_runs():
    """(name, command) of the fuzzers with what they found."""
    for program in filter(pathlib.Path.exists, fuzzers()):
        name = program.name.removeprefix("fuzz_")
        inputs = kept_corpus.unpack(name, BUILD / "kept" / name)
        if inputs:  # without any, it would fuzz
            yield f"kept_{name}", [program, *inputs]


def run(name, command):
    env = dict(os.environ, LLVM_PROFILE_FILE=str(BUILD / f"profiles/{name}-%p.profraw"))
    done = subprocess.run(command, cwd=BUILD / "tests", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{name} ended with status {done.returncode}:\n{done.stdout[-4000:]}")


def programs():
    return [command[0] for _, command in runs()]


def measure():
    """Runs everything; merges what it counted."""
    for folder in ("profiles", "kept"):
        shutil.rmtree(BUILD / folder, ignore_errors=True)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: run(*one), [*runs(), *kept_runs()]))
    profiles = set((BUILD / "profiles").glob("*.profraw"))
    merge("all", profiles)
    merge("seeds", {path for path in profiles if not path.name.startswith("kept_")})


def merge(name, profiles):
    subprocess.run(["llvm-profdata-14", "merge", "-sparse", "-o", BUILD / f"{name}.profdata", *profiles], check=True)


def branches_of(file, lines):
    """By place in the file, whether the branch was taken when its condition was true, and when it was false. A template or an
    inline function has one entry in each program and instance. That of `while (true)` is no branch."""
    places = {}
    for line, column, _, _, true_count, false_count, *_ in file["branches"]:
        if lines[line - 1].startswith("true)", column - 1):
            continue
        taken = places.setdefault((line, column), [False, False])
        taken[0] |= true_count > 0
        taken[1] |= false_count > 0
    return places


def coverage(name):
    objects = [word for program in programs() for word in ("-object", str(program))][1:]
    out = subprocess.run(["llvm-cov-14", "export", "-skip-expansions", f"-instr-profile={BUILD / name}.profdata", *objects],
                         check=True, stdout=subprocess.PIPE).stdout
    # With a compiler cache, names may be relative.
    files = {file["filename"].rpartition("src/")[2]: file for file in json.loads(out)["data"][0]["files"]
             if "/tests/" not in file["filename"]}
    return {path: branches_of(files[path], (SOURCE / "src" / path).read_text().splitlines())
            for paths in PARSERS.values() for path in paths if path in files}


def percent(found, files):
    """Branches taken, all branches, and per cent of them."""
    sides = [side for file in files for taken in found.get(file, {}).values() for side in taken]
    return sum(sides), len(sides), 100 * sum(sides) / max(1, len(sides))


def print_missed(file, places):
    for (line, column), (true_taken, false_taken) in sorted(places.items()):
        if not (true_taken and false_taken):
            never = "neither" if not true_taken and not false_taken else "true" if not true_taken else "false"
            print(f"  src/{file}:{line}:{column} never {never}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", action="store_true", help="print the table of the last run")
    arguments.add_argument("--lines", action="store_true", help="print lines with a branch that was never taken")
    given = arguments.parse_args()
    if not given.only:
        build()
        measure()
    found, with_kept = coverage("seeds"), coverage("all")
    low = 0
    print("parser             taken by tests and seeds   with what fuzzers found")
    for name, files in PARSERS.items():
        taken, of, part = percent(found, files)
        low += part < GOAL
        print(f"{name:<18} {taken:>4} of {of:>4} {part:12.1f}% {percent(with_kept, files)[2]:24.1f}%")
        for file in files if given.lines else ():
            print_missed(file, found.get(file, {}))
    print(f"{len(PARSERS) - low} parsers have at least {GOAL}%, {low} have less")


if __name__ == "__main__":
    main()
