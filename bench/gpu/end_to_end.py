#!/usr/bin/env python3
"""Tokens per second of training steps on one GPU, braid beside PyTorch, in turns: the cases of cases/*.toml and, if named, those of
cases/experts, cases/hybrids (PyTorch with the package mamba-ssm, if it is there) and cases/finetune (for which PyTorch needs peft).

usage: end_to_end.py --bin FOLDER --results FOLDER [--case NAME]... [--rounds N] [--fp8] [--optimizer muon] [--choose] [--floors] [--small] [--device cpu]

Where a case leaves settings open (microbatch; for PyTorch also how weights are kept), each side runs with its fastest, from
cases/choices.json or, with --choose, by measuring all of them in the first round. A figure of a run is the tokens of its timed
steps over the time from the end of the last step before them to the end of the last one, all that happens between steps included.
--fp8 measures steps with FP8 products instead: braid's recipes for Hopper, and PyTorch's with torchao, which must be installed.
--optimizer muon trains with Muon on both sides, in PyTorch by torch.optim.Muon.
--floors measures the floor of each case instead (braid_bench_floor).
"""
import argparse
import datetime
import json
import pathlib
import re
import sys
import tempfile
import time
import tomllib

import expert_settings
import gpu_bench
from gpu_bench import CASES, EXPERT_CASES, FINETUNE_CASES, FOLDER, HYBRID_CASES, Failure

WARMUP_STEPS = 3  # the first step of braid runs task by task, PyTorch compiles in its first
# braid logs a step after it has launched the next one, which takes part of a step if the graph is large. The last step is logged at
# once. So one more step follows the timed ones, and the log lines of all timed steps have the same delay.
SPARE_STEPS = 1
TIME_LIMIT_S = 420
MICROBATCHES = {"qwen2.5-7b-l14": [8, 16], "gpt2-124m": [32, 64]}  # of the cases that leave it open
TORCH_WEIGHTS = ["fsdp", "autocast"]
TORCH_CHUNKS = [128, 256]  # of the scan of states
FLASH_ATTN_4_SIDE = "torch_flash_attn_4"
FP8_SIDES = {"braid_fp8_tensor": "tensor", "braid_fp8_block": "block", "torch_fp8_tensorwise": "tensorwise"}
LOG_LINE = re.compile(r"^ \[([0-9: .-]+)\] iteration\s+(\d+)/", re.MULTILINE)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="build folder, or folder of the programs")
    parser.add_argument("--results", required=True, help="folder of raw.jsonl, which is appended to")
    parser.add_argument("--case", action="append", choices=[*CASES, *EXPERT_CASES, *HYBRID_CASES, *FINETUNE_CASES], dest="cases",
                        help="only this one; may be repeated (default: all of cases/*.toml)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flash-attn-4", action="store_true",
                        help="also PyTorch with this package, which must be installed, in each round")
    parser.add_argument("--fp8", action="store_true", help="steps with FP8 products, instead of those in bf16")
    parser.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw", help="of both sides (adamw)")
    parser.add_argument("--choose", action="store_true", help="measure the settings that a case leaves open")
    parser.add_argument("--floors", action="store_true", help="measure floors instead")
    parser.add_argument("--small", action="store_true", help="tiny versions of the cases, to rehearse")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    arguments = parser.parse_args()
    arguments.cases = arguments.cases or CASES
    return arguments


def load_choices(results):
    """Settings by case and side: those of the repository, or what was measured since."""
    path = FOLDER / "cases" / "choices.json"
    choices = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for record in results.read():
        if record["kind"] == "choice" and not record["small"]:
            choices.setdefault(record["case"], {})[record["side"]] = record["options"]
    return choices


