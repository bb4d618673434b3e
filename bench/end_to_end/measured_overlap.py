#!/usr/bin/env python3
"""The table of measured_overlap.sh, from the report.json of its runs.

    bench/end_to_end/measured_overlap.py FOLDER LAYOUT...

Of each run the traced step of median length counts; of the rounds the median.
"""
import json
import pathlib
import statistics
import sys


def median_step(data):
    """Figures of the traced step of median length, in ms."""
    steps = sorted(data["traced_steps"], key=lambda step: step["step_ns"])
    return figures(steps[(len(steps) - 1) // 2])


def figures(step):
    communication = step["communication"]
    return {"step": step["step_ns"] * 1e-6, "exposed": communication["exposed_ns"] * 1e-6,
            "communication": communication["total_ns"] * 1e-6}


def of_rounds(folder, layout, mode):
    """Measured (median over rounds) and predicted figures of a layout."""
    reports = [json.loads(path.read_text())["data"]
               for path in sorted(folder.glob(f"{layout}-{mode}-[0-9]*/report.json"))]
    measured = [median_step(data) for data in reports]
    return ({key: statistics.median(one[key] for one in measured) for key in measured[0]},
            figures(reports[0]["prediction"]["predicted"]), [one["step"] for one in measured])


def error(predicted, measured):
    return f"{100 * (predicted / measured - 1):+.1f}%"


def main():
    folder = pathlib.Path(sys.argv[1])
    print("| layout | off, ms | on, ms | exposed before, ms | after | gain | predicted off, on | error | predicted exposed | gain | spread |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for layout in sys.argv[2:]:
        off, off_predicted, off_steps = of_rounds(folder, layout, "off")
        on, on_predicted, on_steps = of_rounds(folder, layout, "auto")
        gain = off["step"] / on["step"] - 1
        predicted_gain = off_predicted["step"] / on_predicted["step"] - 1
        spread = max((max(steps) - min(steps)) / statistics.median(steps) for steps in (off_steps, on_steps))
        print(f"| {layout} | {off['step']:.1f} | {on['step']:.1f} | {off['exposed']:.1f} | {on['exposed']:.1f} | {100 * gain:.1f}% "
              f"| {off_predicted['step']:.1f}, {on_predicted['step']:.1f} "
              f"| {error(off_predicted['step'], off['step'])}, {error(on_predicted['step'], on['step'])} "
              f"| {off_predicted['exposed']:.1f}, {on_predicted['exposed']:.1f} | {100 * predicted_gain:.1f}% | {100 * spread:.0f}% |")


if __name__ == "__main__":
    main()
