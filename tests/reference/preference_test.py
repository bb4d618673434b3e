#!/usr/bin/env python3
"""Learns from pairs of answers with braid and with Hugging Face transformers, and compares.

    preference_test.py BRAID [--python PYTHON]

Both start from the same random weights and read the same lines of "prompt", "chosen" and "rejected". The other side
(preference_side.py) has no code of braid: it computes the losses of TRL's DPOTrainer with two models and autograd, in float32 and, as a
measure of rounding, in float64. Compared are the loss, the gradient norm and the figures of pairs of each step. Exits 77 (ctest:
skipped) without the packages of `scripts/setup.sh --reference`, or of the Python that --python names.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIDE = pathlib.Path(__file__).with_name("preference_side.py")

REQUEST = {"architecture": "LlamaForCausalLM",
           "config": {"vocab_size": 257, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                      "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 0,
                      "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": False},
           "pairs": 30, "sequence": 32, "global_batch": 8, "steps": 12, "seed": 1234, "learning_rate": 0.05,
           "runs": {"dpo": {"loss": "dpo", "beta": 0.1}, "cdpo": {"loss": "dpo", "beta": 0.3, "label_smoothing": 0.1},
                    "hinge": {"loss": "hinge", "beta": 0.2}, "ipo": {"loss": "ipo", "beta": 0.5}}}
LAYOUTS = {"dpo": [], "cdpo": ["parallel.ranks=2", "train.microbatch=2"], "hinge": ["parallel.ranks=2", "parallel.tensor=2"],
           "ipo": ["parallel.ranks=2", "parallel.pipeline=2", "train.microbatch=2"]}
# Both sides compute in fp32 and add up in other orders. Log-probabilities of an answer are sums of up to 13 terms of about 6, so a unit of
# their last place is 4e-6 to 8e-6; losses and rewards have it times beta.
LIMITS = {"loss": 5e-6, "grad_norm": 3e-5, "rewards/chosen": 5e-6, "rewards/rejected": 5e-6, "rewards/margins": 5e-6,
          "rewards/accuracies": 1e-6, "logps/chosen": 5e-5, "logps/rejected": 5e-5}


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, errors="replace", timeout=300, check=False)
    if done.returncode != 0:
        raise SystemExit(f"FAILED: {' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def run_braid(braid, work, name, model):
    preference = "\n".join(f"{key} = {json.dumps(value)}" for key, value in REQUEST["runs"][name].items())
    (work / f"{name}.toml").write_text(f"""{model}
[train]
sequence = {REQUEST["sequence"]}
microbatch = 4
global_batch = {REQUEST["global_batch"]}
steps = {REQUEST["steps"]}
seed = {REQUEST["seed"]}
[optimizer]
name = "sgd"
momentum = 0.0
weight_decay = 0.0
schedule = "constant"
learning_rate = {REQUEST["learning_rate"]}
[preference]
{preference}
[data]
train = "{work}/pairs"
tokenizer = "bytes"
split = "1,0,0"
[eval]
interval = 0
[checkpoint]
resume = "{work}/imported"
[logging]
run_folder = "{work}/{name}_run"
[runtime]
device = "cpu"
threads = 1
""")
    run(braid, "train", work / f"{name}.toml", *(word for change in LAYOUTS[name] for word in ("--set", change)))
    return [json.loads(line) for line in (work / f"{name}_run" / "metrics.jsonl").read_text().splitlines()]


def compare(name, ours, answer):
    faults = [] if len(ours) == REQUEST["steps"] else [f"{name}: {len(ours)} steps"]
    theirs, exact = answer["float32"], answer["float64"]
    print(f"\n{name}\n  step  loss of braid  of PyTorch   margin of braid   of PyTorch")
    for a, b in zip(ours, theirs):
        print(f"{a['step']:6} {a['loss']:14.8f} {b['loss']:12.8f} {a['rewards/margins']:16.8f} {b['rewards/margins']:12.8f}")
    for key, limit in LIMITS.items():
        gap, to_exact, theirs_to_exact = (max(abs(a[key] - b[key]) for a, b in zip(x, y))
                                          for x, y in ((ours, theirs), (ours, exact), (theirs, exact)))
        print(f"  largest difference of {key}: {gap:.1e} (limit {limit:.0e}); from float64 braid's {to_exact:.1e}, PyTorch's {theirs_to_exact:.1e}")
        if not max(gap, to_exact) <= limit:
            faults.append(f"{name}: {key} differs by {gap:.1e}, from float64 by {to_exact:.1e}")
    if not ours[-1]["rewards/margins"] > 0.05:
        faults.append(f"{name}: the margin does not grow, so the comparison says little")
    return faults


def compare_all(braid, python, work):
    (work / "request.json").write_text(json.dumps(REQUEST))
    run(python, SIDE, "make", work)
    model = "[model]" + run(braid, "import", work / "start", work / "imported").split("[model]")[1].split("\n[")[0]
    run(braid, "tokenize", "--input", work / "pairs.jsonl", "--output", work / "pairs", "--tokenizer", "bytes", "--chat", "plain", "--preference")
    records = {name: run_braid(braid, work, name, model) for name in REQUEST["runs"]}
    run(python, SIDE, "train", work)
    answers = json.loads((work / "answer.json").read_text())
    return [fault for name in answers for fault in compare(name, records[name], answers[name])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("braid", type=pathlib.Path)
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / "build/reference/bin/python")
    arguments = parser.parse_args()
    if not arguments.python.exists():
        print("skipped: no Hugging Face transformers in build/reference; `scripts/setup.sh --reference` installs it")
        return 77
    with tempfile.TemporaryDirectory() as work:
        faults = compare_all(arguments.braid.resolve(), arguments.python, pathlib.Path(work))
    print("", *(f"FAILED: {fault}" for fault in faults), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
