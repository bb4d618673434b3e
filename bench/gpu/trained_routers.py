#!/usr/bin/env python3
"""What the loads of trained routers cost. A case with experts is trained on text in small batches; the choices of its routers in the last steps are
recorded, and replayed in steps of the case's own size, in turns with equal loads (moe.force_balance).

usage: trained_routers.py --bin FOLDER --results FOLDER --data PREFIX [--case NAME]... [--steps 500] [--timed 12] [--rounds 3] [--small] [--device cpu]

--data: tokens of a text, as loss_curve/README.md makes them; their ids must be below the case's vocabulary.
"""
import argparse
import datetime
import json
import pathlib
import statistics
import sys
import tempfile
import tomllib

import gpu_bench
from end_to_end import LOG_LINE, WARMUP_STEPS
from gpu_bench import Failure

HEADER_BYTES = 512  # of a file of moe.record; u16 [routers, samples, sequence, experts per token] follow for each step
BYTES_PER_CHOICE = 2
REPLAYED_STEPS = 4  # recorded for so many steps of the case, which repeat
RUN_LIMIT_S = 400
SMALL = {"model.vocabulary": 4096, "data.tokenizer": "ids:4096"}  # beside what makes every case small: the text's ids
TRAINING = {"optimizer.learning_rate": 4e-4, "optimizer.schedule": "constant", "optimizer.warmup_steps": 50}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="build folder, or folder of the programs")
    parser.add_argument("--results", required=True, help="folder of raw.jsonl, which is appended to")
    parser.add_argument("--data", required=True, type=pathlib.Path, help="prefix of the tokens of a text")
    parser.add_argument("--case", action="append", choices=gpu_bench.EXPERT_CASES, dest="cases", help="may be repeated (default: all)")
    parser.add_argument("--steps", type=int, default=500, help="of training before choices are recorded (500)")
    parser.add_argument("--timed", type=int, default=12, help="steps of each timed run, of which the first three do not count (12)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of both sides (3)")
    parser.add_argument("--small", action="store_true", help="tiny versions of the cases, to rehearse")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    arguments.cases = arguments.cases or gpu_bench.EXPERT_CASES
    return arguments


class Routing:
    """A file of moe.record."""

    def __init__(self, path):
        self.header = json.loads(path.open("rb").read(HEADER_BYTES))
        self.path, self.routers, self.samples = path, self.header["routers"], self.header["samples"]
        self.sample_bytes = self.header["sequence"] * self.header["experts_per_token"] * BYTES_PER_CHOICE
        self.step_bytes = self.routers * self.samples * self.sample_bytes

    def steps(self, first, count):
        """Bytes of so many steps, the first counted from 0."""
        with self.path.open("rb") as file:
            file.seek(HEADER_BYTES + first * self.step_bytes)
            return [file.read(self.step_bytes) for _ in range(count)]

    def joined(self, steps):
        """One step with the samples of all: those of a router lie one behind the other."""
        size = self.samples * self.sample_bytes
        return b"".join(step[router * size:(router + 1) * size] for router in range(self.routers) for step in steps)

    def write_larger(self, path, first, per_step, count):
        """A file of `count` steps, each of the samples of `per_step` recorded ones."""
        header = {**self.header, "samples": self.samples * per_step, "first_step": 1}
        with open(path, "wb") as file:
            file.write(json.dumps(header).encode().ljust(HEADER_BYTES - 1) + b"\n")
            for step in range(count):
                file.write(self.joined(self.steps(first + step * per_step, per_step)))

    def busiest(self, first, count):
        """For each router, rows of the busiest expert over the mean."""
        step = memoryview(self.joined(self.steps(first, count))).cast("H")
        size = len(step) // self.routers
        loads = []
        for router in range(self.routers):
            counts = [0] * (self.header["experts"] + 1)
            for choice in step[router * size:(router + 1) * size]:
                counts[choice] += 1
            if counts[0]:
                raise Failure(f"{self.path}: {counts[0]} choices of a step were not recorded")
            loads.append(max(counts) * self.header["experts"] / size)
        return loads


