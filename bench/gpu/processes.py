#!/usr/bin/env python3
"""Runs of which each rank is a process, on the GPUs of this machine (or its CPU): the same bits as in one process, whatever carries
the bytes and however late single ranks are; and what a rank that is killed or stopped does to the others.

usage: processes.py --bin FOLDER --results FOLDER [--device cuda|cpu] [--ranks N] [--only NAME...] [--steps N] [--model NAME]

--model: what the runs with late ranks and with blows train. With experts, ranks have different ones and wait for each other in exchanges of rows.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import bounded_run
import gpu_bench
from gpu_bench import Failure

LIMIT_S = 180  # of one run; all of them take seconds
END_LIMIT_S = 30  # from the blow to the end of all processes
SILENCE_S = 4  # runtime.timeout_s of runs with a blow: a rank that says nothing for so long is missed
SKIPPED = 0

# What each case adds to the run file below. Between processes, copies write into memory that CUDA IPC maps.
CASES = {
    "data": {},
    "optimizer": {"parallel.shard": "optimizer"},
    "parameters": {"parallel.shard": "parameters"},
    "tensor": {"parallel.tensor": 2, "parallel.sequence_parallel": "true"},
    "pipeline": {"parallel.pipeline": 2},
}
ENGINES = ["sm", "copy", "nccl_copy"]
# Of runs with late ranks and with blows: parameters are gathered in each microbatch, or each rank has its own experts ({ranks}).
SHARDED = {"parallel.shard": "parameters"}
MODELS = {
    "dense": SHARDED,
    "experts": {"model.experts": 8, "model.experts_per_token": 2, "model.expert_ffn": 128, "parallel.shard": "optimizer",
                "moe.capacity": 1.5, "parallel.expert": "{ranks}"},
    # FP8 copies are in blocks of 128 x 128
    "fp8": {**SHARDED, "train.fp8": "block", "model.width": 256, "model.ffn": 768, "train.sequence": 128},
    "hybrid": {**SHARDED, "model.family": "nemotron_h", "model.pattern": "M-M*-", "model.mamba_num_heads": 8,
               "model.mamba_head_dim": 32, "model.ssm_state_size": 32, "model.mamba_n_groups": 2, "model.mamba_chunk_size": 64},
}
BLOWS = {"kill_last": (-1, signal.SIGKILL), "kill_first": (0, signal.SIGKILL), "stop_last": (-1, signal.SIGSTOP),
         "stop_first": (0, signal.SIGSTOP)}
CHECKS = ["same_bits", "late_ranks", *BLOWS]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="build folder, or folder of the programs")
    parser.add_argument("--results", required=True, help="folder of raw.jsonl, which is appended to")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--ranks", type=int, help="an even number (2)", default=2)
    parser.add_argument("--only", action="append", choices=CHECKS, help="only this check; may be repeated")
    parser.add_argument("--steps", type=int, default=200, help="late_ranks: steps of a run (200)")
    parser.add_argument("--model", choices=MODELS, default="dense", help="of late_ranks and blows (dense)")
    return parser.parse_args()


def corpus():
    source = random.Random(3)
    words = ["the cat", "a dog", "my bird", "sees", "hears", "finds", "likes", "always", "quietly"]
    return "".join(" ".join(source.choice(words) for _ in range(6)) + (".\n\n" if i % 3 == 2 else ".\n") for i in range(3000))


def run_file(device, ranks):
    dtype = "bfloat16" if device == "cuda" else "float32"
    width, sequence = (256, 128) if device == "cuda" else (32, 32)
    return (f"[model]\nwidth = {width}\nheads = 4\n[train]\nsequence = {sequence}\nmicrobatch = 2\nglobal_batch = {4 * ranks}\n"
            f"steps = 12\ndtype = \"{dtype}\"\n[optimizer]\nschedule = \"constant\"\n[parallel]\nranks = {ranks}\n"
            "[data]\ntrain = \"corpus.txt\"\nsplit = \"90,10,0\"\n[eval]\ninterval = 0\n[checkpoint]\nkeep = 0\n[logging]\ninterval = 1\n"
            f"[runtime]\ndevice = \"{device}\"\nthreads = 1\n")


def say(what):
    """Progress: checks take minutes."""
    print(f"  {what}", file=sys.stderr, flush=True)


class Runs:
    """Runs of `braid train` in a folder of their own, with a cache of algorithms of their own."""

    LAYERS = {"model.layers": 4}  # of models without a pattern, which says how many there are

    def __init__(self, arguments, folder):
        self.braid = gpu_bench.find_program(arguments.bin.resolve(), "braid")
        self.arguments, self.folder = arguments, pathlib.Path(folder)
        (self.folder / "corpus.txt").write_text(corpus(), encoding="utf-8")
        (self.folder / "run.toml").write_text(run_file(arguments.device, arguments.ranks), encoding="utf-8")
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")}

    def layout(self):
        """Settings of runs with late ranks and with blows."""
        return {key: self.arguments.ranks if value == "{ranks}" else value for key, value in MODELS[self.arguments.model].items()}

    def engines(self):
        """Of runs with late ranks: exchanges of rows map the memory of ranks, which NCCL's windows do not allow."""
        return [engine for engine in ENGINES if not (self.arguments.model == "experts" and engine == "nccl_copy")]

    def command(self, name, processes, settings, options=()):
        if "model.pattern" not in settings:
            settings = {**self.LAYERS, **settings}
        settings = {"logging.run_folder": name, "logging.format": "megatron", "runtime.processes": processes, **settings}
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return [str(self.braid), "train", "run.toml", *words, *map(str, options)]

    def train(self, name, processes, settings, options=()):
        """The output of a run that must succeed."""
        return self.finish(self.start(name, processes, settings, options))

    def start(self, name, processes, settings, options=()):
        """A run whose output goes to NAME.out and NAME.err."""
        tag = uuid.uuid4().hex
        out, err = self.folder / f"{name}.out", self.folder / f"{name}.err"
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen([*bounded_run.DIES_WITH_PARENT, *self.command(name, processes, settings, options)], cwd=self.folder,
                                       stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file,
                                       env={**self.environment, bounded_run.TAG: tag})
        process.tag, process.out, process.err, process.name, process.begin = tag, out, err, name, time.monotonic()
        return process

    def finish(self, process, limit_s=LIMIT_S):
        """Its output; Failure unless it ends well in time. Nothing of it is left."""
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = f"none after {limit_s} s"
        finally:
            bounded_run.end_all(process.tag)
            process.wait()
        if status != 0:
            raise Failure(f"run {process.name} ended with status {status}:\n" + bounded_run.tail(process.out.read_text() + process.err.read_text()))
        say(f"run {process.name}: {time.monotonic() - process.begin:.0f} s")
        return process.out.read_text()

    def numbers(self, name):
        """Losses and norms of all steps, as they were written."""
        with (self.folder / name / "metrics.jsonl").open(encoding="utf-8") as lines:
            return [(key, value) for line in map(json.loads, lines) for key, value in sorted(line.items())
                    if "loss" in key or "norm" in key]

    def newest(self, name):
        folders = sorted((self.folder / name / "checkpoints").glob("step_*"))
        if not folders:
            raise Failure(f"run {name} has left no checkpoint")
        return folders[-1]

    def tensors(self, name):
        """Bytes of the newest checkpoint, by file."""
        newest = self.newest(name)
        found = {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}
        if not found:
            raise Failure(f"{newest} has no tensors")
        return newest.name, found

    def expect_same(self, a, b):
        numbers = self.numbers(a), self.numbers(b)
        if not numbers[0]:
            raise Failure(f"run {a} has no losses")
        if numbers[0] != numbers[1]:
            where = next((i for i, (x, y) in enumerate(zip(*numbers)) if x != y), min(map(len, numbers)))
            raise Failure(f"runs {a} and {b} differ from number {where} of {len(numbers[0])} and {len(numbers[1])} on: "
                          f"{numbers[0][where:where + 1]} and {numbers[1][where:where + 1]}")
        self.expect_same_tensors(a, b)

    def expect_same_tensors(self, a, b):
        (step_a, tensors_a), (step_b, tensors_b) = self.tensors(a), self.tensors(b)
        if step_a != step_b or tensors_a != tensors_b:
            differing = sorted(name for name in tensors_a.keys() | tensors_b.keys() if tensors_a.get(name) != tensors_b.get(name))
            raise Failure(f"checkpoints {a}/{step_a} and {b}/{step_b} differ in {', '.join(differing[:3]) or 'their steps'}")

    def clear(self):
        for path in self.folder.iterdir():
            if path.is_dir() and path.name != "cache":
                shutil.rmtree(path)


