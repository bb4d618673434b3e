#!/usr/bin/env python3
"""Writes the page of a GPU from raw results (raw.jsonl of check.sh): for each thing that was measured, the newest.

usage: report.py --results FOLDER [--report FILE] [--small]
"""
import argparse
import json
import pathlib
import shutil
import statistics
import sys

import gpu_bench
from gpu_bench import CASES, EXPERT_CASES, FOLDER, HYBRID_CASES

PEAK_FLOPS = {"H200": 989.4e12, "H100": 989.4e12}  # bf16 without sparsity, NVIDIA's data sheets
SIDES = {"braid": "braid", "torch": "PyTorch"}
FLASH_ATTN_4 = "torch_flash_attn_4"  # a third side, where the package was installed

HEAD = """# {gpu}

Written by `bench/gpu/check.sh` from its raw results: [bench/README.md](../README.md) says how, [bench/notes.md](../notes.md) what was
tried for single kernels. Rates are decimal.

{table}"""

TESTS = """## Tests

{table}
racecheck watches our own kernels, in all tests; it does not know the barriers and asynchronous copies of cuBLASLt's and cuDNN's. The tool
itself fails in programs of whole models (compute-sanitizer 2025.3.1: "Internal Sanitizer Error: The Sanitizer failed to handle a hardware
exception"), also when it watches no kernel at all, and the next CUDA call then reports an illegal address. Without it and under memcheck these
programs pass. So "NOT CLEAN" with 0 cases says nothing about them; the kernels that they run have cases of their own in `braid_cuda_tests`.
"""

END_TO_END = """## Training steps beside PyTorch

{table}
Tokens/s: medians of {rounds} rounds (least to most) in turns, braid, PyTorch, braid, PyTorch, ..., on one GPU in one call
(other cases may have run on other GPUs of the host). A round is a
process: {warmup} steps first, then the tokens of the timed steps over all the time between the end of the last step before them and the
end of the last one. Random token ids; bf16 with fp32 main weights and AdamW state; clipping to norm 1; no recompute, no checkpoint.

- Kernels. braid: attention by flash-attn-4 where that is faster (long sequences, and heads of 64), else by cuDNN; products with SwiGLU, or
  SwiGLU's backward, in their epilogue by quack, other products by the fastest of cuBLASLt's and quack's; its build compiles both packages.
  PyTorch: products by cuBLAS, everything else by torch.compile, attention as named below. "With flash-attn-4" is the same PyTorch
  with the attention of that package.
- MFU: tokens/s times model FLOPs per token (6 per matrix parameter without the input embedding, and 6 x layers x sequence x width;
  layers with states have those of their chunks instead) over 989 TFLOP/s.
- Floor of a step: matrix products and attention at the rate that their libraries reach alone, everything else at the bytes that must
  cross memory over the bandwidth of a copy, all measured on the same kind of machine. Attention's backward is the bitwise repeatable
  one that braid runs; PyTorch's adds with atomics in no fixed order. "With atomics" is against the faster of the two.

{settings}"""

CHOICES = """
Settings that a case leaves open, tokens/s of one run each; the rounds run the fastest:

{lines}
"""

MEMORY = """## Memory, GiB

{table}
braid plans before the run and allocates exactly the plan, and scratch for its kernels. By the driver: the increase that nvidia-smi reports,
including CUDA's context and the libraries' code.
"""

FLOORS = """## Where the time goes

Every distinct kernel of a step alone (a CUDA graph of launches on operands larger than the L2 cache, medians), by op, the longest first.
A gap between the last two columns is what a better kernel could save.

{tables}"""

LOSS_CURVE = """## A real run

{steps:,} steps of {tokens:,} tokens of real text, a llama of {millions:.0f} M parameters in {dtype}, from the same weights on the same
samples: the loss falls from {first:.2f} to {last:.2f}. [loss_curve/README.md](loss_curve/README.md) says what is the same and what is
not, [losses.csv](loss_curve/losses.csv) has the numbers.

![losses of both and their difference](loss_curve/losses.svg)

{table}
Held-out loss after the last step: {valid}.
"""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", required=True, type=pathlib.Path)
    parser.add_argument("--report", type=pathlib.Path, help="default: bench/gpu/NAME.md, named after the GPU")
    parser.add_argument("--small", action="store_true", help="of the rehearsal; default page: small.md beside the results")
    return parser.parse_args()


def newest(records, kind, key):
    """The last record of a kind for each value of key."""
    return {key(record): record for record in records if record["kind"] == kind}


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def number(value, form="{:.0f}"):
    return "" if value is None else form.format(value)


def gib(count):
    return "" if count is None else f"{count / 2**30:.1f}"


