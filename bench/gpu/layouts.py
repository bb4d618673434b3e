#!/usr/bin/env python3
"""Every layout of tests/cuda_runtime/layouts_test.cpp as a run of `braid train` with a process per rank, on however many GPUs there are
(ranks share them, runtime.ranks_per_gpu) or on the CPU: the losses and weights of one rank, and the same bits in a second run, without
overlap, and in one task by task. For correctness; what runs take says nothing about speed.

usage: layouts.py --bin FOLDER --results FOLDER [--device cuda|cpu] [--gpus N] [--only LAYOUT...] [--slots N] [--limit S] [--report FILE]
"""
import argparse
import array
import json
import math
import os
import pathlib
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import bounded_run
import gpu_bench
import mps
import processes
from gpu_bench import FOLDER, Failure
from report import table

STEPS = 6
LOSS_TOLERANCE = 0.01  # as in layouts_test.cpp: bf16 sums of ranks are rounded in other places than those of one
WEIGHT_TOLERANCE = 0.02  # root mean square of the difference, relative to that of one rank's
ONE_SCALE_FACTOR = 5  # of both, where tensor ranks round FP8 values by scales of their own parts, as in layouts_test.cpp
SKIPPED = 0
RANKS_PER_GPU = 8  # at once: more exhaust the hardware queues that processes share

ZERO = {stage: {"shard": stage} for stage in ("optimizer", "gradients", "parameters")}
SEQUENCE = {"sequence_parallel": "true"}
STATES = {"mamba_context": "states"}
BLOCK = {"tensor": 2, "pipeline": 2, **SEQUENCE}  # of larger layouts


def pipeline(stages, schedule, virtual_stages=1):
    return {"pipeline": stages, "schedule": schedule, "virtual_stages": virtual_stages}


def experts(ranks, split=1, **more):
    return {"expert": ranks, "expert_tensor": split, **more}, "experts"


def context(ranks, method, **more):
    return {"context": ranks, "context_method": method, **more}


# Kinds of model: of layouts_test.cpp too.
FAMILIES = ("llama", "gpt2", "windows", "experts", "fp8_experts", "fp8_dispatch", "hybrid", "hybrid_experts", "fp8_block", "fp8_tensor")
FP8_LAYOUTS = {"optimizer2": (2, ZERO["optimizer"]), "parameters2": (2, ZERO["parameters"]), "tensor2": (2, {"tensor": 2, **SEQUENCE}),
               "parameters4": (4, ZERO["parameters"]), "tensor4": (4, {"tensor": 4, **SEQUENCE}),
               "tensor2_optimizer2": (4, {"tensor": 2, **SEQUENCE, **ZERO["optimizer"]}),
               "pipeline2_parameters2": (4, {**pipeline(2, "1f1b"), **ZERO["parameters"]})}

