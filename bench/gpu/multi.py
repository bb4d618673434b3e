#!/usr/bin/env python3
"""Tokens per second and GPU of training steps on all GPUs of a machine, braid beside PyTorch: the cases of cases/multi, in turns.

usage: multi.py --bin FOLDER --results FOLDER [--gpus N] [--case NAME]... [--side NAME]... [--rounds N] [--seconds N] [--limit S]
                [--set KEY=VALUE]... [--profile FILE] [--defaults] [--no-trace] [--techniques | --technique NAME...] [--floors]
                [--small]

braid's side runs with the overlap that `braid simulate --auto-overlap` finds for the machine, once per case, kept in RESULTS/found.
Rounds come first: all cases once on both sides, the most important first, then all again. So whatever --seconds cuts off, the figures
of a case are of both sides. Each run has a time limit, after which all its processes are killed, and the next run begins; what failed
is not tried again. What runs print is whole in RESULTS/logs. The first braid run of a case traces two steps behind the timed ones,
which gives exposed communication. --techniques then measures one overlap technique after the other, alone, beside no overlap.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time
import tomllib

import bounded_run
import expert_settings
import gpu_bench
import multi_cases
from end_to_end import LOG_LINE, SPARE_STEPS, WARMUP_STEPS
from gpu_bench import FOLDER, Failure

TRACED_STEPS = 2
LOSS = re.compile(r"lm loss: ([^ ]+)")
DESCRIBE_LIMIT_S = 120
SEARCH_LIMIT_S = 120
FIRST_GUESS_S = 60  # of a run nothing is known about
# Two programs, braid with attention's backward adding in any order, as PyTorch's does, PyTorch with products of tensor ranks in pieces,
# and PyTorch with FP8 products by torchao, which must be installed (braid's own: --set train.fp8=tensor).
SIDES = {"braid": {}, "torch": {}, "braid_any_order": {"runtime.repeatable": "false"}, "torch_async_tp": {}, "torch_fp8": {}}
DEFAULT_SIDES = ("braid", "torch")

COMPILED = pathlib.Path(tempfile.gettempdir()) / "braid_multi_inductor"  # stays: PyTorch compiles once per machine, not once per call

# Multicast over NVLink is off on both sides: a program that uses it can put GPUs which are shared with others out of service.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="build folder, or folder of the programs")
    parser.add_argument("--results", required=True, help="folder of raw.jsonl, which is appended to")
    parser.add_argument("--gpus", type=int, choices=multi_cases.GPUS, help="ranks (default: as many as there are GPUs)")
    parser.add_argument("--case", action="append", choices=list(multi_cases.CASES), dest="cases", help="only this one; may be repeated")
    parser.add_argument("--side", action="append", choices=list(SIDES), dest="sides", help="may be repeated (default: braid and torch)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of both sides (3)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run that would not end within so many")
    parser.add_argument("--limit", type=int, default=300, help="seconds of one run (300)")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE", help="for braid's runs of all cases")
    parser.add_argument("--profile", type=pathlib.Path, help="of `braid calibrate`: predictions by it too")
    parser.add_argument("--defaults", action="store_true", help="braid's side: overlap as its run files say, no search")
    parser.add_argument("--no-trace", action="store_true", help="trace no step")
    parser.add_argument("--techniques", action="store_true", help="after the rounds: overlap techniques, one after the other")
    parser.add_argument("--technique", action="append", default=[], dest="chosen_techniques",
                        choices=[*multi_cases.TECHNIQUES, *multi_cases.VARIANTS], help="only this one, and none at all (off)")
    parser.add_argument("--floors", action="store_true", help="after the rounds: how fast the compute of a step could be")
    parser.add_argument("--small", action="store_true", help="tiny versions of the cases, to rehearse")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    arguments = parser.parse_args(words)
    arguments.cases = arguments.cases or list(multi_cases.CASES)
    arguments.sides = arguments.sides or DEFAULT_SIDES
    return arguments


def as_changes(words):
    """Texts KEY=VALUE as a dictionary."""
    for word in words:
        if "=" not in word:
            raise Failure(f"--set {word}: is not KEY=VALUE")
    return dict(word.split("=", 1) for word in words)


def overlap_of(run_file):
    """What a run file turns on in [overlap], as key: value."""
    keys = tomllib.loads(run_file.read_text(encoding="utf-8")).get("overlap", {})
    if not keys.get("tp_comm_overlap"):
        keys = {key: value for key, value in keys.items() if not key.startswith("tp_")}
    return {key: value for key, value in keys.items() if value and value not in ("none", "sm") and key not in ("mode", "cost")}


class Budget:
    """Which runs still begin: those that end in time, as far as earlier runs of the same kind tell."""

    def __init__(self, seconds, limit_s, first_guess_s=0):
        self.end, self.limit_s, self.first_guess_s = time.monotonic() + seconds, limit_s, first_guess_s
        self.took = {}

    def left(self):
        return self.end - time.monotonic()

    def has_time(self, what):
        return self.left() > self.took.get(what, self.first_guess_s)

    def limit(self):
        return min(self.limit_s, self.left())

    @contextlib.contextmanager
    def clock(self, what):
        begin = time.monotonic()
        yield
        self.took[what] = time.monotonic() - begin


class Case:
    """A case on the ranks of `bench`, with changes of settings on braid's side. `found`: a run file whose settings replace its own."""

    def __init__(self, name, bench, changes=None, found=None):
        self.name, self.bench = name, bench
        arguments = bench.arguments
        self.run_file = found or multi_cases.run_file(name)
        self.changes = {**multi_cases.changes(name, bench.gpus, arguments.small, arguments.device), **as_changes(arguments.changes),
                        **(changes or {})}
        self.facts = {"case": name, "gpus": bench.gpus, "small": arguments.small, "session": bench.session}

    def with_changes(self, changes):
        return Case(self.name, self.bench, {**self.changes, **changes}, self.run_file)

    def with_run_file(self, path):
        return Case(self.name, self.bench, self.changes, path)

    def as_written(self):
        """With the settings of its own run file."""
        return self.with_run_file(None)

    def is_searched(self):
        return self.run_file != multi_cases.run_file(self.name)

    def words(self, **more):
        return [self.run_file, *gpu_bench.as_arguments({**self.changes, **more})]

    def describe(self):
        """The case as braid resolves it: sizes and layout for PyTorch, FLOPs, planned memory."""
        command = [self.bench.program("braid_bench_floor"), *self.words(), "--describe"]
        shape = gpu_bench.last_json(bounded_run.run_together(command, DESCRIBE_LIMIT_S, [ENVIRONMENT])[0])
        return {**shape, "experts": expert_settings.of_run(self.run_file, self.changes)}


