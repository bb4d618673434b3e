#!/usr/bin/env python3
"""Installs a build of braid, builds examples/library against it, and runs that.

    tests/install/install_test.py BUILD_FOLDER

The same example is then configured with the sources of braid as a part of its project, and its source compiled but not linked:
to build all libraries again would take minutes.
"""
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "library"

# Flags of a user who compiles quite differently from us.
USER_FLAGS = "-O0 -march=x86-64 -D_GLIBCXX_ASSERTIONS"

RUN_FILE = """
[model]
family = "llama"
layers = 2
width = 32
heads = 2
[train]
sequence = 32
microbatch = 1
global_batch = 4
steps = 3
[parallel]
ranks = 2
pipeline = 2
[data]
train = "corpus.txt"
tokenizer = "bytes"
[eval]
interval = 0
"""


def run(*command, cwd=ROOT):
    """Standard output of a command that must succeed."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def configure(build, *options):
    run("cmake", "-S", EXAMPLE, "-B", build, "-G", "Ninja", "-D", "CMAKE_BUILD_TYPE=Release", "-D", "BRAID_CUDA=OFF",
        "-D", "CMAKE_EXPORT_COMPILE_COMMANDS=ON", *options)


def check(condition, message):
    if not condition:
        sys.exit(message)


def user_command(build):
    """The command line that compiles the example: with none of braid's own flags, and no folder of its sources but
    include/."""
    entries = json.loads((build / "compile_commands.json").read_text())
    command = next(entry["command"] for entry in entries if entry["file"] == str(EXAMPLE / "main.cpp"))
    for flag in ("-Wall", "-Wextra", "-march=native", "-ffp-contract", "FMT_", f"-I{ROOT}/src"):
        check(flag not in command, f"{flag} reaches the user's sources: {command}")
    return command


def check_example(program, folder):
    (folder / "corpus.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 200)
    (folder / "run.toml").write_text(RUN_FILE)
    output = run(program, "run.toml", cwd=folder)
    for words in ("rank 1: ", "simulated: ", "layout equals one rank: yes", "step 3: loss ", "finished after step 3: "):
        check(words in output, f"the example does not print {words!r}:\n{output}")
    refused = subprocess.run([program, "run.toml", "train.steps=0"], cwd=folder, capture_output=True, text=True)
    check(refused.returncode == 2 and "train.steps" in refused.stderr, f"a wrong key gives: {refused.stderr}")


def check_installed(build, folder):
    prefix = folder / "prefix"
    run("cmake", "--install", build, "--prefix", prefix)
    headers = [path.name for path in prefix.rglob("*.h")]
    check(headers == ["braid.h"], f"installed headers: {headers}")
    run(prefix / "bin" / "braid", "--version")
    example = folder / "installed"
    configure(example, "-D", f"CMAKE_PREFIX_PATH={prefix}", "-D", f"CMAKE_CXX_FLAGS={USER_FLAGS}")
    run("cmake", "--build", example)
    user_command(example)
    check_example(example / "plan_and_train", folder)


def check_sources(folder):
    example = folder / "sources"
    configure(example, "-D", "FETCHCONTENT_TRY_FIND_PACKAGE_MODE=NEVER", "-D", f"FETCHCONTENT_SOURCE_DIR_BRAID={ROOT}")
    # Not by the build, which would make the libraries first.
    run(*shlex.split(user_command(example)), "-fsyntax-only", cwd=example)
    targets = (example / "build.ninja").read_text()
    check("libbraid_base.a" in targets and "_tests" not in targets and "braid_bench" not in targets,
          "tests or benchmarks are part of the user's project")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="braid_install_") as name:
        folder = pathlib.Path(name)
        check_installed(build, folder)
        check_sources(folder)
    print("an installed braid and its sources serve examples/library")


if __name__ == "__main__":
    main()