# Ranks, what is set in [parallel] beside them, and the kind of model. A test keeps names and ranks equal to those of layouts_test.cpp.
LAYOUTS = {
    "data2": (2, {}), "optimizer2": (2, ZERO["optimizer"]), "gradients2": (2, ZERO["gradients"]),
    "parameters2": (2, ZERO["parameters"]), "parameters2_gpt2": (2, ZERO["parameters"], "gpt2"),
    "tensor2": (2, {"tensor": 2}), "tensor2_sequence": (2, {"tensor": 2, **SEQUENCE}),
    "tensor2_gpt2": (2, {"tensor": 2, **SEQUENCE}, "gpt2"),
    "gpipe2": (2, pipeline(2, "gpipe")), "1f1b2": (2, pipeline(2, "1f1b")), "interleaved2": (2, pipeline(2, "interleaved", 2)),
    "zbh1_2": (2, pipeline(2, "zb-h1")), "zbv2": (2, pipeline(2, "zb-v", 2)), "dualpipev2": (2, pipeline(2, "dualpipe-v", 2)),
    "ring2": (2, context(2, "ring")), "ring2_gpt2": (2, context(2, "ring", **ZERO["optimizer"]), "gpt2"),
    "ring2_windows": (2, context(2, "ring"), "windows"), "all_gather2_windows": (2, context(2, "all_gather"), "windows"),
    "all_gather2": (2, context(2, "all_gather")), "a2a2": (2, context(2, "a2a", **ZERO["parameters"])),
    "experts2": (2, *experts(2)), "experts2_optimizer": (2, *experts(2, **ZERO["optimizer"])), "experts2_split": (2, *experts(1, 2)),
    "experts2_tensor2": (2, *experts(2, tensor=2, **SEQUENCE)), "experts2_ring2": (2, *experts(2, **context(2, "ring"))),
    "data4": (4, {}), "parameters4": (4, ZERO["parameters"]), "tensor4": (4, {"tensor": 4, **SEQUENCE}),
    "tensor2_data2": (4, {"tensor": 2, **SEQUENCE}), "tensor2_parameters2": (4, {"tensor": 2, **SEQUENCE, **ZERO["parameters"]}),
    "1f1b4": (4, pipeline(4, "1f1b")), "pipeline2_optimizer2": (4, {**pipeline(2, "1f1b"), **ZERO["optimizer"]}),
    "tensor2_pipeline2": (4, BLOCK), "ring4": (4, context(4, "ring", **ZERO["parameters"])), "all_gather4": (4, context(4, "all_gather")),
    "a2a4": (4, context(4, "a2a")), "a2a2_ring2": (4, context(4, "a2a+ring", **ZERO["optimizer"]), "gpt2"),
    "ring2_data2": (4, context(2, "ring", **ZERO["optimizer"])), "ring2_tensor2": (4, context(2, "ring", tensor=2, **SEQUENCE)),
    "all_gather2_pipeline2": (4, context(2, "all_gather", **pipeline(2, "1f1b"))),
    "experts4": (4, *experts(4, **ZERO["gradients"])), "experts2_data4": (4, *experts(2, **ZERO["optimizer"])),
    "experts2_parameters4": (4, *experts(2, **ZERO["parameters"])), "experts2_split2": (4, *experts(2, 2)),
    "experts4_tensor2": (4, *experts(4, tensor=2, **SEQUENCE)), "experts2_pipeline2": (4, *experts(2, **pipeline(2, "1f1b"))),
    "experts2_dualpipev2": (4, *experts(2, **pipeline(2, "dualpipe-v", 2))),
    "fp8_experts2": (2, experts(2)[0], "fp8_experts"), "fp8_experts_gradients2": (2, ZERO["gradients"], "fp8_experts"),
    "fp8_dispatch2": (2, experts(2)[0], "fp8_dispatch"),
    **{f"{family}_{name}": (*layout, family) for family in ("fp8_block", "fp8_tensor") for name, layout in FP8_LAYOUTS.items()},
    "hybrid_parameters2": (2, ZERO["parameters"], "hybrid"), "hybrid_tensor2": (2, {"tensor": 2, **SEQUENCE}, "hybrid"),
    "hybrid_ring2": (2, context(2, "ring"), "hybrid"), "hybrid_a2a2": (2, context(2, "a2a", **ZERO["optimizer"]), "hybrid"),
    "hybrid_states_ring2": (2, context(2, "ring", **STATES), "hybrid"),
    "hybrid_states_a2a2": (2, context(2, "a2a", **STATES, **ZERO["parameters"]), "hybrid"),
    "hybrid_experts2": (2, {"expert": 2}, "hybrid_experts"),
    "hybrid_parameters4": (4, ZERO["parameters"], "hybrid"), "hybrid_tensor4": (4, {"tensor": 4, **SEQUENCE}, "hybrid"),
    "hybrid_pipeline2_optimizer2": (4, {**pipeline(2, "1f1b"), **ZERO["optimizer"]}, "hybrid"),
    "hybrid_states_ring4": (4, context(4, "ring", **STATES, **ZERO["optimizer"]), "hybrid"),
    "parameters8": (8, ZERO["parameters"]), "tensor8": (8, {"tensor": 8, **SEQUENCE}, "gpt2"),
    "ring8": (8, context(8, "ring", **ZERO["optimizer"])), "tensor2_pipeline2_ring2": (8, context(2, "ring", **BLOCK)),
    "tensor2_pipeline2_data2": (8, BLOCK), "tensor2_pipeline2_optimizer2": (8, {**BLOCK, **ZERO["optimizer"]}),
    "experts2_hosts": (2, *experts(2)), "experts2_optimizer_hosts": (2, *experts(2, **ZERO["optimizer"])),
    "experts2_tensor2_hosts": (2, *experts(2, tensor=2, **SEQUENCE)), "experts2_ring2_hosts": (2, *experts(2, **context(2, "ring"))),
    "fp8_experts2_hosts": (2, experts(2)[0], "fp8_experts"), "hybrid_experts2_hosts": (2, {"expert": 2}, "hybrid_experts"),
    "experts4_hosts": (4, *experts(4, **ZERO["gradients"])), "experts2_pipeline2_hosts": (4, *experts(2, **pipeline(2, "1f1b"))),
    "fp8_dispatch4_hosts": (4, experts(4)[0], "fp8_dispatch"),
}
OVER_HOSTS = {name for name in LAYOUTS if name.endswith("_hosts")}  # rows of experts go by way of two hosts, which are halves of a group's ranks