def torch_settings(run):
    """Microbatch and weights of a run of PyTorch, and which kernels it had for what mixes tokens."""
    attention = f"{run['attention']} attention" if run["attention"] else "no attention"
    scan = f", scan by {run['scan']}, chunks of {run['chunk']}" if run.get("scan") else ""
    return f"{run['microbatch']}, {run['weights']}, {attention}{scan}"


class Runs:
    """The runs of one case in its newest session: rounds of both sides with the settings that were chosen."""

    def __init__(self, case, records):
        runs = [r for r in records if r["kind"] == "run" and r["case"] == case]
        self.session = runs[-1]["session"] if runs else None
        runs = [r for r in runs if r["session"] == self.session]
        self.of = {side: self.chosen([r for r in runs if r["side"] == side]) for side in (*SIDES, FLASH_ATTN_4)}
        self.failed = {r["side"] for r in records if r["kind"] == "failure" and r.get("case") == case and r["time"] >= (self.session or "")}

    @staticmethod
    def chosen(runs):
        """Those with the options of the fastest run: all rounds, but for what the first one only tried."""
        best = max(runs, key=lambda r: r["tokens_per_s"], default=None)
        last = runs[-1]["options"] if runs and runs[-1]["round"] > 1 else best and best["options"]
        return [r for r in runs if r["options"] == last]

    def speeds(self, side):
        return [r["tokens_per_s"] for r in self.of[side]]

    def median(self, side):
        return statistics.median(self.speeds(side)) if self.of[side] else None

    def ratio(self, side="torch"):
        both = self.of["braid"] and self.of[side]
        return f"{self.median('braid') / self.median(side):.2f}" if both else ""

    def cell(self, side):
        if not self.of[side]:
            return "failed" if side in self.failed else ""
        speeds = self.speeds(side)
        return f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})"

    def value(self, side, key):
        values = [r[key] for r in self.of[side] if r.get(key) is not None]
        return statistics.median(values) if values else None


