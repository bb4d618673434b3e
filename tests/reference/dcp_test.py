#!/usr/bin/env python3
"""Weights of braid go to torch.distributed.checkpoint and come back.

    dcp_test.py BRAID [--python PYTHON]

braid trains a small model, python/braid/dcp.py writes it as a folder of torch.distributed.checkpoint, and PyTorch loads that: every bit
must be that of braid's own export. Then two ranks of PyTorch write shards of a changed model, dcp.py makes a Hugging Face folder of
them, and braid imports and exports that. Exits 77 (ctest: skipped) without the packages of `scripts/setup.sh --reference`, or of the
Python that --python names.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIDE = pathlib.Path(__file__).with_name("dcp_side.py")
DCP = ROOT / "python" / "braid" / "dcp.py"

MODEL = """[model]
family = "llama"
layers = 2
width = 48
heads = 3
kv_heads = 1
head_size = 16
tied_embeddings = false
[train]
sequence = 64
microbatch = 2
global_batch = 2
steps = 2
[data]
train = "text.txt"
tokenizer = "bytes"
[eval]
interval = 0
[logging]
run_folder = "run"
"""


def run(folder, *command):
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"FAILED: {' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def refused(folder, *command):
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 2 or done.stderr.count("\n") != 1:
        sys.exit(f"FAILED to refuse: {' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("braid", type=pathlib.Path)
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / "build/reference/bin/python")
    arguments = parser.parse_args()
    if not arguments.python.exists():
        print("skipped: no PyTorch in build/reference; `scripts/setup.sh --reference` installs it")
        return 77
    braid, dcp = arguments.braid.resolve(), [arguments.python, DCP]
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        (folder / "text.txt").write_text((ROOT / "docs" / "passes.md").read_text(encoding="utf-8"), encoding="utf-8")
        (folder / "run.toml").write_text(MODEL, encoding="utf-8")
        run(folder, braid, "train", "run.toml")
        run(folder, braid, "export", "run", "exported")
        print(run(folder, *dcp, "to-torch", "run", "dcp", "--braid", braid, "--prefix", "model."), end="")
        run(folder, arguments.python, SIDE, "read", folder)

        run(folder, arguments.python, SIDE, "write", folder)
        message = refused(folder, *dcp, "from-torch", "sharded", "back", "--config", "exported", "--prefix", "model.")
        assert "app.model." in message and "--prefix" in message, message
        assert "--config" in refused(folder, *dcp, "from-torch", "sharded", "back")
        assert ".metadata" in refused(folder, *dcp, "from-torch", "exported", "back")
        print(run(folder, *dcp, "from-torch", "sharded", "back", "--config", "exported", "--prefix", "app.model."), end="")
        run(folder, arguments.python, SIDE, "compare", folder)
        run(folder, braid, "import", "back", "imported")
        run(folder, braid, "export", "imported", "again")
        assert "exists" in refused(folder, *dcp, "to-torch", "run", "dcp", "--braid", braid)
        if list(folder.glob(".*tmp*")):
            sys.exit("FAILED: something hidden is left over")
        (folder / "back").rename(folder / "first")
        (folder / "again").rename(folder / "back")
        run(folder, arguments.python, SIDE, "compare", folder)
    print("PyTorch and braid have the same bits both ways")
    return 0


if __name__ == "__main__":
    sys.exit(main())