PAGE = """# Layouts on {gpus}

Written by `bench/gpu/check.sh layouts` ([layouts.py](layouts.py)); {date} (UTC). Each layout is a run of `braid train` with a process per
rank and all communication by copy engines (`overlap.comm_engine = "copy"`), {ranks}; {steps} steps of a small model.

{table}
Loss: the largest difference of a step's loss to that of one rank (tolerance {loss}). Weights: root mean square of their difference after the
last step, relative to one rank's (tolerance {weights}). Both tolerances are five times as large for FP8 with one scale on tensor ranks: each rank has the
scale of its own part. The same bits: losses, norms, and all tensors of the checkpoint.
"""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, type=lambda path: pathlib.Path(path).resolve(), help="build folder, or folder of the programs")
    parser.add_argument("--results", required=True, type=pathlib.Path, help="folder of raw.jsonl, which is appended to")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--gpus", type=int, help="use the first N of the GPUs that are visible (all)")
    parser.add_argument("--only", action="append", choices=LAYOUTS, help="only this layout; may be repeated")
    parser.add_argument("--slots", type=int, help=f"ranks that run at once, of several layouts (cores, and {RANKS_PER_GPU} per GPU)")
    parser.add_argument("--limit", type=float, help="seconds of one run (120)", default=120)
    parser.add_argument("--report", type=pathlib.Path, help="the page (bench/gpu/layouts_NAMExN.md; of a rehearsal in the results)")
    return parser.parse_args()