def braid_figures(text, shape):
    """Of the timed steps in the log of a run."""
    lines = {int(match.group(2)): match for match in reversed(list(LOG_LINE.finditer(text)))}  # by step, should ranks print them too
    logged = sum(step in lines for step in range(1, shape["steps"] + 1))
    if logged < shape["steps"]:
        raise Failure(f"braid logged {logged} of {shape['steps']} steps:\n{bounded_run.tail(text)}")
    ends = [datetime.datetime.fromisoformat(lines[step].group(1).strip()) for step in range(WARMUP_STEPS, shape["steps"] + 1)]
    step_ms = [(b - a).total_seconds() * 1e3 for a, b in zip(ends, ends[1:])]
    tokens = shape["global_batch"] * shape["sequence"] * len(step_ms)
    loss = LOSS.search(text, lines[shape["steps"]].start())
    return {"tokens_per_s": tokens / (ends[-1] - ends[0]).total_seconds(), "step_ms": step_ms,
            "loss": float(loss.group(1)) if loss else None}


def mean_of(parts):
    """Means, by key, of dictionaries of numbers or of such dictionaries; what one lacks counts as 0 there."""
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: mean_of([part.get(key, {}) for part in parts]) if any(isinstance(part.get(key), dict) for part in parts)
            else statistics.fmean(part.get(key, 0) for part in parts) for key in keys}


