#!/usr/bin/env python3
"""Losses of one run as a table and a picture.

usage: curve.py METRICS_JSONL OUTPUT      writes OUTPUT.csv, a line for every tenth step, and OUTPUT.svg
"""
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))
import gpu_bench  # noqa: E402
import plot  # noqa: E402
from compare import WINDOW, moving_mean  # noqa: E402

COLORS = ["#d1495b", "#30638e", "#8a9a5b"]


def columns_of(records):
    """Losses by step of each curve: the next token, and the tokens behind it that the run predicts too."""
    steps = [record for record in records if "loss" in record]
    curves = {"loss": [record["loss"] for record in steps]}
    for depth in range(len(steps[0].get("mtp_losses", []))):
        curves[f"loss_{depth + 2}_ahead"] = [record["mtp_losses"][depth] for record in steps]
    return [record["step"] for record in steps], curves, {r["step"]: r["valid_loss"] for r in records if "valid_loss" in r}


def table(steps, curves, valid):
    lines = [",".join(["step", *curves, "valid_loss"])]
    for i, step in enumerate(steps):
        if step % 10 == 0 or step in valid:
            lines.append(",".join([str(step), *(f"{values[i]:.6g}" for values in curves.values()), f"{valid[step]:.6g}" if step in valid else ""]))
    return "\n".join(lines) + "\n"


def picture(steps, curves, valid):
    smooth = {name: moving_mean(values) for name, values in curves.items()}
    every = [value for values in smooth.values() for value in values] + list(valid.values())
    panel = plot.Panel(0, (0, steps[-1] + WINDOW), plot.padded(every), f"nats per token: means of {WINDOW} steps; circles: held-out text")
    panel.axes()
    for i, (name, values) in enumerate(smooth.items()):
        panel.line(values, (WINDOW + 1) / 2, COLORS[i])
        panel.text(plot.WIDTH - plot.RIGHT - 4, plot.TOP + 18 + 16 * i, name.replace("_", " "), "end", COLORS[i])
    panel.dots(valid, COLORS[0])
    return plot.picture([panel])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    records = [json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    steps, curves, valid = columns_of(records)
    gpu_bench.write_whole(f"{sys.argv[2]}.csv", table(steps, curves, valid))
    gpu_bench.write_whole(f"{sys.argv[2]}.svg", picture(steps, curves, valid))


if __name__ == "__main__":
    main()