class Bench:
    """Runs of both sides for the cases."""

    def __init__(self, arguments, work):
        self.arguments, self.work = arguments, work
        self.results = gpu_bench.Results(arguments.results)
        self.braid = gpu_bench.find_program(arguments.bin, "braid")
        self.floor = gpu_bench.find_program(arguments.bin, "braid_bench_floor")
        self.choices = {} if arguments.choose and not arguments.floors else load_choices(self.results)
        self.failures = 0
        self.session = gpu_bench.now()  # only runs of one call are compared with each other
        self.results.add("machine", **gpu_bench.machine())

    def changes(self, case, microbatch=None):
        changes = gpu_bench.settings(case, self.arguments.small, self.arguments.device)
        if microbatch and not self.arguments.small:
            changes["train.microbatch"] = microbatch
        return changes

    def describe(self, case):
        """The case as braid resolves it: sizes for PyTorch, FLOPs, planned memory."""
        changes = self.changes(case, self.chosen(case, "braid").get("microbatch"))
        text = gpu_bench.run([self.floor, gpu_bench.run_file(case), "--describe", *gpu_bench.as_arguments(changes)], 60)
        run_file = gpu_bench.run_file(case)
        shape = {**gpu_bench.last_json(text), "experts": expert_settings.of_run(run_file, changes),
                 "lora": tomllib.loads(run_file.read_text(encoding="utf-8")).get("lora")}
        path = self.work / f"{case}.json"
        path.write_text(json.dumps(shape), encoding="utf-8")
        return shape, path

    def tokens(self, vocabulary):
        prefix = self.work / f"ids{vocabulary}"
        if not prefix.with_suffix(".idx").exists():
            gpu_bench.write_random_tokens(prefix, vocabulary)
        return prefix

    def chosen(self, case, side):
        return self.choices.get(case, {}).get(side, {})

    def open_settings(self, case, side):
        """Values to choose from, by setting: nothing once they were chosen, or without --choose."""
        if self.chosen(case, side) or not self.arguments.choose:
            return {}
        settings = {}
        if side == "torch":
            settings = {"weights": TORCH_WEIGHTS} if case in CASES else {"chunk": TORCH_CHUNKS} if case in HYBRID_CASES else {}
        return settings | ({"microbatch": MICROBATCHES[case]} if case in MICROBATCHES else {})

    def run_braid(self, case, shape, options):
        folder = self.work / "run"
        changes = {**self.changes(case, options.get("microbatch")), "train.fp8": options.get("fp8", "off"), "optimizer.name": self.arguments.optimizer,
                   "data.train": self.tokens(shape["vocabulary"]),
                   "logging.run_folder": folder, "logging.format": "megatron", "train.steps": shape["steps"] + SPARE_STEPS}
        begin = time.monotonic()
        text = gpu_bench.run([self.braid, "train", gpu_bench.run_file(case), *gpu_bench.as_arguments(changes),
                              "--set", "checkpoint.folder=" + str(folder / "checkpoints")], TIME_LIMIT_S)
        total_s = time.monotonic() - begin
        ends = [datetime.datetime.fromisoformat(match.group(1).strip()) for match in LOG_LINE.finditer(text)]
        if len(ends) != shape["steps"] + SPARE_STEPS:
            raise Failure(f"braid logged {len(ends)} of {shape['steps'] + SPARE_STEPS} steps")
        ends = ends[WARMUP_STEPS - 1:-SPARE_STEPS]
        step_ms = [(b - a).total_seconds() * 1e3 for a, b in zip(ends, ends[1:])]
        tokens = shape["global_batch"] * shape["sequence"] * len(step_ms)
        (folder / "metrics.jsonl").unlink()
        return {"tokens_per_s": tokens / (ends[-1] - ends[0]).total_seconds(), "step_ms": step_ms, "total_s": total_s,
                "microbatch": options.get("microbatch") or shape["microbatch"]}

    def run_torch(self, case, shape_path, shape, options):
        command = [self.arguments.python, FOLDER / "torch_llm.py", "--model", shape_path, "--device", self.arguments.device,
                   "--steps", shape["steps"] - WARMUP_STEPS, "--warmup", WARMUP_STEPS, "--optimizer", self.arguments.optimizer]
        if options.get("microbatch") and not self.arguments.small:
            command += ["--microbatch", options["microbatch"]]
        for key in ("weights", "attention", "chunk", "fp8"):
            if options.get(key):
                command += [f"--{key}", options[key]]
        if self.arguments.device == "cpu":
            command.append("--eager")
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(self.work / "inductor"), "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
        return gpu_bench.last_json(gpu_bench.run(command, TIME_LIMIT_S, environment))

    def measure(self, case, side, shape, shape_path, options, number):
        """One run; nothing if it failed, which is recorded too."""
        name = f"round {number}  {case:20} {side:20} " + " ".join(f"{key}={value}" for key, value in options.items())
        try:
            with gpu_bench.GpuMonitor() as monitor:
                result = (self.run_braid(case, shape, options) if side.startswith("braid")
                          else self.run_torch(case, shape_path, shape, options))
        except Failure as failure:
            print(f"{name}: FAILED: {failure}", flush=True)
            self.results.add("failure", stage="end_to_end", case=case, side=side, options=options, message=str(failure)[-2000:])
            return None
        result |= monitor.summary()
        self.results.add("run", case=case, side=side, round=number, session=self.session, options=options,
                         small=self.arguments.small, **({"optimizer": self.arguments.optimizer} | result))
        print(f"{name:70} {result['tokens_per_s']:12,.0f} tokens/s  ({result['total_s']:.0f} s)", flush=True)
        return result["tokens_per_s"]

    def take_turn(self, case, side, shape, shape_path, number):
        """A run with the chosen settings. Where settings are open, one run for each value, a setting after the other with the
        best of those before: the fastest is for the rounds to come. A value that fails (too little memory) is out."""
        speeds = {}  # by settings
        settings = self.open_settings(case, side)
        best = {key: shape.get(key, values[0]) for key, values in settings.items()} or self.chosen(case, side)
        for key, values in (settings or {None: [None]}).items():
            for options in [{**best, key: value} if key else best for value in values]:
                if json.dumps(options) not in speeds:
                    speeds[json.dumps(options)] = self.measure(case, side, shape, shape_path, options, number)
            good = {options: speed for options, speed in speeds.items() if speed}
            if not good:
                self.failures += 1
                return
            best = json.loads(max(good, key=good.get))
        if len(speeds) > 1:
            self.choices.setdefault(case, {})[side] = best
            self.results.add("choice", case=case, side=side, options=best, small=self.arguments.small,
                             measured=[{**json.loads(options), "tokens_per_s": speed} for options, speed in speeds.items()])

    def run_case(self, case):
        shape, shape_path = self.describe(case)
        for number in range(1, self.arguments.rounds + 1):
            if self.arguments.fp8:
                for side, recipe in FP8_SIDES.items():
                    options = {**self.chosen(case, side.split("_")[0]), "fp8": recipe}
                    self.measure(case, side, shape, shape_path, options, number)
                continue
            for side in ("braid", "torch"):
                self.take_turn(case, side, shape, shape_path, number)
            if self.arguments.flash_attn_4:
                self.measure(case, FLASH_ATTN_4_SIDE, shape, shape_path,
                             {**self.chosen(case, "torch"), "attention": "flash-attn-4"}, number)
        shape, _ = self.describe(case)  # with the microbatch that was chosen meanwhile
        self.results.add("case", name=case, small=self.arguments.small, **shape)

    def run_floor(self, case):
        path = self.work / "floor.json"
        changes = self.changes(case, self.chosen(case, "braid").get("microbatch"))
        text = gpu_bench.run([self.floor, gpu_bench.run_file(case), *gpu_bench.as_arguments(changes), "--json", path], TIME_LIMIT_S)
        print(f"\n{case}\n{text}", flush=True)
        record = json.loads(path.read_text(encoding="utf-8"))
        record.pop("kind")
        self.results.add("floor", name=case, small=self.arguments.small, **record)


def main():
    arguments = parse_arguments()
    try:
        return run_cases(arguments)
    except Failure as failure:
        sys.exit(f"end_to_end.py: {failure}")


def run_cases(arguments):
    with tempfile.TemporaryDirectory(prefix="braid_bench_") as work:
        bench = Bench(arguments, pathlib.Path(work))
        for case in arguments.cases:
            try:
                (bench.run_floor if arguments.floors else bench.run_case)(case)
            except Failure as failure:
                print(f"{case}: FAILED: {failure}", flush=True)
                bench.results.add("failure", stage="floors" if arguments.floors else "end_to_end", case=case,
                                  message=str(failure)[-2000:])
                bench.failures += 1
        return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