def traced_step(report):
    """Where a step went, as a mean of the traced ones: what report.json has of it, ops by name."""
    steps = report["data"]["traced_steps"]
    if not steps:
        raise Failure("the run traced no step")
    return mean_of([{**{key: value for key, value in step.items() if isinstance(value, (int, float, dict)) and key != "step"},
                     "ops": {op["op"]: {key: op[key] for key in ("num_tasks", "busy_ns")} for op in step["ops"]}} for step in steps])


def cluster_of(gpu, count):
    """The cluster of `braid simulate` with these GPUs; H200 where there are none, in rehearsals."""
    return f"h100x{count}" if gpu and "H100" in gpu else f"h200x{count}"


class Bench:
    """Runs of both sides for the cases."""

    def __init__(self, arguments, work):
        self.arguments, self.work = arguments, work
        self.gpus = arguments.gpus or gpu_bench.num_gpus()
        if self.gpus not in multi_cases.GPUS:
            raise Failure(f"there are cases for 2, 4 and 8 GPUs, and {self.gpus} are here; --gpus says how many to use")
        self.results = gpu_bench.Results(arguments.results)
        self.budget = Budget(arguments.seconds, arguments.limit, 0 if arguments.small else FIRST_GUESS_S)
        self.session = gpu_bench.now()  # only runs of one call are compared with each other
        self.failures = 0
        self.given_up = set()  # cases and sides that failed: they would again
        self.num_runs = 0
        self.may_trace = not arguments.no_trace
        self.shapes = {}
        machine = gpu_bench.machine()
        self.cluster = cluster_of(machine["gpu"], self.gpus)
        self.results.add("machine", **machine, gpus=gpu_bench.num_gpus())

    def program(self, name):
        return gpu_bench.find_program(self.arguments.bin, name)

    def tokens(self, vocabulary):
        prefix = self.work / f"ids{vocabulary}"
        if not prefix.with_suffix(".idx").exists():
            gpu_bench.write_random_tokens(prefix, vocabulary)
        return prefix

    def new_log(self, case, what):
        """All that a run prints, beside the results."""
        self.num_runs += 1
        session = self.session.replace(" ", "_").replace(":", "")
        return self.results.folder / "logs" / session / f"{self.num_runs:03}-{case.name}-{what.replace(' ', '-')}.log"

    def run_braid(self, case, shape, what, technique, trace):
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            return self.run_braid_in(pathlib.Path(folder), case, shape, what, technique, trace)

    def run_braid_in(self, folder, case, shape, what, technique, trace):
        first_traced = shape["steps"] + SPARE_STEPS + 1
        steps = first_traced - 1 + (TRACED_STEPS if trace else 0)
        command = [self.program("braid"), "train", *case.words(**{
            "data.train": self.tokens(shape["vocabulary"]), "logging.run_folder": folder, "checkpoint.folder": folder / "checkpoints",
            "train.steps": steps, "logging.format": "megatron", "logging.trace_steps": list(range(first_traced, steps + 1))})]
        result = braid_figures(bounded_run.run_together(command, self.budget.limit(), [ENVIRONMENT], self.new_log(case, what))[0], shape)
        if trace:
            report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
            self.results.add("multi_trace", **case.facts, technique=technique, **traced_step(report))
        return result

    def run_torch(self, case, shape, side):
        model, store = self.work / "model.json", self.work / f"store{time.monotonic_ns()}"
        model.write_text(json.dumps(shape), encoding="utf-8")
        limit_s = self.budget.limit()
        command = [self.arguments.python, FOLDER / "torch_multi.py", "--model", model, "--store", store, "--device", self.arguments.device,
                   "--warmup", WARMUP_STEPS, "--time-limit", max(1, int(limit_s) - 10)]
        command += ["--eager"] if self.arguments.device == "cpu" else []
        command += ["--async-tp"] if side == "torch_async_tp" else ["--fp8"] if side == "torch_fp8" else []
        common = {**ENVIRONMENT, "WORLD_SIZE": str(self.gpus), "OMP_NUM_THREADS": str(max(1, os.cpu_count() // self.gpus)),
                  "TORCHINDUCTOR_CACHE_DIR": str(COMPILED), "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
        outputs = bounded_run.run_together(command, limit_s, [{**common, "RANK": str(rank)} for rank in range(self.gpus)],
                                           self.new_log(case, side))
        return gpu_bench.last_json(outputs[0])

    def fail(self, case, what, failure):
        print(f"{case.name} {what}: FAILED: {failure}", flush=True)
        self.results.add("failure", stage="multi", **case.facts, what=what, message=str(failure)[-3000:])
        self.failures += 1

    def skip(self, name, what, reason):
        print(f"{name} {what}: skipped: {reason}", flush=True)
        self.results.add("multi_skip", case=name, gpus=self.gpus, small=self.arguments.small, session=self.session, what=what,
                         reason=reason)

    def shape_of(self, case):
        key = json.dumps([str(case.run_file), case.changes], default=str)
        if key not in self.shapes:
            self.shapes[key] = case.describe()
        return self.shapes[key]

    def measure(self, case, side, number, technique=""):
        """One run; nothing if it failed or there is no time left, which is recorded too."""
        what = f"{side} {technique}".strip()
        if (case.name, what) in self.given_up or (side == "torch_async_tp" and multi_cases.layout(case.name, self.gpus)["tensor"] == 1):
            return None
        if side.startswith("torch") and (reason := multi_cases.why_not_torch(case.name, self.gpus)):
            self.given_up.add((case.name, what))
            self.skip(case.name, what, reason)
            return None
        if not self.budget.has_time((case.name, side)):
            self.skip(case.name, what, f"no time for round {number}")
            return None
        trace = side == "braid" and self.may_trace and number == 1
        case = case.with_changes(SIDES[side])
        try:
            shape = self.shape_of(case)
            with self.budget.clock((case.name, side)), gpu_bench.GpuMonitor(self.gpus) as monitor:
                begin = time.monotonic()
                result = (self.run_torch(case, shape, side) if side.startswith("torch") else
                          self.run_braid(case, shape, what, technique, trace))
                result["total_s"] = time.monotonic() - begin
        except (Failure, OSError, KeyError, ValueError) as failure:
            self.fail(case, what + (", traced" if trace else ""), failure)
            if trace:  # maybe that was why
                self.may_trace = False
                return self.measure(case, side, number, technique)
            self.given_up.add((case.name, what))
            if side == "braid" and case.is_searched():  # a figure all the same
                return self.measure(case.as_written(), side, number, "defaults")
            return None
        result |= monitor.summary()
        speed = result.pop("tokens_per_s") / self.gpus
        self.results.add("multi_run", **case.facts, side=side, round=number, technique=technique,
                         changes=as_changes(self.arguments.changes), planned_bytes=shape["planned_bytes"], tokens_per_s_per_gpu=speed,
                         **result)
        print(f"round {number}  {case.name:28} {what:34} {speed:10,.0f} tokens/s/GPU  ({result['total_s']:.0f} s)", flush=True)
        return speed

    def costs(self):
        """By name, what says how long tasks take: data sheets, and the profile that was given."""
        costs = {self.cluster: ["--cluster", self.cluster]}
        if self.arguments.profile:
            costs[self.arguments.profile.name] = ["--profile", self.arguments.profile]
        return costs

    def with_found_overlap(self, case):
        """The case with the fastest overlap that a search by the best costs at hand finds; as it is where it finds none."""
        path = self.results.folder / "found" / f"{case.name}x{self.gpus}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [self.program("braid"), "simulate", *case.words(**multi_cases.SEARCHED), *list(self.costs().values())[-1],
                   "--auto-overlap", "--save-config", path]
        try:
            bounded_run.run_together(command, SEARCH_LIMIT_S, [ENVIRONMENT], self.new_log(case, "search"))
            return case.with_run_file(path)
        except Failure as failure:
            self.fail(case, "search", failure)
            return case

    def simulate(self, case):
        """What the simulator says of the step."""
        for name, words in self.costs().items():
            try:
                text = bounded_run.run_together([self.program("braid"), "simulate", *case.words(), *words, "--json"],
                                                DESCRIBE_LIMIT_S, [ENVIRONMENT])[0]
                simulated = json.loads(text[text.index("{"):])
                self.results.add("multi_simulation", **case.facts, cost=name,
                                 **{key: simulated[key] for key in ("step_ns", "host_ns", "mean")})
            except (Failure, ValueError, KeyError) as failure:
                self.fail(case, f"simulate {name}", failure)

    def begin_case(self, name):
        """The case, once it is described; nothing where it does not exist for so many GPUs."""
        reason = multi_cases.why_not(name, self.gpus)
        if reason:
            self.skip(name, "", reason)
            return None
        case = Case(name, self)
        if not self.arguments.defaults:
            case = self.with_found_overlap(case)
        try:
            shape = self.shape_of(case)
        except Failure as failure:
            self.fail(case, "describe", failure)
            return None
        self.results.add("multi_case", **case.facts, title=multi_cases.title(name, self.gpus), overlap=overlap_of(case.run_file), **shape)
        self.simulate(case)
        return case

    def run_floor(self, case):
        path = self.work / "floor.json"
        command = [self.program("braid_bench_floor"), *case.words(), "--json", path]
        try:
            bounded_run.run_together(command, self.budget.limit(), [ENVIRONMENT])
            record = json.loads(path.read_text(encoding="utf-8"))
        except (Failure, OSError, ValueError) as failure:
            self.fail(case, "floor", failure)
            return
        keys = ("gpu", "copy_bytes_per_s", "alone_ms", "floor_ms", "floor_atomics_ms", "scratch_bytes", "ops")
        self.results.add("multi_floor", **case.facts, **{key: record[key] for key in keys})
        print(f"{case.name:28} floor of compute {record['floor_ms']:.1f} ms, "
              f"{record['floor_atomics_ms']:.1f} ms with atomics", flush=True)

    def run_all(self):
        cases = [case for case in map(self.begin_case, self.arguments.cases) if case]
        for number in range(1, self.arguments.rounds + 1):
            for case in cases:
                for side in self.arguments.sides:
                    self.measure(case, side, number)
        for case in cases if self.arguments.floors else []:
            if self.budget.has_time(("floor", case.name)):
                self.run_floor(case)
            else:
                self.skip(case.name, "floor", "no time")
        for case in cases:
            for technique, changes in self.techniques(case).items():
                self.measure(case.as_written().with_changes(changes), "braid", 1, technique)

    def techniques(self, case):
        """By name, the changes that make them."""
        chosen = self.arguments.chosen_techniques
        known = multi_cases.techniques(case.name, self.gpus, self.arguments.profile or self.cluster)
        return {name: changes for name, changes in known.items() if self.arguments.techniques or (chosen and name in ["off", *chosen])}


def main():
    arguments = parse_arguments()
    bounded_run.end_as_one()
    try:
        with tempfile.TemporaryDirectory(prefix="braid_multi_") as work:
            bench = Bench(arguments, pathlib.Path(work))
            bench.run_all()
    except Failure as failure:
        sys.exit(f"multi.py: {failure}")
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