def model_of(device, family):
    """The keys of [model], and those of [train] beside them, for a kind of model; smaller on the CPU."""
    width, sequence = (256, 64) if device == "cuda" else (64, 32)
    model = {"family": "llama", "layers": 8, "width": width, "heads": 8, "kv_heads": 4}
    if family == "gpt2":
        return model | {"family": "gpt2", "kv_heads": 8, "max_positions": sequence}, {"sequence": sequence}
    if family == "windows":
        return model | {"sliding_window": 20}, {"sequence": sequence}
    if family in ("fp8_experts", "fp8_dispatch"):  # inputs and features are multiples of 128
        return (model | {"width": 256, "experts": 8, "experts_per_token": 2, "expert_ffn": 128},
                {"sequence": sequence, "fp8": "block", "fp8_experts": True, "fp8_dispatch": family == "fp8_dispatch"})
    if family == "experts":
        return model | {"experts": 8, "experts_per_token": 2, "expert_ffn": width // 2}, {"sequence": sequence}
    if family.startswith("hybrid"):
        del model["layers"]
        if family == "hybrid_experts":
            model |= {"experts": 8, "experts_per_token": 2, "expert_ffn": width // 2, "shared_ffn": width // 2,
                      "router_scores": "sigmoid", "router_bias": True}  # as exports of hybrids need them
        pattern = "M-M*-M*-" if family == "hybrid" else "MEM*-ME-"
        return model | {"family": "nemotron_h", "pattern": pattern, "mamba_num_heads": 16, "mamba_head_dim": width // 8,
                        "ssm_state_size": 32, "mamba_n_groups": 4, "mamba_chunk_size": sequence}, {"sequence": sequence}
    if family.startswith("fp8_"):  # tokens, inputs and features of a rank are multiples of 128
        return model | {"width": 512, "ffn": 1536}, {"sequence": 512, "fp8": family.removeprefix("fp8_")}
    return model, {"sequence": sequence}


def as_toml(keys):
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


def run_file(device, family):
    """The model and batch of layouts_test.cpp; a smaller one on the CPU."""
    model, train = model_of(device, family)
    return (f"[model]\n{as_toml(model)}[train]\n{as_toml(train)}microbatch = 1\nglobal_batch = 16\nsteps = {STEPS}\ndtype = \"bfloat16\"\n"
            "[optimizer]\nlearning_rate = 3e-4\nschedule = \"constant\"\n[overlap]\ncomm_engine = \"copy\"\n"
            "[data]\ntrain = \"corpus.txt\"\nsplit = \"90,10,0\"\n[eval]\ninterval = 0\n"
            "[logging]\ninterval = 1\ntensorboard = false\ntrace_steps = []\n"
            f"[runtime]\ndevice = \"{device}\"\nthreads = 1\n")


class Slots:
    """Ranks that may run at once. A layout with more of them runs alone."""

    def __init__(self, count):
        self.count, self.free, self.changed = count, count, threading.Condition()

    def take(self, ranks):
        ranks = min(ranks, self.count)
        with self.changed:
            self.changed.wait_for(lambda: self.free >= ranks)
            self.free -= ranks
        return ranks

    def give(self, ranks):
        with self.changed:
            self.free += ranks
            self.changed.notify_all()


class Overrun(Failure):
    """A run that took too long, and was killed."""


class LayoutRuns(processes.Runs):
    """The runs of one layout, or of one rank, in their own folder. Other threads can ask for their progress meanwhile."""

    LAYERS = {}  # run_file says how many

    def __init__(self, arguments, folder, family, cache=None):
        self.braid = gpu_bench.find_program(arguments.bin, "braid")
        self.arguments, self.folder = arguments, pathlib.Path(folder)
        self.folder.mkdir()
        (self.folder / "corpus.txt").write_text(processes.corpus(), encoding="utf-8")
        (self.folder / "run.toml").write_text(run_file(arguments.device, family), encoding="utf-8")
        self.cache = self.folder / "cache"
        if cache and cache.is_dir():  # others may write theirs meanwhile: a choice must not change between runs
            shutil.copytree(cache, self.cache)
        self.environment = {**os.environ, **arguments.service.environment, "XDG_CACHE_HOME": str(self.cache)}
        self.process, self.since = None, time.monotonic()

    def begin(self, name, settings, environment):
        """A run that must succeed in time; what it printed and where it stood if not."""
        self.since = time.monotonic()
        before = self.environment
        self.environment = {**before, **environment}
        try:
            self.process = self.start(name, "per_rank" if settings.get("parallel.ranks", 1) > 1 else "auto", settings)
        finally:
            self.environment = before
        try:
            self.process.wait(self.arguments.limit)
        except Exception:
            where = bounded_run.describe_threads(self.process.tag)
            try:
                self.finish(self.process, limit_s=0)
            except Failure as error:
                raise Overrun(f"run {name} took more than {self.arguments.limit:.0f} s: {error}\n{where}") from None
        finally:
            bounded_run.end_all(self.process.tag)
        self.finish(self.process)

    def standing(self):
        """What is there to say of the run that goes on."""
        if not self.process or self.process.poll() is not None:
            return "between two runs"
        text = self.process.out.read_text(errors="replace") + self.process.err.read_text(errors="replace")
        return (f"run {self.process.name}, for {time.monotonic() - self.since:.0f} s:\n{bounded_run.tail(text, 12)}\n"
                f"{bounded_run.describe_threads(self.process.tag)}")

    def losses(self, name):
        return [value for key, value in self.numbers(name) if key == "loss"]

    def weights(self, name):
        """All weights by name, in f32."""
        folder = self.folder / f"{name}.exported"
        gpu_bench.run([self.braid, "export", self.folder / name, folder, "--dtype", "f32"], 120)
        found = {}
        for path in sorted(folder.glob("*.safetensors")):
            found |= read_safetensors(path)
        shutil.rmtree(folder)
        return found


def visible_gpus():
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(i) for i in range(gpu_bench.num_gpus())]


