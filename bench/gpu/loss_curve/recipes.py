#!/usr/bin/env python3
"""Trains the same model with several numerics and several seeds, and says whether the losses of each are those of bf16.

usage: recipes.py --bin FOLDER --results FOLDER --data PREFIX [--variant NAME]... [--seeds N] [--first-seed N] [--gpus N] [--per-gpu N]
                  [--steps N] [--small] [--device cpu] [--report FILE] [--page-only]

"bf16-halves" shows how far rounding alone takes two runs apart. A variant passes if its final losses are, on average over the seeds, within the larger of 0.25% and the spread of bf16's seeds from those of bf16. Final loss: the held-out loss after the last step, and the mean of the last 100 training losses.
Writes a line of raw.jsonl per run and, from the newest runs in RESULTS, recipes.md and recipes.svg (--report FILE.md: elsewhere).
"""
import argparse
import json
import math
import os
import pathlib
import queue
import statistics
import sys
import tempfile
import threading
import time

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))
import gpu_bench  # noqa: E402
from gpu_bench import Failure  # noqa: E402
from compare import SMALL, moving_mean  # noqa: E402
import plot  # noqa: E402

VARIANTS = {
    "bf16": {},
    "bf16-halves": {"train.microbatch": 16},  # the same in two microbatches: other rounding and nothing else
    "tensor": {"train.fp8": "tensor"},
    "block": {"train.fp8": "block"},
    "mxfp8": {"train.fp8": "mxfp8"},
    "bf16-moments": {"optimizer.moments_dtype": "bfloat16"},
    "block-bf16-moments": {"train.fp8": "block", "optimizer.moments_dtype": "bfloat16"},
    "block-head": {"train.fp8": "block", "train.fp8_head": "true"},
}
REFERENCE = "bf16"
LAST_STEPS = 100
ALLOWED = 0.0025  # of the loss
TIME_LIMIT_S = 1200
COLORS = dict(zip(VARIANTS, ["#222222", "#d1495b", "#30638e", "#8a9a5b", "#edae49", "#7d4f9e", "#00798c", "#b5651d"]))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, help="build folder, or folder of the programs")
    parser.add_argument("--results", required=True, type=pathlib.Path, help="folder of raw.jsonl, which is appended to")
    parser.add_argument("--data", type=pathlib.Path, help="prefix of the tokens, with tokenizer.model beside them")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), dest="variants", help="only this one; may be repeated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1, help="of --seeds seeds, to add to earlier results")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs to use, each for runs of its own")
    parser.add_argument("--per-gpu", type=int, default=1, help="runs at once on each")
    parser.add_argument("--steps", type=int, help="instead of those of run.toml")
    parser.add_argument("--small", action="store_true", help="a tiny model, to rehearse")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--report", type=pathlib.Path, help="the page; the curves are beside it")
    parser.add_argument("--page-only", action="store_true", help="run nothing; write the page from earlier results")
    arguments = parser.parse_args()
    if not arguments.page_only and not (arguments.bin and arguments.data):
        parser.error("--bin and --data are needed to run")
    return arguments


