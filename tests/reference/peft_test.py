#!/usr/bin/env python3
"""Trains adapters with braid, and lets Hugging Face peft read them.

    peft_test.py BRAID [--python PYTHON]

braid trains a small model, adapters of some of its matrices on one rank and of all on two tensor ranks, both again as DoRA, and exports
them in peft's format and added to the weights. peft puts the former on the model. Its logits must be those of the latter, which braid summed itself,
and differ from the model's without adapters. Exits 77 (ctest: skipped) without the packages of `scripts/setup.sh --reference`, or of the
Python that --python names.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIDE = pathlib.Path(__file__).with_name("peft_side.py")

# Logits are about 1. float32 on both sides, in other orders: 4e-7 was seen. Adapters change them by 0.1 to 1.
LOGIT_LIMIT = 4e-6
LEAST_CHANGE = 0.01

MODEL = """[model]
family = "llama"
layers = 2
width = 64
heads = 4
kv_heads = 2
[train]
sequence = 64
microbatch = 4
global_batch = 4
steps = 10
[data]
train = "text.txt"
tokenizer = "bytes"
[eval]
interval = 0
[logging]
run_folder = "base_run"
"""
RUNS = {"some": ['lora.targets=["q", "v", "fc2"]'],
        "all": ["parallel.ranks=2", "parallel.tensor=2", "parallel.sequence_parallel=true"],
        "some_dora": ["lora.dora=true", 'lora.targets=["k", "v", "up", "proj"]'],
        "all_dora": ["lora.dora=true", "parallel.ranks=2", "parallel.tensor=2", "parallel.sequence_parallel=true"]}


def run(folder, *command):
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"FAILED: {' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def train_adapters(braid, folder):
    (folder / "text.txt").write_text((ROOT / "docs" / "passes.md").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "run.toml").write_text(MODEL, encoding="utf-8")
    run(folder, braid, "train", "run.toml")
    run(folder, braid, "export", "base_run", "base")
    for name, settings in RUNS.items():
        common = ["lora.rank=4", "lora.base=base", "train.steps=20", "optimizer.learning_rate=1e-2", f"logging.run_folder={name}_run"]
        run(folder, braid, "train", "run.toml", *(word for change in common + settings for word in ("--set", change)))
        run(folder, braid, "export", f"{name}_run", f"{name}_adapters", "--adapters")
        run(folder, braid, "export", f"{name}_run", f"{name}_merged")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("braid", type=pathlib.Path)
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / "build/reference/bin/python")
    arguments = parser.parse_args()
    if not arguments.python.exists():
        print("skipped: no Hugging Face peft in build/reference; `scripts/setup.sh --reference` installs it")
        return 77
    with tempfile.TemporaryDirectory() as work:
        train_adapters(arguments.braid.resolve(), pathlib.Path(work))
        run(work, arguments.python, SIDE, work, *RUNS)
        answers = json.loads((pathlib.Path(work) / "answer.json").read_text())
    faults = []
    for name, answer in answers.items():
        print(f"{name}: {answer['adapted']} matrices; logits change by {answer['change']:.2g}, and differ from braid's sum by {answer['error']:.2g}")
        if not answer["error"] <= LOGIT_LIMIT or not answer["change"] >= LEAST_CHANGE:
            faults.append(name)
    print(*(f"FAILED: {fault}" for fault in faults), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