def read_safetensors(path):
    """F32 tensors by name: the length of the header, the header as JSON, the bytes."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    found = {}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        if tensor["dtype"] != "F32":
            raise Failure(f"{path}: {name} is {tensor['dtype']}")
        begin, end = tensor["data_offsets"]
        found[name] = array.array("f", data[8 + length + begin:8 + length + end])
    return found


def relative_difference(weights, reference):
    """Root mean square of the difference over that of the reference; Failure unless both have the same tensors."""
    if not reference or {name: len(values) for name, values in weights.items()} != {name: len(v) for name, v in reference.items()}:
        raise Failure(f"{len(weights)} exported tensors, or their sizes, are not the {len(reference)} of one rank")
    difference = sum(math.sumprod(d, d) if hasattr(math, "sumprod") else sum(x * x for x in d)
                     for d in ([a - b for a, b in zip(weights[name], reference[name])] for name in reference))
    norm = sum(x * x for values in reference.values() for x in values)
    return math.sqrt(difference / norm)


class Reference:
    """One rank, once for each family."""

    def __init__(self, check, family):
        arguments, name = check.arguments, f"one_rank_{family}"
        self.runs = check.going[name] = LayoutRuns(arguments, check.folder / name, family)
        if arguments.device == "cuda":
            self.runs.begin("first", {"train.steps": 1}, {})  # fills the cache of measured algorithms
        self.runs.begin("one", {}, {})
        self.losses, self.weights = self.runs.losses("one"), self.runs.weights("one")
        if len(self.losses) != STEPS or not all(map(math.isfinite, self.losses)):
            raise Failure(f"one rank has the losses {self.losses}")
        del check.going[name]


def settings_of(layout, gpus):
    ranks, parallel = LAYOUTS[layout][:2]
    hosts = {"moe.exchange": "hosts", "moe.exchange_hosts": 2} if layout in OVER_HOSTS else {}
    return {"parallel.ranks": ranks, **{f"parallel.{key}": value for key, value in parallel.items()}, **hosts,
            "runtime.ranks_per_gpu": max(1, math.ceil(ranks / gpus))}


def tolerances(layout):
    """Of a layout's losses and weights."""
    factor = ONE_SCALE_FACTOR if family_of(layout) == "fp8_tensor" and LAYOUTS[layout][1].get("tensor", 1) > 1 else 1
    return factor * LOSS_TOLERANCE, factor * WEIGHT_TOLERANCE


def check_layout(runs, layout, settings, reference, facts):
    """Adds to `facts` what is equal; Failure with the first thing that is not."""
    on_gpus = runs.arguments.device == "cuda"
    if on_gpus:
        runs.begin("first", {**settings, "train.steps": 1}, {})  # the ranks may choose differently; those behind read one file
    runs.begin("run", settings, {})
    losses = runs.losses("run")
    loss = max((abs(a - b) for a, b in zip(losses, reference.losses)), default=math.inf)
    weights = relative_difference(runs.weights("run"), reference.weights)
    facts |= {"loss_difference": loss, "weight_difference": weights, "same": []}
    most_loss, most_weights = tolerances(layout)
    if len(losses) != STEPS or not loss <= most_loss or not weights <= most_weights:
        raise Failure(f"losses {losses}, of one rank {reference.losses}; weights differ by {weights:.2g}")
    variants = {"second run": ({}, {}), "no overlap": ({"overlap.mode": "off"}, {})}
    if on_gpus:
        # No graphs, and the host waits for each task: without overlap, whose order relies on streams that run at the same time.
        variants["task by task"] = ({"overlap.mode": "off"}, {"BRAID_SYNC_TASKS": "1"})
    for number, (name, (changes, environment)) in enumerate(variants.items()):
        runs.begin(f"variant{number}", {**settings, **changes}, environment)
        try:
            runs.expect_same("run", f"variant{number}")
        except Failure as error:
            raise Failure(f"{name}: {error}") from None
        shutil.rmtree(runs.folder / f"variant{number}")
        facts["same"].append(name)


class Check:
    """All layouts, several at once."""

    def __init__(self, arguments, folder, gpus):
        self.arguments, self.folder, self.gpus = arguments, pathlib.Path(folder), gpus
        self.slots, self.results = Slots(arguments.slots), gpu_bench.Results(arguments.results)
        self.going, self.lock = {}, threading.Lock()

    def attempt(self, layout, reference, facts):
        """What is wrong with the layout, and whether that says something of it: not where the service of the GPUs went away under it."""
        service = self.arguments.service
        number, failure, is_certain = service.number, "", True
        runs = LayoutRuns(self.arguments, self.folder / layout, family_of(layout), reference.runs.cache)
        with self.lock:
            self.going[layout] = runs
        try:
            check_layout(runs, layout, settings_of(layout, self.gpus), reference, facts)
        except Failure as error:
            failure = str(error)
            took_it_down = isinstance(error, Overrun) and service.number == number
            service.renew_if_gone()
            is_certain = took_it_down or service.number == number
        finally:
            with self.lock:
                del self.going[layout]
        shutil.rmtree(runs.folder)
        return failure, is_certain

    def one(self, layout, reference):
        """Whether the layout is good, and its record."""
        ranks = LAYOUTS[layout][0]
        taken = self.slots.take(ranks)
        begin, facts = time.monotonic(), {}
        try:
            failure, is_certain = self.attempt(layout, reference, facts)
            if not is_certain:
                facts.clear()
                failure, _ = self.attempt(layout, reference, facts)
        finally:
            self.slots.give(taken)
        record = {"layout": layout, "ranks": ranks, "gpus": self.gpus,
                  "ranks_per_gpu": settings_of(layout, self.gpus)["runtime.ranks_per_gpu"], "device": self.arguments.device, **facts,
                  "failure": failure[-6000:], "seconds": round(time.monotonic() - begin, 1)}
        with self.lock:
            self.results.add("layout", **record)
            print(json.dumps(record if not failure else {**record, "failure": failure.splitlines()[0]}), flush=True)
            if failure:
                print(failure, file=sys.stderr, flush=True)
        return not failure

    def run(self, layouts):
        """Whether all are good. The largest first, so that none of them is alone at the end."""
        families = sorted({family_of(layout) for layout in layouts})
        references = {family: Reference(self, family) for family in families}
        order = sorted(layouts, key=lambda layout: -LAYOUTS[layout][0])
        with ThreadPoolExecutor(max_workers=len(order)) as pool:
            return all(list(pool.map(lambda layout: self.one(layout, references[family_of(layout)]), order)))

    def end(self, number, _):
        """Whoever asks this to end, as `timeout` does, gets to see where it stands; nothing is left running."""
        for layout, runs in list(self.going.items()):
            print(f"== {layout}: {runs.standing()}", file=sys.stderr, flush=True)
        for runs in list(self.going.values()):
            if runs.process:
                bounded_run.end_all(runs.process.tag)
        self.arguments.service.end()
        os._exit(128 + number)