def check_same_bits(runs):
    """One process and several, for each engine; the engines that only move bytes otherwise also among themselves."""
    facts = []
    for name, settings in CASES.items():
        # Ranks that meet a product for the first time may measure different algorithms; from the second run on all read one file.
        runs.train("first", "one", {**settings, "train.steps": 1})
        for engine in ENGINES:
            chosen = {**settings, "overlap.comm_engine": engine}
            runs.train(f"one_{engine}", "one", chosen)
            output = runs.train(f"several_{engine}", "per_rank", chosen)
            runs.expect_same(f"one_{engine}", f"several_{engine}")
            notes = [line for line in output.splitlines() if "SMs do the communication" in line or "no NCCL windows" in line]
            facts.append(f"{name} {engine}: the same" + "".join(f"; {note.strip()}" for note in notes))
        runs.expect_same("several_sm", "several_nccl_copy")
        runs.clear()
    return facts


def ranks_of(launcher):
    """Process ids by rank of those that a launcher has started."""
    children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="utf-8").split()
    found = {}
    for child in children:
        match = re.search(rb"(?:^|\0)RANK=(\d+)\0", pathlib.Path(f"/proc/{child}/environ").read_bytes() + b"\0")
        if match:
            found[int(match[1])] = int(child)
    return found


def wait_for_steps(process, steps):
    """The processes of the ranks, once the log has so many steps."""
    deadline = time.monotonic() + LIMIT_S
    while process.out.read_text().count("] iteration ") < steps:
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failure(f"run {process.name} has not come to step {steps}:\n" + bounded_run.tail(process.err.read_text()))
        time.sleep(0.02)
    return ranks_of(process.pid)


