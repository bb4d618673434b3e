#!/usr/bin/env python3
"""Writes a page for each number of GPUs that there are raw results of (raw.jsonl of multi.py): of each case the newest call's.

usage: multi_report.py --results FOLDER [--report FILE] [--small]
"""
import pathlib
import re
import statistics
import sys

import gpu_bench
import multi_cases
from gpu_bench import FOLDER
from report import PEAK_FLOPS, SIDES, gib, number, parse_arguments, table

OTHER_SIDES = {"braid_any_order": "braid, any order", "torch_async_tp": "PyTorch, async TP", "torch_fp8": "PyTorch, FP8"}

HEAD = """# {title}

Written by `bench/gpu/check.sh multi` from its raw results: [bench/README.md](../README.md) says how. Rates are decimal.

{table}"""

STEPS = """## Training steps beside PyTorch

{table}
Tokens/s and GPU are medians of the rounds (least to most). The sides take turns (braid, PyTorch, braid, ...) on the same GPUs in one call. A round
starts all ranks again, runs {warmup} steps, and then divides the tokens of the timed steps by the time from the end of the last step before them to
the end of the last one. Random token ids; sequences of 8192 (qwen2.5-7b and 1.5b: 1024, olmoe-7b: 4096); bf16 with fp32 main weights, AdamW
state and reduction; clipping to norm 1. NVLink multicast is off on both sides.

- PyTorch: FSDP2 per block, DTensor tensor and sequence parallelism with gathers that are not overlapped, interleaved 1F1B of
  torch.distributed.pipelining; torch.compile per block, fused AdamW ([torch_multi.py](torch_multi.py)). Over several microbatches it
  reduces gradients once per step, also where braid (`shard = "gradients"`) does after each.
- PyTorch's experts: torch._grouped_mm, rows exchanged by all_to_all_single with sizes that the host waits for, as torchtitan does it
  ([torch_experts.py](torch_experts.py)). Both sides drop no row and train with the same balance loss; routers are as initialised.
- Async TP: products of tensor ranks in pieces with communication between them, made by PyTorch's compiler.
- PyTorch, FP8: matrices of layers by torchao with one scale each; FSDP2 gathers FP8 weights, tensor ranks FP8 inputs.
- Any order: attention's backward may add in any order, as PyTorch's does (`runtime.repeatable = false`).
- MFU: tokens/s times model FLOPs per token (recompute does not count) over 989 TFLOP/s.
- Floor: the compute of the busiest rank, as if no communication were exposed and nothing waited; [h200.md](h200.md) says how it is
  measured.

{settings}
Overlap: the keys that are on, as `braid simulate --auto-overlap` found them for these GPUs, or as the run file says (none: defaults).
"""

TRACES = """## Where the step goes

{table}
Means of all ranks over the traced steps of one run, ms; tracing itself takes some time. Communication: how long it ran, and how long no
compute ran beside it (exposed), by kind of ranks. Waiting: the time until the last rank arrived, in which no bytes moved.
"""

MEMORY = """## Memory, GiB of the GPU that needs most

{table}
braid plans before the run and allocates exactly the plan, scratch for its kernels, and NCCL's buffers. By the driver: the increase that nvidia-smi
reports.
"""

SIMULATION = """## Predicted steps

{table}
`braid simulate` with data sheets (a cluster's name) or a profile, beside the measured median.
"""

TECHNIQUES = """## Overlap techniques, each alone

{table}
Tokens/s and GPU of one run each in one call; relative to no overlap at all (`overlap.mode = "off"`).
"""

NOT_MEASURED = """## Not measured

{lines}
"""