class Page:
    def __init__(self, records, small):
        self.records = [record for record in records if record.get("small") in (None, small)]
        machines = [record for record in records if record["kind"] == "machine"]
        with_gpu = [record for record in machines if record["gpu"]]
        self.machine = [{"gpu": None}, *machines, *with_gpu][-1]
        self.peak = next((peak for name, peak in PEAK_FLOPS.items() if name in (self.machine["gpu"] or "")), None)
        self.cases = newest(self.records, "case", lambda r: r["name"])
        self.floors = newest(self.records, "floor", lambda r: r["name"])
        runs = {case: Runs(case, self.records) for case in [*CASES, *EXPERT_CASES, *HYBRID_CASES] if case in self.cases}
        self.runs = {case: each for case, each in runs.items() if each.session}

    def text(self):
        parts = [self.head(), self.tests(), self.end_to_end(), self.memory(), self.floor_tables(), self.loss_curve(), self.kernels()]
        return "\n".join(part for part in parts if part)

    def head(self):
        machine = self.machine
        dates = sorted({record["time"][:10] for record in self.records})
        versions = {record["version"] for record in self.records if record.get("version")}
        gpu = "none: a rehearsal on the CPU"
        if machine["gpu"]:
            gpu = f"{machine['gpu']}, {machine['memory']}, power limit {machine['power_limit']}, driver {machine['driver']}"
        rows = [["GPU", gpu], ["host", self.hosts()],
                *([["PyTorch", ", ".join(sorted(versions))]] if versions else []),
                ["measured", " to ".join(dict.fromkeys([dates[0], dates[-1]])) + " (UTC)"]]
        return HEAD.format(gpu=machine["gpu"] or "No GPU", table=table(["", ""], rows))

    def hosts(self):
        """Processors, each with the numbers of cores of its hosts."""
        cores = {}
        for machine in (record for record in self.records if record["kind"] == "machine" and record.get("gpu") == self.machine["gpu"]):
            cores.setdefault(machine.get("cpu"), set()).add(machine.get("cores"))
        return "; ".join(f"{cpu}, {' or '.join(map(str, sorted(of)))} cores" for cpu, of in cores.items())

    def tests(self):
        rows = []
        for program, r in newest(self.records, "tests", lambda r: r["program"]).items():
            outcome = f"{r['passed']} passed, {len(r['failed'])} failed, {sum(r['skipped'].values())} skipped"
            outcome += "".join(f" ({count}: {reason})" for reason, count in r["skipped"].items())
            rows.append([f"`{program}`", outcome, number(r["seconds"])])
        for (tool, program), r in newest(self.records, "sanitizer", lambda r: (r["tool"], r["program"])).items():
            rows.append([f"{tool}, `{program}`", self.sanitizer_outcome(r), number(r["seconds"])])
        return TESTS.format(table=table(["what", "outcome", "seconds"], rows)) if rows else ""

    @staticmethod
    def sanitizer_outcome(record):
        failed, skipped = record.get("failed", []), record.get("skipped", {})
        outcome = f"{'clean' if record['clean'] else 'NOT CLEAN'}, {record['cases']} cases, {len(failed)} failed"
        outcome += "".join(f", {name}" for name in failed[:5])
        return outcome + f", {sum(skipped.values())} skipped" + "".join(f" ({count}: {reason})" for reason, count in skipped.items())

    def mfu(self, case, side):
        speed = self.runs[case].median(side)
        return f"{100 * speed * self.cases[case]['flops_per_token'] / self.peak:.1f}%" if self.peak and speed else ""

    def step_ms(self, case):
        if case not in self.runs:
            return None
        shape, speed = self.cases[case], self.runs[case].median("braid")
        return 1e3 * shape["global_batch"] * shape["sequence"] / speed if speed else None

    def floor_cells(self, case):
        floor, step = self.floors.get(case), self.step_ms(case)
        if not floor or not step:
            return [number(step, "{:.1f}"), "", "", ""]
        reached = [f"{100 * floor[key] / step:.0f}%" for key in ("floor_ms", "floor_atomics_ms")]
        return [f"{step:.1f}", f"{floor['floor_ms']:.1f}", *reached]

    def end_to_end(self):
        if not self.runs:
            return ""
        has_third = any(runs.of[FLASH_ATTN_4] for runs in self.runs.values())
        rows = [[case, runs.cell("braid"), runs.cell("torch"), runs.ratio(),
                 *([runs.cell(FLASH_ATTN_4), runs.ratio(FLASH_ATTN_4)] if has_third else []), self.mfu(case, "braid"), self.mfu(case, "torch"),
                 *self.floor_cells(case)] for case, runs in self.runs.items()]
        third = ["PyTorch with flash-attn-4, tokens/s", "braid / that"] if has_third else []
        heads = ["case", "braid, tokens/s", "PyTorch, tokens/s", "braid / PyTorch", *third, "MFU, braid", "MFU, PyTorch",
                 "step, ms", "floor, ms", "of the floor", "with atomics"]
        rounds = sorted(len(runs.of[side]) for runs in self.runs.values() for side in SIDES)
        warmup = [run["warmup"] for runs in self.runs.values() for run in runs.of["torch"]]
        return END_TO_END.format(table=table(heads, rows), rounds=" to ".join(dict.fromkeys([str(rounds[0]), str(rounds[-1])])),
                                 warmup=warmup[0] if warmup else "some", settings=self.settings() + self.choices())

    def settings(self):
        rows = []
        for case, runs in self.runs.items():
            shape = self.cases[case]
            last = {side: runs.of[side][-1] if runs.of[side] else None for side in SIDES}
            torch = last["torch"]
            rows.append([case, f"{shape['parameters'] / 1e6:,.0f} M", f"{shape['global_batch']} sequences of {shape['sequence']}",
                         last["braid"]["microbatch"] if last["braid"] else "",
                         torch_settings(torch) if torch else "",
                         *(number(runs.value(side, key)) for key in ("clock_mhz", "power_w") for side in SIDES)])
        return table(["case", "parameters", "step", "microbatch, braid", "PyTorch: microbatch, weights, kernels", "MHz, braid",
                      "PyTorch", "W, braid", "PyTorch"], rows)

    def choices(self):
        lines = []
        for (case, side), record in newest(self.records, "choice", lambda r: (r["case"], r["side"])).items():
            tried = []
            for each in record["measured"]:
                options = " ".join(f"{key} {value}" for key, value in each.items() if key != "tokens_per_s")
                tried.append(f"{options or 'as the case says'}: {number(each['tokens_per_s'], '{:,.0f}') or 'failed'}")
            lines.append(f"- {case}, {SIDES[side]}: {'; '.join(tried)}")
        return CHOICES.format(lines="\n".join(lines)) if lines else ""

    def memory(self):
        rows = []
        for case, runs in self.runs.items():
            rows.append([case, gib(self.cases[case]["planned_bytes"]), gib(self.floors.get(case, {}).get("scratch_bytes")),
                         *(gib(runs.value(side, key)) for side, key in
                           (("braid", "driver_bytes"), ("torch", "allocated_bytes"), ("torch", "reserved_bytes"), ("torch", "driver_bytes")))])
        heads = ["case", "braid: planned = allocated", "scratch", "by the driver", "PyTorch: allocated at most", "reserved",
                 "by the driver"]
        return MEMORY.format(table=table(heads, rows)) if rows else ""

    def floor_tables(self):
        tables = [self.floor_table(case, self.floors[case]) for case in [*CASES, *EXPERT_CASES, *HYBRID_CASES] if case in self.floors]
        return FLOORS.format(tables="\n".join(tables)) if tables else ""

    def floor_table(self, case, floor):
        by_op = {}
        for line in floor["ops"]:
            by_op.setdefault(line["op"], []).append(line)
        rows = [row for lines in sorted(by_op.values(), key=lambda lines: -sum(line["alone_ms"] for line in lines))
                for row in self.op_rows(lines)]
        rows.append(["all", sum(line["count"] for line in floor["ops"]), "", "", f"{floor['alone_ms']:.2f}", f"{floor['floor_ms']:.2f}"])
        step = self.step_ms(case)
        title = f"### {case}\n\nA copy: {floor['copy_bytes_per_s'] / 1e12:.2f} TB/s read and written."
        title += f" A step: {step:.1f} ms." if step else ""
        return title + "\n\n" + table(["op", "tasks", "TFLOP/s", "GB/s", "ms alone", "ms floor"], rows)

    @staticmethod
    def op_rows(lines):
        """Sums over the shapes of an op."""
        alone, least = (sum(line[key] for line in lines) for key in ("alone_ms", "floor_ms"))
        flops, moved = (sum(line[key] * line["count"] for line in lines) for key in ("flops", "bytes"))
        count = sum(line["count"] for line in lines)
        rows = [[lines[0]["op"], count, f"{flops / alone / 1e9:.0f}", f"{moved / alone / 1e6:.0f}", f"{alone:.2f}", f"{least:.2f}"]]
        if all("atomics_us" in line for line in lines):
            atomics = sum(line["atomics_us"] * line["count"] for line in lines) * 1e-3
            rows.append(["with atomics", count, f"{flops / atomics / 1e9:.0f}", "", f"{atomics:.2f}", ""])
        return rows

    def loss_curve(self):
        curves = [record for record in self.records if record["kind"] == "loss_curve"]
        if not curves:
            return ""
        curve = curves[-1]
        keys = ["first", "mean_step", "largest_step", "mean_smoothed", "largest_smoothed", "mean_signed"]
        rows = [[name, *(f"{curve[key][what]:.1e}" for what in keys)] for name, key in
                (("braid - PyTorch", "braid_torch"), ("PyTorch, other attention kernel - PyTorch", "torch_torch"))]
        heads = ["nats per token", "first step", "mean of steps", "largest", f"moving mean of {curve['window']} steps: mean", "largest",
                 "mean with sign"]
        names = {"braid": "braid", "torch": "PyTorch", "torch_other": "PyTorch with the other kernel"}
        return LOSS_CURVE.format(
            steps=curve["steps"], tokens=curve["tokens_per_step"], millions=curve["parameters"] / 1e6, dtype=curve["dtype"],
            first=curve["first_loss"], last=curve["last_smoothed_loss"], table=table(heads, rows),
            valid=", ".join(f"{name} {curve['valid'][side]:.4f}" for side, name in names.items()))

    def kernels(self):
        parts = newest(self.records, "kernels", lambda r: r["title"])
        texts = [f"### {title}\n\n{record['text'].strip()}\n" for title, record in parts.items()]
        return "## Single kernels\n\n" + "\n".join(texts) if texts else ""


