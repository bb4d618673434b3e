#!/usr/bin/env python3
"""Counts the branches of braid's parsers that the unit tests and the kept inputs of the fuzzers take.

    parser_coverage.py           build in build/coverage (clang 14), run, print a table
    parser_coverage.py --only    print the table of the last run again
    parser_coverage.py --lines   also print the lines with a branch that was never taken

A parser reads what others wrote: files, messages, environment variables. Branches are those of the source, by clang's
source-based coverage: each side of a condition counts, edges of exceptions do not.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
BUILD = SOURCE / "build/coverage"
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
    "sim": "Profile*:MeasuredModel*", "comm": "Arrivals*:ConnectTo*:Enter*:OperandText*:ReceivedParts*:Remote*:SocketTransport*:TcpRendezvous*",
    "launch": "FindLaunch*:RunSecret*",
}


def build():
    subprocess.run(["cmake", "--preset", "coverage"], cwd=SOURCE, check=True, stdout=subprocess.DEVNULL)
    targets = ["braid_fuzzers"] + [f"braid_{folder}_tests" for folder in TESTS]
    subprocess.run(["cmake", "--build", BUILD, "--target", *targets], check=True)


def fuzzers():
    names = sorted(path.stem for path in (SOURCE / "tests/fuzz").glob("fuzz_*.cpp"))
    return [BUILD / "tests/fuzz" / name for name in names]


def runs():
    """(name, command) of everything that counts."""
    for folder, cases in TESTS.items():
        program = BUILD / f"tests/braid_{folder}_tests"
        if program.exists():
            yield folder, [program, f"--gtest_filter={cases}", "--gtest_brief=1"]
    for program in filter(pathlib.Path.exists, fuzzers()):
        name = program.name.removeprefix("fuzz_")
        seeds = sorted((SOURCE / "tests/fuzz/corpus" / name).rglob("*"))
        if name == "program":
            seeds += sorted(SOURCE.glob("tests/programs/*")) + sorted(SOURCE.glob("tests/reject/*"))
        yield program.name, [program, *(seed for seed in seeds if seed.is_file())]


def run(name, command):
    env = dict(os.environ, LLVM_PROFILE_FILE=str(BUILD / f"profiles/{name}-%p.profraw"))
    done = subprocess.run(command, cwd=BUILD / "tests", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{name} ended with status {done.returncode}:\n{done.stdout[-4000:]}")


def programs():
    return [command[0] for _, command in runs()]


def measure():
    """Runs everything; merges what it counted."""
    profiles = BUILD / "profiles"
    subprocess.run(["rm", "-rf", profiles], check=True)
    profiles.mkdir()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: run(*one), runs()))
    subprocess.run(["llvm-profdata-14", "merge", "-sparse", "-o", BUILD / "all.profdata", *profiles.glob("*.profraw")], check=True)


def branches_of(file):
    """By place in the file, whether the branch was taken when its condition was true, and when it was false. A template or an
    inline function has one entry in each program and instance."""
    places = {}
    for line, column, _, _, true_count, false_count, *_ in file["branches"]:
        taken = places.setdefault((line, column), [False, False])
        taken[0] |= true_count > 0
        taken[1] |= false_count > 0
    return places


def coverage():
    objects = [word for program in programs() for word in ("-object", str(program))][1:]
    out = subprocess.run(["llvm-cov-14", "export", "-skip-expansions", f"-instr-profile={BUILD / 'all.profdata'}", *objects],
                         check=True, stdout=subprocess.PIPE).stdout
    # With a compiler cache, names may be relative.
    return {file["filename"].rpartition("src/")[2]: branches_of(file) for file in json.loads(out)["data"][0]["files"]
            if "/tests/" not in file["filename"]}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", action="store_true", help="print the table of the last run")
    arguments.add_argument("--lines", action="store_true", help="print lines with a branch that was never taken")
    given = arguments.parse_args()
    if not given.only:
        build()
        measure()
    found = coverage()
    low = 0
    for name, files in PARSERS.items():
        by_file = {file: found.get(file, {}) for file in files}
        sides = [side for places in by_file.values() for taken in places.values() for side in taken]
        if not sides:
            print(f"{name:<18} not built")
            low += 1
            continue
        percent = 100 * sum(sides) / len(sides)
        low += percent < GOAL
        print(f"{name:<18} {sum(sides):>4} of {len(sides):>4} {percent:6.1f}%")
        for file, places in by_file.items() if given.lines else ():
            for (line, column), (true_taken, false_taken) in sorted(places.items()):
                if not (true_taken and false_taken):
                    never = "neither" if not true_taken and not false_taken else "true" if not true_taken else "false"
                    print(f"  src/{file}:{line}:{column} never {never}")
    print(f"{len(PARSERS) - low} parsers have at least {GOAL}%, {low} have less")


if __name__ == "__main__":
    main()
