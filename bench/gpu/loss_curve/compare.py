#!/usr/bin/env python3
"""A real run of braid beside the same in PyTorch: same initial weights, same samples in the same order, same optimizer.

usage: compare.py --bin FOLDER --results FOLDER [--case RUN_FILE] [--seeds N] [--one-attention] [--limit S] [--data PREFIX] [--small] [--device cpu] [--set KEY=VALUE]...

Three runs share the GPU: braid, PyTorch, and PyTorch with another attention kernel. The last two differ by rounding only, so they
show how far two right programs part; --one-attention leaves the last out. --seeds N adds braid with N - 1 other seeds of the initial weights. Writes losses.csv and losses.svg
(of run_experts.toml losses_experts.csv and so on) into the results and a line into raw.jsonl.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))
import expert_settings  # noqa: E402
import gpu_bench  # noqa: E402
from gpu_bench import Failure  # noqa: E402
import plot  # noqa: E402

ROOT = FOLDER.parent.parent.parent
TIME_LIMIT_S = 540
WINDOW = 50  # steps of a moving mean
LAST_STEPS = 100
SIDES = ["braid", "torch", "torch_other"]  # columns of the table; the last is PyTorch with another attention kernel

# --small: seconds on a CPU. There both sides compute in fp32, so that losses must agree to many digits.
SMALL = {"model.layers": 2, "model.width": 64, "model.heads": 4, "model.kv_heads": 2, "model.ffn": 192, "train.sequence": 64,
         "train.microbatch": 2, "train.global_batch": 8, "train.steps": 60, "optimizer.warmup_steps": 5, "eval.interval": 20}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="build folder, or folder of the programs")
    parser.add_argument("--results", required=True, type=pathlib.Path, help="folder of raw.jsonl, losses.csv and losses.svg")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "data/quickstart/corpus",
                        help="prefix of the tokens, with tokenizer.model beside them; made if missing (data/quickstart/corpus)")
    parser.add_argument("--case", default=FOLDER / "run.toml", type=pathlib.Path, help="run file (run.toml)")
    parser.add_argument("--seeds", type=int, default=1, help="of braid's runs: PyTorch's have the first (1)")
    parser.add_argument("--one-attention", action="store_true", help="without the second run of PyTorch")
    parser.add_argument("--limit", type=int, default=TIME_LIMIT_S, help=f"seconds of all runs ({TIME_LIMIT_S})")
    parser.add_argument("--small", action="store_true", help="a tiny model, to rehearse")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of braid train; may be repeated")
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    return parser.parse_args()


def make_data(braid, prefix):
    """Text, tokenizer and tokens as quickstart.sh makes them."""
    tokenizer = prefix.with_name("tokenizer.model")
    if prefix.with_suffix(".idx").exists() and tokenizer.exists():
        return tokenizer
    text = prefix.with_suffix(".txt")
    if not text.exists():
        gpu_bench.run([ROOT / "scripts/make_corpus.py", text], 60)
    tokenize = [braid, "tokenize", "--input", text, "--document-break", "marker"]
    if not tokenizer.exists():
        gpu_bench.run([*tokenize, "--train-vocabulary", 4096, "--output", tokenizer.with_suffix("")], 300)
    gpu_bench.run([*tokenize, "--tokenizer", tokenizer, "--output", prefix], 300)
    return tokenizer


class Comparison:
    def __init__(self, arguments, work):
        self.arguments, self.work = arguments, work
        self.braid = gpu_bench.find_program(arguments.bin, "braid")
        self.sides = SIDES[:2] if arguments.one_attention else SIDES
        self.settings = {}  # of PyTorch's sides, once they have run
        tokenizer = make_data(self.braid, arguments.data)
        changes = {"data.train": arguments.data, "data.tokenizer": tokenizer, "runtime.device": arguments.device,
                   "logging.run_folder": work / "run", **(SMALL if arguments.small else {})}
        if arguments.device == "cpu":
            changes["train.dtype"] = "float32"
        self.seeds = {f"braid_{seed}": seed for seed in range(2, arguments.seeds + 1)}
        self.changes = changes | dict(change.split("=", 1) for change in arguments.set)
        self.options = gpu_bench.as_arguments(self.changes)
        # Algorithms are measured while three programs share the GPU: nobody else shall take them from the cache.
        self.environment = {"XDG_CACHE_HOME": str(work / "cache"), "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor")}

    def train_command(self, *more):
        return [str(word) for word in (self.braid, "train", self.arguments.case, *self.options, *more)]

    def initial_weights(self):
        """A step at learning rate 0 changes no weight, and its checkpoint has the initial ones."""
        folder = self.work / "initial"
        gpu_bench.run(self.train_command("--set", "optimizer.learning_rate=0", "--set", "optimizer.min_learning_rate=0",
                                         "--set", "checkpoint.at_end=true", "--set", f"checkpoint.folder={folder}",
                                         "--set", "eval.interval=0", "--stop-after", 1), 240, self.environment)
        return folder / "step_00000001" / "model.safetensors"

    def describe(self):
        floor = gpu_bench.find_program(self.arguments.bin, "braid_bench_floor")
        text = gpu_bench.run([floor, self.arguments.case, *self.options, "--describe"], 60)
        shape = {**gpu_bench.last_json(text), "experts": expert_settings.of_run(self.arguments.case, self.changes)}
        (self.work / "model.json").write_text(json.dumps(shape), encoding="utf-8")
        # Autocast does not know products of groups.
        self.weights = "float32" if self.arguments.device == "cpu" else "fsdp" if shape.get("experts") else "autocast"
        return shape

    def torch_command(self, initial, side):
        cuda = self.arguments.device == "cuda"
        attention = {"torch": "cudnn" if cuda else "math", "torch_other": "flash"}[side]
        command = [self.arguments.python, FOLDER / "torch_losses.py", "--model", self.work / "model.json", "--initial", initial,
                   "--data", self.arguments.data, "--output", self.work / f"{side}.jsonl", "--attention", attention,
                   "--device", self.arguments.device, "--weights", self.weights]
        return [str(word) for word in command + ([] if cuda else ["--eager"])]

    def run_all(self):
        """Output lines of each side, all sides at once."""
        initial = self.initial_weights()
        commands = {"braid": self.train_command("--set", f"checkpoint.folder={self.work / 'none'}")}
        commands |= {side: self.torch_command(initial, side) for side in self.sides[1:]}
        for side, seed in self.seeds.items():
            commands[side] = self.train_command("--set", f"checkpoint.folder={self.work / 'none'}", "--set", f"train.seed={seed}",
                                                "--set", f"logging.run_folder={self.work / side}")
        running = {side: (open(self.work / f"{side}.log", "w+", encoding="utf-8"), command) for side, command in commands.items()}
        running = {side: (log, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT,
                                                env={**os.environ, **self.environment}))
                   for side, (log, command) in running.items()}
        deadline = time.monotonic() + self.arguments.limit
        try:
            for side, (log, process) in running.items():
                status = process.wait(max(1, deadline - time.monotonic()))
                log.seek(0)
                if status != 0:
                    raise Failure(f"{side} ended with status {status}:\n{log.read()[-3000:]}")
                if side in SIDES[1:]:
                    self.settings[side] = gpu_bench.last_json(log.read())
        except subprocess.TimeoutExpired as error:
            raise Failure(f"the runs took more than {self.arguments.limit} s") from error
        finally:
            for log, process in running.values():
                process.kill()
                process.wait()
                log.close()

    def records(self, side):
        if side in SIDES[1:]:
            path = self.work / f"{side}.jsonl"
        else:
            path = self.work / ("run" if side == "braid" else side) / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def moving_mean(values):
    """Means of WINDOW steps; shorter than the values by WINDOW - 1."""
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    width = min(WINDOW, len(values))
    return [(sums[i + width] - sums[i]) / width for i in range(len(values) - width + 1)]


def difference(a, b):
    """How far two loss curves are apart, nats per token."""
    smooth = [x - y for x, y in zip(moving_mean(a), moving_mean(b))]
    steps = [abs(x - y) for x, y in zip(a, b)]
    return {"first": a[0] - b[0], "largest_step": max(steps), "mean_step": statistics.mean(steps),
            "largest_smoothed": max(map(abs, smooth)), "mean_smoothed": statistics.mean(map(abs, smooth)),
            "mean_signed": statistics.mean(smooth)}


def table(sides, steps, valid):
    """losses.csv: per step the learning rate, then loss and gradient norm of each side, and held-out losses where there are some."""
    columns = ["step", "learning_rate", *(f"{side}_{what}" for what in ("loss", "grad_norm", "valid_loss") for side in sides)]
    lines = [",".join(columns)]
    for number in sorted(set(steps["braid"]) | set(valid["braid"])):
        record = steps["braid"].get(number, {})
        row = [number, record.get("learning_rate", "")]
        row += [steps[side].get(number, {}).get(key, "") for key in ("loss", "grad_norm") for side in sides]
        row += [valid[side].get(number, "") for side in sides]
        lines.append(",".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in row))
    return "\n".join(lines) + "\n"


def busiest_expert(records, steps):
    """Rows of the busiest expert over the mean, averaged over the layers of the last LAST_STEPS of `steps` steps; None without experts."""
    late = [r for r in records if r.get("step", 0) > steps - LAST_STEPS]
    loads = [1 + r["max_violation"] for r in late if "max_violation" in r] + [load for r in late for load in r.get("busiest") or []]
    return statistics.mean(loads) if loads else None


def last_losses(records, steps):
    """Mean of the last LAST_STEPS training losses, and the held-out loss after the last step."""
    training = statistics.mean(r["loss"] for r in records if "loss" in r and r["step"] > steps - LAST_STEPS)
    return training, next(r["valid_loss"] for r in reversed(records) if "valid_loss" in r)


def compare(comparison, shape, results):
    records = {side: comparison.records(side) for side in comparison.sides}
    steps = {side: {r["step"]: r for r in records[side] if "loss" in r} for side in comparison.sides}
    valid = {side: {r["step"]: r["valid_loss"] for r in records[side] if "valid_loss" in r} for side in comparison.sides}
    if any(sorted(steps[side]) != list(range(1, shape["steps"] + 1)) for side in comparison.sides):
        raise Failure("the runs have different steps")
    losses = {side: [steps[side][i]["loss"] for i in range(1, shape["steps"] + 1)] for side in comparison.sides}
    name = comparison.arguments.case.stem.replace("run", "losses", 1)
    gpu_bench.write_whole(results.folder / f"{name}.csv", table(comparison.sides, steps, valid))
    smooth = {side: moving_mean(values) for side, values in losses.items()}
    gpu_bench.write_whole(results.folder / f"{name}.svg", plot.two_panels(smooth, WINDOW, valid))
    last = max(valid["braid"])
    summary = {"steps": shape["steps"], "parameters": shape["parameters"], "window": WINDOW,
               "tokens_per_step": shape["global_batch"] * shape["sequence"], "dtype": shape["dtype"],
               "first_loss": losses["braid"][0], "last_smoothed_loss": smooth["braid"][-1],
               "braid_torch": difference(losses["braid"], losses["torch"]),
               "torch_torch": difference(losses["torch_other"], losses["torch"]) if "torch_other" in losses else None,
               "valid": {side: valid[side][last] for side in comparison.sides},
               "busiest": {side: busiest_expert(records[side], shape["steps"]) for side in comparison.sides},
               "last": {side: last_losses(comparison.records(side), shape["steps"]) for side in [*comparison.sides, *comparison.seeds]}, "settings": comparison.settings,
               "version": comparison.settings["torch"]["version"]}
    results.add("loss_curve", case=comparison.arguments.case.stem, small=comparison.arguments.small, **summary)
    return summary


def main():
    arguments = parse_arguments()
    results = gpu_bench.Results(arguments.results)
    results.add("machine", **gpu_bench.machine())
    begin = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="braid_losses_") as work:
            comparison = Comparison(arguments, pathlib.Path(work))
            shape = comparison.describe()
            comparison.run_all()
            summary = compare(comparison, shape, results)
    except Failure as failure:
        print(f"loss_curve: FAILED: {failure}", file=sys.stderr)
        results.add("failure", stage="loss_curve", message=str(failure)[-2000:])
        return 1
    for name, key in (("braid - PyTorch", "braid_torch"), ("PyTorch - PyTorch", "torch_torch")):
        if summary[key]:
            print(f"{name:18} " + ", ".join(f"{what} {value:.2e}" for what, value in summary[key].items()))
    for side, (training, held_out) in summary["last"].items():
        print(f"{side:18} last {LAST_STEPS} training losses {training:.4f}, held-out loss {held_out:.4f}")
    if summary["busiest"]["braid"]:
        print("busiest expert: " + ", ".join(f"{side} {load:.2f}x" for side, load in summary["busiest"].items()))
    print(f"{len(summary['last'])} runs of {summary['steps']} steps in {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