def in_short(message):
    """The first line of a failure, and the error that a program ended with."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [line for line in lines[1:] if re.search(r"Error\b|^braid: ", line)]
    return " - ".join([lines[0], *errors[-1:]])[:300] if lines else "no message"


class Runs:
    """All records of a case in its newest call."""

    def __init__(self, case, records):
        self.case = case
        own = [r for r in records if all(r.get(key) == case[key] for key in ("case", "gpus", "session"))]
        self.runs = [r for r in own if r["kind"] == "multi_run" and not r["technique"]]
        self.techniques = [r for r in own if r["kind"] == "multi_run" and r["technique"]]
        self.traces = {r["technique"]: r for r in own if r["kind"] == "multi_trace"}
        self.simulations = [r for r in own if r["kind"] == "multi_simulation"]
        self.failures = [r for r in own if r["kind"] == "failure"]

    def of(self, side):
        return [r for r in self.runs if r["side"] == side]

    def speeds(self, side):
        return [r["tokens_per_s_per_gpu"] for r in self.of(side)]

    def median(self, side):
        return statistics.median(self.speeds(side)) if self.speeds(side) else None

    def cell(self, side):
        speeds = self.speeds(side)
        if not speeds:
            return "failed" if any(r["what"].split(",")[0] == side for r in self.failures) else ""
        return f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})"

    def value(self, side, key):
        values = [r[key] for r in self.of(side) if r.get(key) is not None]
        return statistics.median(values) if values else None

    def step_ms(self):
        speed = self.median("braid")
        return 1e3 * self.case["global_batch"] * self.case["sequence"] / speed / self.case["gpus"] if speed else None


def numbers_of_gpus(records, small):
    return sorted({record["gpus"] for record in records if record["kind"] == "multi_case" and record["small"] == small})


class Page:
    """A case that was measured again is there once."""

    def __init__(self, records, small, gpus):
        records = [record for record in records if record.get("small") in (None, small)]
        self.records, self.gpus = records, gpus
        newest = {record["case"]: record for record in records if record["kind"] == "multi_case" and record["gpus"] == gpus}
        self.runs = [Runs(newest[name], records) for name in multi_cases.CASES if name in newest]
        machines = [record for record in records if record["kind"] == "machine"]
        with_gpus = [record for record in machines if record["gpu"] and record.get("gpus", gpus) >= gpus]
        self.machine = [{"gpu": None}, *machines, *with_gpus][-1]
        self.peak = next((peak for name, peak in PEAK_FLOPS.items() if name in (self.machine["gpu"] or "")), None)
        self.floors = {r["case"]: r for r in records if r["kind"] == "multi_floor" and r["gpus"] == self.gpus}

    def text(self):
        parts = [self.head(), self.steps(), self.traces(), self.memory(), self.simulated(), self.techniques(), self.not_measured()]
        return "\n".join(part for part in parts if part)

    def head(self):
        machine, gpu = self.machine, "none: a rehearsal on the CPU"
        if machine["gpu"]:
            gpu = f"{self.gpus} x {machine['gpu']}, {machine['memory']}, power limit {machine['power_limit']}, driver {machine['driver']}"
        dates = sorted({runs.case["time"][:10] for runs in self.runs})
        versions = sorted({r["version"] for runs in self.runs for r in runs.of("torch")})
        rows = [["GPUs", gpu], ["host", f"{machine.get('cpu')}, {machine.get('cores')} cores"],
                *([["PyTorch", ", ".join(versions)]] if versions else []),
                ["measured", " to ".join(dict.fromkeys([dates[0], dates[-1]])) + " (UTC)"]]
        return HEAD.format(title=f"{self.gpus} x {machine['gpu'] or 'no GPU'}", table=table(["", ""], rows))

    def mfu(self, runs, side):
        speed = runs.median(side)
        return f"{100 * speed * runs.case['flops_per_token'] / self.peak:.1f}%" if self.peak and speed else ""

    def steps(self):
        rows = []
        for runs in self.runs:
            both = runs.median("braid") and runs.median("torch")
            floor, step = self.floors.get(runs.case["case"]), runs.step_ms()
            rows.append([runs.case["title"], runs.cell("braid"), runs.cell("torch"),
                         f"{runs.median('braid') / runs.median('torch'):.2f}" if both else "", self.mfu(runs, "braid"),
                         self.mfu(runs, "torch"), number(step, "{:.1f}"), number(floor and floor["floor_ms"], "{:.1f}"),
                         f"{100 * floor['floor_ms'] / step:.0f}%" if floor and step else ""])
        heads = ["case", "braid, tokens/s and GPU", "PyTorch", "braid / PyTorch", "MFU, braid", "MFU, PyTorch", "step, ms", "floor, ms",
                 "of the floor"]
        for side, head in OTHER_SIDES.items():
            if any(runs.speeds(side) for runs in self.runs):
                heads.append(head)
                rows = [[*row, runs.cell(side)] for row, runs in zip(rows, self.runs)]
        warmup = next((r["warmup"] for runs in self.runs for r in runs.of("torch")), "some")
        return STEPS.format(table=table(heads, rows), warmup=warmup, settings=self.settings())

    def settings(self):
        rows = []
        for runs in self.runs:
            case, layout = runs.case, runs.case["layout"]
            sizes = " ".join(f"{key} {layout[key]}" for key in ("data", "tensor", "pipeline", "context") if layout[key] > 1)
            if case.get("experts"):
                sizes += f" expert {case['experts']['ranks']}"
            extras = [f"{layout['virtual_stages']} virtual stages"] if layout["virtual_stages"] > 1 else []
            extras += [f"{layout['shard']} sharded"] if layout["shard"] != "none" else []
            extras += ["sequence parallel"] if layout["sequence_parallel"] else []
            extras += [f"recompute {layout['recompute']}"] if layout["recompute"] != "none" else []
            changed = dict(item for r in runs.of("braid") for item in r["changes"].items())
            overlap = ", ".join(key if value is True else f"{key} = {value}" for key, value in case.get("overlap", {}).items())
            rows.append([case["title"], f"{case['parameters'] / 1e6:,.0f} M", ", ".join([sizes, *extras]),
                         f"{case['microbatches']} x {case['microbatch']} x {case['sequence']}",
                         ", ".join(f"{key} = {value}" for key, value in changed.items()), overlap, *(len(runs.of(side)) for side in SIDES),
                         *(number(runs.value(side, key)) for key in ("clock_mhz", "power_w") for side in SIDES),
                         *(number(runs.value(side, "loss"), "{:.3f}") for side in SIDES)])
        heads = ["case", "parameters", "layout", "per data rank and step", "braid's settings besides", "overlap", "rounds, braid",
                 "PyTorch", "MHz, braid", "PyTorch", "W, braid", "PyTorch", "last loss, braid", "PyTorch"]
        return table(heads, rows)

    def traces(self):
        rows = []
        for runs in self.runs:
            trace = runs.traces.get("")
            if trace:
                rows.append([runs.case["title"], *(f"{trace[key] / 1e6:.1f}" for key in ("step_ns", "compute_ns")),
                             *(number(trace["communication"].get(key) and trace["communication"][key] / 1e6, "{:.1f}")
                               for key in ("exposed_ns", "exposed_wait_ns")), self.by_kind(trace["by_group"]),
                             *(f"{trace[key] / 1e6:.1f}" for key in ("copy_ns", "idle_ns"))])
        heads = ["case", "step", "compute", "exposed communication", "of it waiting", "by kind: exposed of all", "copies", "idle"]
        return TRACES.format(table=table(heads, rows)) if rows else ""

    @staticmethod
    def by_kind(groups):
        return ", ".join(f"{name} {times['exposed_ns'] / 1e6:.1f} of {times['total_ns'] / 1e6:.1f}" for name, times in groups.items())

    def memory(self):
        rows = [[runs.case["title"], gib(runs.case["planned_bytes"]),
                 *(gib(runs.value(side, key)) for side, key in
                   (("braid", "driver_bytes"), ("torch", "allocated_bytes"), ("torch", "reserved_bytes"), ("torch", "driver_bytes")))]
                for runs in self.runs]
        heads = ["case", "braid: planned = allocated", "by the driver", "PyTorch: allocated at most", "reserved", "by the driver"]
        return MEMORY.format(table=table(heads, rows)) if rows else ""

    def simulated(self):
        rows = []
        for runs in self.runs:
            for record in runs.simulations:
                ms, step = record["step_ns"] / 1e6, runs.step_ms()
                rows.append([runs.case["title"], record["cost"], f"{ms:.1f}", number(step, "{:.1f}"),
                             f"{100 * (ms / step - 1):+.1f}%" if step else ""])
        return SIMULATION.format(table=table(["case", "by", "predicted, ms", "measured, ms", "error"], rows)) if rows else ""

    def techniques(self):
        rows = []
        for runs in self.runs:
            off = next((r["tokens_per_s_per_gpu"] for r in runs.techniques if r["technique"] == "off"), None)
            lines = [("", runs.median("braid"))] if runs.techniques and runs.median("braid") else []
            lines += [(r["technique"], r["tokens_per_s_per_gpu"]) for r in runs.techniques]
            for name, speed in lines:
                trace = runs.traces.get(name)
                rows.append([runs.case["title"], name or "as above", f"{speed:,.0f}",
                             f"{100 * (speed / off - 1):+.1f}%" if off else "",
                             number(trace and trace["communication"]["exposed_ns"] / 1e6, "{:.1f}"),
                             self.by_kind(trace["by_group"]) if trace else ""])
        heads = ["case", "technique", "tokens/s and GPU", "beside off", "exposed communication, ms", "by kind: exposed of all"]
        return TECHNIQUES.format(table=table(heads, rows)) if rows else ""

    def not_measured(self):
        """Of the newest call that met each case: what was skipped or failed before may have been measured since."""
        own = [r for r in self.records if r.get("gpus") == self.gpus and "session" in r and "case" in r]
        last = {r["case"]: r["session"] for r in own}
        lines = []
        for record in own:
            if record["session"] == last[record["case"]] and record["kind"] in ("multi_skip", "failure"):
                reason = record.get("reason") or f"failed: {in_short(record['message'])}"
                lines.append(f"- {record['case']} {record['what']}".rstrip() + f": {reason}")
        return NOT_MEASURED.format(lines="\n".join(lines)) if lines else ""


def path_of(page, arguments):
    """Where a page goes unless the command line says it."""
    if arguments.small or not page.machine["gpu"]:
        return pathlib.Path(arguments.results) / f"multi_smallx{page.gpus}.md"
    return FOLDER / f"{page.machine['gpu'].removeprefix('NVIDIA ').replace(' ', '_').lower()}x{page.gpus}.md"


def main():
    arguments = parse_arguments()
    records = gpu_bench.Results(arguments.results).read()
    pages = [Page(records, arguments.small, gpus) for gpus in numbers_of_gpus(records, arguments.small)]
    if not pages:
        sys.exit(f"multi_report.py: there are no results of several GPUs in {arguments.results}")
    for page in pages[-1:] if arguments.report else pages:
        path = arguments.report or path_of(page, arguments)
        gpu_bench.write_whole(path, page.text())
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