def copy_curve(results, page):
    """The table and the plot that the page shows lie in loss_curve beside it."""
    folder = page.parent / "loss_curve"
    for name in ("losses.csv", "losses.svg"):
        if (results / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(results / name, folder / (name + ".tmp"))
            (folder / (name + ".tmp")).replace(folder / name)


def write_choices(records, page):
    """Settings that were chosen, where end_to_end.py looks for them."""
    choices = {}
    for (case, side), record in newest(records, "choice", lambda r: (r["case"], r["side"])).items():
        choices.setdefault(case, {})[side] = record["options"]
    if choices:
        gpu_bench.write_whole(page.parent / "cases" / "choices.json", json.dumps(choices, indent=2) + "\n")


def main():
    arguments = parse_arguments()
    records = gpu_bench.Results(arguments.results).read()
    if not records:
        sys.exit(f"report.py: there are no results in {arguments.results}")
    page = Page(records, arguments.small)
    path = arguments.report
    if path is None and (arguments.small or not page.machine["gpu"]):
        path = arguments.results / "small.md"
    elif path is None:
        path = FOLDER / (page.machine["gpu"].removeprefix("NVIDIA ").replace(" ", "_").lower() + ".md")
    gpu_bench.write_whole(path, page.text())
    if not arguments.small:
        copy_curve(arguments.results, path)
        write_choices(page.records, path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