def is_there(pid):
    """Whether a process runs, stopped ones included."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def check_late_ranks(runs):
    """Ranks are stopped for some milliseconds again and again, at any moment: no bit changes."""
    facts = []
    for engine in runs.engines():
        settings = {**runs.layout(), "overlap.comm_engine": engine, "train.steps": runs.arguments.steps}
        runs.train("first", "per_rank", {**settings, "train.steps": 1})
        runs.train("in_time", "per_rank", settings)
        process = runs.start("late", "per_rank", settings)
        source, stops = random.Random(11), 0
        try:
            ranks = sorted(wait_for_steps(process, 1).values())
            while process.poll() is None and ranks:
                pid = source.choice(ranks)
                send(pid, signal.SIGSTOP)
                time.sleep(source.uniform(0.001, 0.03))
                send(pid, signal.SIGCONT)
                stops += 1
                time.sleep(source.uniform(0, 0.02))
        finally:
            runs.finish(process)
        runs.expect_same("in_time", "late")
        facts.append(f"{engine}: {runs.arguments.steps} steps with {stops} stops of ranks, the same")
        runs.clear()
    return facts


# Either a task of communication waited for the rank, or the host did: a GPU finishes the work that it got before its host was stopped.
# In the second case, ranks on the CPU do not name the last task.
WAITED = r"stream \S+, task \d+ \(.+?\): (in group |rank \d+ waited )"
LAST = {"cuda": r"in which no task waits \(the last was stream \S+, task \d+ \(.+?\) in group [^)]+\): ",
        "cpu": r"in which no task waits: "}


def check_said(said, rank, device, number):
    """That a message names who is missing, and a task and its group."""
    if not re.search(rf"rank {rank}( \([^)]*\) has (ended|not answered)|: does not answer)", said):
        raise Failure(f"rank {rank} is not named: {said}")
    must_wait = device == "cuda" and number == signal.SIGKILL
    if not re.search(WAITED if must_wait else f"{WAITED}|{LAST[device]}", said):
        raise Failure(f"no task and group are named: {said}")


def check_blow(runs, rank, number):
    """All processes end soon and say who is missing and where, and the run goes on from its last checkpoint as if nothing had happened."""
    rank = rank % runs.arguments.ranks
    # GPUs: steps of many microbatches, so that a blow finds ranks in a step, and seldom at a checkpoint.
    batch = (64 if runs.arguments.device == "cuda" else 4) * runs.arguments.ranks
    settings = {**runs.layout(), "train.steps": 1000000, "train.global_batch": batch, "checkpoint.interval": 20,
                "checkpoint.keep": 2, "runtime.timeout_s": SILENCE_S}
    runs.train("first", "per_rank", {**settings, "train.steps": 1})
    process = runs.start("run", "per_rank", settings)
    try:
        ranks = wait_for_steps(process, 23)
        say(f"run {process.name}: 23 steps after {time.monotonic() - process.begin:.0f} s")
        if sorted(ranks) != list(range(runs.arguments.ranks)):
            raise Failure(f"processes of ranks {sorted(ranks)} were found, of {runs.arguments.ranks}")
        begin = time.monotonic()
        send(ranks[rank], number)
        try:
            status = process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"the run goes on {END_LIMIT_S} s after rank {rank} got signal {number.name}") from None
        took = time.monotonic() - begin
        left = [other for other, pid in ranks.items() if is_there(pid)]
    finally:
        bounded_run.end_all(process.tag)
        process.wait()
    said = process.err.read_text().strip()
    if status == 0 or left:
        raise Failure(f"status {status}, and ranks {left} are left: {said}")
    check_said(said, rank, runs.arguments.device, number)
    step = int(runs.newest("run").name.split("_")[1])
    until = ["--stop-after", step + 3]
    if "resume " not in runs.train("run", "per_rank", settings, until):
        raise Failure("the run has not gone on from its checkpoint")
    runs.train("whole", "per_rank", settings, until)
    runs.expect_same_tensors("run", "whole")
    runs.clear()
    return [f"rank {rank} got {number.name}: all ended after {took:.1f} s; resumed after step {step}, the same bits; said: {said[:400]}"]


def main():
    arguments = parse_arguments()
    bounded_run.end_as_one()
    results = gpu_bench.Results(arguments.results)
    if arguments.ranks < 2 or arguments.ranks % 2:
        print(f"processes.py: --ranks {arguments.ranks}: an even number, since cases have pairs", file=sys.stderr)
        return 2
    if arguments.device == "cuda" and gpu_bench.num_gpus() < arguments.ranks:
        print(f"skipped: {arguments.ranks} ranks need as many GPUs, and there are {gpu_bench.num_gpus()}")
        return SKIPPED
    good = True
    for name in arguments.only or CHECKS:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                runs = Runs(arguments, folder)
                facts = (check_blow(runs, *BLOWS[name]) if name in BLOWS else
                         check_same_bits(runs) if name == "same_bits" else check_late_ranks(runs))
                failure = ""
            except Failure as error:
                facts, failure, good = [], str(error), False
        print(f"{name}: {'FAILED: ' + failure if failure else 'good'} ({time.monotonic() - begin:.0f} s)", *facts, sep="\n  ", flush=True)
        results.add("processes", check=name, device=arguments.device, ranks=arguments.ranks, model=arguments.model, facts=facts, failure=failure[-2000:],
                    seconds=time.monotonic() - begin)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