def family_of(layout):
    return LAYOUTS[layout][2] if len(LAYOUTS[layout]) > 2 else "llama"


def reason_of(failure):
    """What braid said if it ended, or what was found."""
    lines = failure.splitlines()
    return next((line for line in reversed(lines) if line.startswith("braid: ")), lines[0])[:160]


def page(records, machine):
    """Of the newest record of each layout."""
    newest = {record["layout"]: record for record in records}
    rows = []
    for layout in filter(newest.__contains__, LAYOUTS):
        record = newest[layout]
        good = not record["failure"]
        rows.append([layout, record["ranks"], record["ranks_per_gpu"], f"{record['loss_difference']:.1e}" if good else "",
                     f"{record['weight_difference']:.1e}" if good else "",
                     ", ".join(record["same"]) if good else f"**failed**: {reason_of(record['failure'])}"])
    first, days = records[0], [record["time"][:10] for record in newest.values()]
    on_gpus = first["device"] == "cuda"
    name = (machine["gpu"] or "").removeprefix("NVIDIA ")
    return PAGE.format(gpus=f"{first['gpus']} x {name}" if on_gpus else "the CPU, a rehearsal",
                       ranks="which share the GPUs where there are more of them" if on_gpus else "which have no GPU",
                       date=" to ".join(sorted({min(days), max(days)})), steps=STEPS, loss=LOSS_TOLERANCE,
                       weights=WEIGHT_TOLERANCE,
                       table=table(["layout", "ranks", "ranks per GPU", "loss", "weights", "the same bits"], rows))


def write_page(arguments, gpus):
    machine = gpu_bench.machine()
    records = [record for record in gpu_bench.Results(arguments.results).read()
               if record["kind"] == "layout" and record["device"] == arguments.device and record["gpus"] == gpus]
    if not records:
        return
    name = (machine["gpu"] or "cpu").removeprefix("NVIDIA ").replace(" ", "_").lower()
    path = arguments.report or (FOLDER / f"layouts_{name}x{gpus}.md" if arguments.device == "cuda" else arguments.results / "layouts.md")
    gpu_bench.write_whole(path, page(records, machine))
    print(f"wrote {path}")


def main():
    arguments = parse_arguments()
    on_gpus = arguments.device == "cuda"
    gpus = min(arguments.gpus or 64, len(visible_gpus())) if on_gpus else arguments.gpus or 2
    if gpus == 0:
        print("skipped: there is no GPU")
        return SKIPPED
    arguments.slots = arguments.slots or min(os.cpu_count(), RANKS_PER_GPU * gpus if on_gpus else os.cpu_count())
    with mps.shared_gpus(visible_gpus()[:gpus] if on_gpus else []) as arguments.service, tempfile.TemporaryDirectory() as folder:
        check = Check(arguments, folder, gpus)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, check.end)
        begin = time.monotonic()
        try:
            good = check.run(arguments.only or list(LAYOUTS))
        except Failure as error:  # of one rank
            print(f"layouts.py: {error}", file=sys.stderr)
            return 1
    print(f"{'all layouts are good' if good else 'FAILED'} ({time.monotonic() - begin:.0f} s)", flush=True)
    write_page(arguments, gpus)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