class Bench:
    def __init__(self, arguments, work):
        self.arguments, self.work = arguments, work
        self.results = gpu_bench.Results(arguments.results)
        self.braid = gpu_bench.find_program(arguments.bin, "braid")
        self.results.add("machine", **gpu_bench.machine())

    def train(self, case, changes):
        """What it printed."""
        folder = self.work / "run"
        words = {**gpu_bench.settings(case, self.arguments.small, self.arguments.device), **(SMALL if self.arguments.small else {}), "data.train": self.arguments.data, "logging.run_folder": folder,
                 "logging.format": "megatron", **changes}
        text = gpu_bench.run([self.braid, "train", gpu_bench.run_file(case), *gpu_bench.as_arguments(words),
                              "--set", f"checkpoint.folder={folder / 'checkpoints'}"], RUN_LIMIT_S)
        (folder / "metrics.jsonl").unlink()
        return text

    def record(self, case, per_step):
        """Trains; returns the recorded choices, with those of the case's steps behind the training."""
        microbatch, path = self.size(case, "microbatch"), self.work / f"{case}.routing"
        steps = self.arguments.steps + REPLAYED_STEPS * per_step
        text = self.train(case, {**TRAINING, "train.global_batch": microbatch, "train.steps": steps, "moe.record": path, "moe.record_steps": steps})
        losses = [float(word) for word in (part.split("|")[0] for part in text.split("lm loss:")[1:])]
        return Routing(path), losses

    def size(self, case, key):
        changed = gpu_bench.settings(case, self.arguments.small, self.arguments.device).get(f"train.{key}")
        return changed or tomllib.loads(gpu_bench.run_file(case).read_text(encoding="utf-8"))["train"][key]

    def tokens_per_s(self, case, changes):
        text = self.train(case, {"train.steps": self.arguments.timed, **changes})
        ends = [datetime.datetime.fromisoformat(match.group(1).strip()) for match in LOG_LINE.finditer(text)][WARMUP_STEPS - 1:]
        return self.size(case, "global_batch") * self.size(case, "sequence") * (len(ends) - 1) / (ends[-1] - ends[0]).total_seconds()

    def run(self, case):
        per_step = self.size(case, "global_batch") // self.size(case, "microbatch")
        routing, losses = self.record(case, per_step)
        replay = self.work / f"{case}.replay"
        routing.write_larger(replay, self.arguments.steps, per_step, REPLAYED_STEPS)
        busiest = routing.busiest(self.arguments.steps, per_step)
        sides = {"equal": {"moe.force_balance": "true"}, "trained": {"moe.replay": replay}}
        speeds = {side: [] for side in sides}
        for _ in range(self.arguments.rounds):
            for side, changes in sides.items():
                speeds[side].append(self.tokens_per_s(case, changes))
        self.results.add("trained_routers", case=case, small=self.arguments.small, steps=self.arguments.steps, tokens_per_s=speeds, busiest=busiest,
                         first_loss=losses[0], last_loss=statistics.fmean(losses[-20:]))
        medians = {side: statistics.median(values) for side, values in speeds.items()}
        print(f"{case}: loss {losses[0]:.2f} -> {statistics.fmean(losses[-20:]):.2f}; busiest expert "
              f"{min(busiest):.2f} to {max(busiest):.2f} times the mean; tokens/s: "
              + ", ".join(f"{side} {medians[side]:,.0f} ({min(values):,.0f} to {max(values):,.0f})" for side, values in speeds.items())
              + f"; {100 * (1 - medians['trained'] / medians['equal']):.1f}% lost", flush=True)


def main():
    arguments = parse_arguments()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="braid_routers_") as work:
        bench = Bench(arguments, pathlib.Path(work))
        for case in arguments.cases:
            try:
                bench.run(case)
            except Failure as failure:
                print(f"{case}: FAILED: {failure}", file=sys.stderr)
                bench.results.add("failure", stage="trained_routers", case=case, message=str(failure)[-2000:])
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