class Runs:
    """Runs wait in a queue; each GPU takes the next when it is free."""

    def __init__(self, arguments, results, work):
        self.arguments, self.results, self.work = arguments, results, work
        self.braid = gpu_bench.find_program(arguments.bin, "braid")
        self.waiting, self.failures = queue.Queue(), 0

    def settings(self, variant, seed):
        folder = self.work / f"{variant}_{seed}"
        changes = {"data.train": self.arguments.data.resolve(), "data.tokenizer": self.arguments.data.with_name("tokenizer.model").resolve(),
                   "runtime.device": self.arguments.device, "logging.run_folder": folder, "train.seed": seed,
                   "checkpoint.folder": folder / "checkpoints", **(SMALL if self.arguments.small else {}), **VARIANTS[variant]}
        if self.arguments.small:  # blocks of 128 must fit
            changes |= {"model.width": 128, "model.ffn": 256, "train.sequence": 128, "train.microbatch": 1, "train.dtype": "bfloat16"}
        if self.arguments.steps:
            changes["train.steps"] = self.arguments.steps
        return folder, changes

    def run(self, variant, seed, gpu):
        folder, changes = self.settings(variant, seed)
        begin = time.monotonic()
        try:
            gpu_bench.run([self.braid, "train", FOLDER / "run.toml", *gpu_bench.as_arguments(changes)], TIME_LIMIT_S,
                          {"CUDA_VISIBLE_DEVICES": str(gpu), "XDG_CACHE_HOME": str(self.work / f"cache{gpu}")})
        except Failure as failure:
            self.failures += 1
            self.results.add("failure", stage="recipes", variant=variant, seed=seed, message=str(failure)[-2000:])
            print(f"{variant}, seed {seed}: FAILED: {failure}", flush=True)
            return
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        losses = [record["loss"] for record in records if "loss" in record]
        valid = {record["step"]: record["valid_loss"] for record in records if "valid_loss" in record}
        self.results.add("recipe", variant=variant, seed=seed, small=self.arguments.small, losses=[round(x, 5) for x in losses],
                         valid=valid, total_s=time.monotonic() - begin)
        print(f"{variant}, seed {seed}: held-out loss {valid[max(valid)]:.4f} after {len(losses)} steps, "
              f"{time.monotonic() - begin:.0f} s", flush=True)

    def work_on(self, gpu):
        while True:
            try:
                variant, seed = self.waiting.get_nowait()
            except queue.Empty:
                return
            self.run(variant, seed, gpu)

    def run_all(self):
        for seed in range(self.arguments.first_seed, self.arguments.first_seed + self.arguments.seeds):
            for variant in self.arguments.variants or VARIANTS:
                self.waiting.put((variant, seed))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = (visible.split(",") if visible else list(range(self.arguments.gpus)))[:self.arguments.gpus]
        threads = [threading.Thread(target=self.work_on, args=(gpu,)) for gpu in gpus for _ in range(self.arguments.per_gpu)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def newest(records, small):
    """Runs by variant and seed."""
    runs = {}
    for record in records:
        if record["kind"] == "recipe" and record["small"] == small:
            runs.setdefault(record["variant"], {})[record["seed"]] = record
    return {variant: runs[variant] for variant in VARIANTS if variant in runs}


def final_losses(runs):
    """Held-out loss after the last step and mean of the last training losses, by seed."""
    held_out, training = {}, {}
    for seed, run in runs.items():
        held_out[seed] = run["valid"][max(run["valid"], key=int)]
        training[seed] = statistics.mean(run["losses"][-LAST_STEPS:])
    return held_out, training


def judged(losses, reference):
    """Mean over seeds, the mean distance from the reference at equal seeds, its standard error, and the limit of that distance."""
    middle = statistics.mean(reference.values())
    spread = max(abs(value - middle) for value in reference.values())
    apart = [losses[seed] - reference[seed] for seed in losses if seed in reference]
    error = statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else float("nan")
    return statistics.mean(losses.values()), statistics.mean(apart) if apart else float("nan"), error, max(spread, ALLOWED * middle)


def rows(runs):
    reference = final_losses(runs[REFERENCE])
    lines = []
    for variant, of_variant in runs.items():
        for what, losses, of_reference in zip(("held-out", "training"), final_losses(of_variant), reference):
            mean, apart, error, limit = judged(losses, of_reference)
            percent = 100 / statistics.mean(of_reference.values())
            lines.append([variant, what, f"{mean:.4f}", " ".join(f"{losses[seed]:.4f}" for seed in sorted(losses)),
                          "" if variant == REFERENCE else f"{apart * percent:+.2f}%",
                          "" if variant == REFERENCE else f"{error * percent:.2f}%", f"{limit * percent:.2f}%",
                          "" if variant == REFERENCE else "yes" if abs(apart) <= limit else "NO"])
    return lines


def mean_curve(runs):
    """Smoothed training losses, averaged over runs."""
    return [statistics.mean(values) for values in zip(*(moving_mean(run["losses"]) for run in runs))]


def curves(runs, window):
    """Means over seeds of smoothed training losses, and below their difference to bf16, seed by seed."""
    smooth = {variant: mean_curve(of.values()) for variant, of in runs.items()}
    apart = {}
    for variant, of in runs.items():
        both = [seed for seed in of if seed in runs[REFERENCE]]
        if variant != REFERENCE and both:
            pair = mean_curve(of[seed] for seed in both), mean_curve(runs[REFERENCE][seed] for seed in both)
            apart[variant] = [a - b for a, b in zip(*pair)]
    first_x, x_range = (window + 1) / 2, (0, len(smooth[REFERENCE]) + window)
    top = plot.Panel(0, x_range, plot.padded([v for values in smooth.values() for v in values]),
                     f"training loss, nats per token: means of {window} steps and of the seeds")
    bottom = plot.Panel(plot.HEIGHT, x_range, plot.padded([0.0, *(v for values in apart.values() for v in values[len(values) // 10:])]),
                        "difference to bf16, the same means")
    for panel in (top, bottom):
        panel.axes()
    for i, variant in enumerate(runs):
        top.line(smooth[variant], first_x, COLORS[variant])
        top.text(plot.WIDTH - plot.RIGHT - 4, plot.TOP + 18 + 16 * i, variant, "end", COLORS[variant])
    for variant, values in apart.items():
        skipped = len(values) // 10  # the steep beginning would hide the rest
        bottom.line(values[skipped:], first_x + skipped, COLORS[variant])
    return plot.picture([top, bottom])


def write_page(arguments, records):
    runs = newest(records, arguments.small)
    if REFERENCE not in runs:
        raise Failure(f"there is no run of {REFERENCE} to compare with")
    page = arguments.report or arguments.results / "recipes.md"
    machines = list(dict.fromkeys(record.get("gpu") or record["cpu"] for record in records if record["kind"] == "machine"))
    steps = len(next(iter(runs[REFERENCE].values()))["losses"])
    heads = ["variant", "loss", "mean", "by seed", "from bf16", "error", "limit", "within"]
    table = [heads, ["---"] * len(heads), *rows(runs)]
    text = (f"# Losses of FP8 recipes and of bf16 moments\n\nWritten by [recipes.py](recipes.py). {steps:,} steps of [run.toml](run.toml), "
            f"{' and '.join(machines)}; {min(len(of) for of in runs.values())} seeds or more of each variant.\n\n"
            f"Final losses, nats per token. Training: the mean of the last {LAST_STEPS} steps. From bf16: the mean "
            f"of the differences at equal seeds (the same weights and samples), and its standard error. Limit: the larger of {100 * ALLOWED:.2f}% and "
            "the largest distance of a bf16 seed from bf16's mean.\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in table) +
            f"\n\n![Losses over steps]({page.stem}.svg)\n")
    gpu_bench.write_whole(page, text)
    gpu_bench.write_whole(page.with_suffix(".svg"), curves(runs, min(50, steps)))
    print(text)


def main():
    arguments = parse_arguments()
    results = gpu_bench.Results(arguments.results)
    try:
        failures = 0
        if not arguments.page_only:
            results.add("machine", **gpu_bench.machine())
            with tempfile.TemporaryDirectory(prefix="braid_recipes_") as work:
                runs = Runs(arguments, results, pathlib.Path(work))
                runs.run_all()
                failures = runs.failures
        write_page(arguments, results.read())
        return 1 if failures else 0
    except Failure as failure:
        sys.exit(f"recipes.py: {failure}")


if __name__ == "__main__":
    sys.exit(main())
