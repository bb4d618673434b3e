#!/usr/bin/env python3
"""One rank of each case of several GPUs (cases/multi) on one GPU, at full size, while `braid emulate` simulates the other ranks: real
kernels, graphs and memory, and communication as long as in the simulator. Reports the error of the simulator in everything else.

usage: emulated.py --bin FOLDER --results FOLDER [--case NAME]... [--variant NAME]... [--found FOLDER] [--rank R] [--steps N]
                   [--seconds N] [--limit S] [--profile FILE] [--again] [--report FILE] [--page-only] [--small] [--device cuda|cpu]

Variants: `found` is the overlap that `braid simulate --auto-overlap` finds for eight such GPUs (FOUND/CASE.toml where --found has it),
`copies` the same with the data of the other ranks made in every step (slow, in exactly the memory of the run), `defaults` what the run file says,
`off` none. NAME-RECIPE is the same with train.fp8 = RECIPE, tensor or block (FOUND/CASE-RECIPE.toml). NAME-skewed is the same with unequal
loads of experts, of which the rank has the busiest; cases without experts have none. All cases in the first variant come first, so that
--seconds cuts off the least important.
The page, FOLDER/emulated.md or --report, has the newest result of each case and variant.
"""
import argparse
import json
import pathlib
import sys
import time

import bounded_run
import gpu_bench
import multi_cases
from gpu_bench import Failure
from report import gib, table

GPUS = 8
CLUSTER = f"h200x{GPUS}"
OVERLAPS = {"found": multi_cases.SEARCHED, "copies": multi_cases.SEARCHED, "defaults": {}, "off": multi_cases.OFF}
RECIPES = ("tensor", "block")
SKEWED = "skewed"
VARIANTS = (OVERLAPS | {f"{name}-{recipe}": values | {"train.fp8": recipe} for name, values in OVERLAPS.items() for recipe in RECIPES}
            | {f"{name}-{SKEWED}": values for name, values in OVERLAPS.items()})
OF_SEARCH = ("found", "copies")

PAGE = """# One rank of eight, alone on a GPU

Written by `bench/gpu/check.sh emulated` ([emulated.py](emulated.py)); measured {days} (UTC).

|  |  |
| --- | --- |
{machine}
The cases of [cases/multi](cases/multi) for 8 GPUs; models with experts have all their layers, and recompute what does not fit. Rank 0 of eight runs with its program, memory and kernels at full size, captured as one CUDA
graph (a pipeline rank now runs on streams instead; its figures here are older), on one GPU. `braid emulate` simulates the other seven: communication takes as long as in the simulator ({cluster}, data sheets), including waits for
late ranks, and delivers numbers that are made up once ([docs/simulator.md](../../docs/simulator.md#one-rank-for-real)).
**This measures compute, overlap, launches and memory. It does not measure communication between GPUs.**

## Steps

{steps}
{notes}Tokens/s and GPU: from the median step. Simulated, error: the simulated step and its error against the measured one; the same with compute costs from a
profile of one GPU; and the error of compute alone, by data sheet. Mean absolute errors: {means}.
Exposed: communication without compute beside it, of all communication, traced and simulated. `copies`: copies within the device stand for what
peers would write. They are slow beside compute, so communication takes longer than simulated, and exposed time is too high. Clock and power: medians of samples of the driver, every 200 ms, while the GPU was busy.

{again}{steps_only}{experts}## Parts of the error

The simulated step less the traced one, in percent of the traced step, is the sum of three parts: compute; exposed communication; and the rest, in
which nothing runs. In the sum they may cancel. Means of absolute values come last.

{parts}
## Memory, GiB

{memory}
For the others: data of the other ranks is made once and kept in separate memory; with `copies` it lies in the planned memory. By the driver: how much
less memory the GPU has free than before. Beside it: what of that is not allocated by the plan: kernels' scratch, graphs, libraries and 64 MiB for
the emulation; the runs did not record scratch alone.

## Ops

Error of the simulator by op, for ops that take at least a hundredth of the step: simulated over measured time.

{ops}
"""


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="build folder, or folder of the programs")
    parser.add_argument("--results", required=True, type=pathlib.Path, help="folder of raw.jsonl, which is appended to")
    parser.add_argument("--case", action="append", choices=list(multi_cases.CASES), dest="cases", help="only this one; may be repeated")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), dest="variants", help="may be repeated (default: found)")
    parser.add_argument("--found", type=pathlib.Path, help="folder of run files that a search found, CASE.toml")
    parser.add_argument("--rank", type=int, default=0, help="rank to run (0)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps (5)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after this many seconds")
    parser.add_argument("--limit", type=int, default=300, help="seconds of one run (300)")
    parser.add_argument("--profile", type=pathlib.Path, help="also simulate everything that was measured with this profile (needs no GPU)")
    parser.add_argument("--again", action="store_true", help="simulate everything that was measured again, with the prices of today (needs no GPU); "
                        "--found has the run files of that time, since a search with other prices may find another overlap")
    parser.add_argument("--report", type=pathlib.Path, help="the page")
    parser.add_argument("--page-only", action="store_true", help="run nothing; write the page from earlier results")
    parser.add_argument("--small", action="store_true", help="tiny versions of the cases, to rehearse")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args(words)
    arguments.cases = arguments.cases or list(multi_cases.CASES)
    arguments.variants = arguments.variants or ["found"]
    return arguments


def settings(arguments, case, variant):
    """Run file and changes. A run file in FOUND has all settings; without one, braid searches."""
    overlap, _, more = variant.partition("-")
    recipe = more if more in RECIPES else ""
    found = arguments.found / f"{'-'.join(filter(None, (case, recipe)))}.toml" if arguments.found else None
    has_found = overlap in OF_SEARCH and found and found.is_file()
    run_file = found if has_found else multi_cases.run_file(case)
    changes = multi_cases.changes(case, GPUS, arguments.small, arguments.device) | ({} if has_found else VARIANTS[variant])
    if not arguments.small:
        changes |= multi_cases.CASES[case].whole
    if more == SKEWED:
        changes |= multi_cases.CASES[case].skewed | (multi_cases.SMALL_EXPERT_RUN if arguments.small else {})
    if arguments.small and recipe:
        changes |= multi_cases.small_fp8(case, GPUS)
    return [run_file, *gpu_bench.as_arguments(changes), *(["--auto-overlap"] if overlap in OF_SEARCH and not has_found else [])]


def command(arguments, case, variant):
    return [gpu_bench.find_program(arguments.bin, "braid"), "emulate", *settings(arguments, case, variant), "--cluster", CLUSTER, "--json",
            "--rank", arguments.rank, "--steps", arguments.steps, *(["--copies"] if variant.partition("-")[0] == "copies" else [])]


def simulate_by_profile(arguments, results):
    """Compute costs what the profile says, communication what the data sheet does."""
    for r in newest(results.read(), arguments.small):
        words = [gpu_bench.find_program(arguments.bin, "braid"), "simulate", *settings(arguments, r["case"], r["variant"]),
                 "--profile", arguments.profile, "--json"]
        simulated = last_object(bounded_run.run_together([str(word) for word in words], arguments.limit, [{}])[0])
        results.add("by_profile", case=r["case"], variant=r["variant"], small=arguments.small, step_ns=simulated["step_ns"],
                    cost=simulated["cost"])


def simulate_again(arguments, results):
    """Without contention, because communication of the emulation holds no SMs and moves nothing over the links. Not with the copies of `copies`,
    which slow compute down, nor with unequal loads, which only the emulated rank knows."""
    for r in newest(results.read(), arguments.small):
        if r["variant"].partition("-")[0] == "copies" or r["variant"].endswith(SKEWED):
            continue
        words = [gpu_bench.find_program(arguments.bin, "braid"), "simulate", *settings(arguments, r["case"], r["variant"]),
                 "--cluster", CLUSTER, "--no-contention", "--json"]
        simulated = last_object(bounded_run.run_together([str(word) for word in words], arguments.limit, [{}])[0])
        of_stage = simulated["stages"][r["rank"] * len(simulated["stages"]) // GPUS]  # stages are the slowest dimension of ranks
        results.add("again", case=r["case"], variant=r["variant"], small=arguments.small, step_ns=simulated["step_ns"],
                    compute_ns=of_stage["compute_ns"])


def last_object(text):
    """The JSON object that the text ends with."""
    begin = text.find("{\n")
    if begin < 0:
        raise Failure(f"no result: {bounded_run.tail(text)}")
    return json.loads(text[begin:])


def measure(arguments, results):
    """Runs all, the first variant of every case first; returns how many failed."""
    end, failures = time.monotonic() + arguments.seconds, 0
    for variant in arguments.variants:
        for case in arguments.cases:
            if variant.endswith(SKEWED) and not multi_cases.CASES[case].skewed:
                print(f"{case}, {variant}: has no experts")
                continue
            if time.monotonic() > end:
                print(f"{case}, {variant}: no time left")
                continue
            facts = {"case": case, "variant": variant, "small": arguments.small}
            try:
                words = [str(word) for word in command(arguments, case, variant)]
                with gpu_bench.GpuMonitor() as monitor:
                    result = last_object(bounded_run.run_together(words, arguments.limit, [{}])[0])
                busy = monitor.summary()
                results.add("emulated", **facts, **result, clock_mhz=busy["clock_mhz"], power_w=busy["power_w"])
                print(f"{case}, {variant}: {result['step_ns'] * 1e-6:.1f} ms, simulated {result['simulated_step_ns'] * 1e-6:.1f} ms",
                      flush=True)
            except Failure as error:
                failures += 1
                results.add("failure", **facts, message=str(error))
                print(f"{case}, {variant}: {error}", flush=True)
    return failures


def newest(records, small):
    """By case and variant, in the order of the cases; what a profile says of a step is in it."""
    latest = {}
    for r in records:
        place = (r.get("case"), r.get("variant"))
        if r["kind"] == "emulated" and r["small"] == small:
            latest[place] = r
        elif r["kind"] == "by_profile" and r["small"] == small:
            latest[place] = latest[place] | {"profile_step_ns": r["step_ns"]}
        elif r["kind"] == "again" and r["small"] == small:
            latest[place] = latest[place] | {"again": r}
    return [latest[case, variant] for case in multi_cases.CASES for variant in VARIANTS if (case, variant) in latest]


def steps_only(records, rows, small):
    """The section of runs of which only the steps were kept, beside the fastest overlap of the same case; "" without any."""
    kept = {(r["case"], r["variant"]): r for r in records if r["kind"] == "emulated_step" and r["small"] == small}
    found = {r["case"]: r for r in rows if r["variant"] == "found"}
    variants = [variant for variant in ("defaults", "off") if any(of == variant for _, of in kept)]
    lines, errors = [], {variant: [] for variant in variants}
    for case in multi_cases.CASES:
        of_case = [kept.get((case, variant)) for variant in variants]
        if not any(of_case):
            continue
        cells = [ms(found[case]["step_ns"]) if case in found else ""]
        for variant, r in zip(variants, of_case):
            cells += [ms(r["step_ns"]), ms(r["simulated_step_ns"]), off(r["simulated_step_ns"], r["step_ns"])] if r else [""] * 3
            errors[variant] += [distance(r["simulated_step_ns"], r)] if r else []
        lines.append([case, *cells])
    if not lines:
        return ""
    means = "; ".join(f"`{variant}` {100 * sum(of) / len(of):.1f}% of {len(of)} cases" for variant, of in errors.items())
    heads = ["case", "found, ms", *(head for variant in variants for head in (f"{variant}, ms", "simulated", "error"))]
    return (f"## Without a search\n\nRuns of which only the median steps were kept ({max(r['time'] for r in kept.values())[:10]}). "
            f"Mean absolute errors: {means}.\n\n{table(heads, lines)}\n")


def again(rows):
    """The section of simulations that are newer than the measurements; "" without any. Kernels are faster on numbers that are not finite."""
    of_numbers = [r for r in rows if "again" in r and not any("not finite" in note for note in r["notes"])]
    if not of_numbers:
        return ""
    error = lambda r: r["again"]["compute_ns"] / r["measured"]["compute_ns"] - 1
    lines = [[r["case"], r["variant"], ms(r["step_ns"]), ms(r["again"]["step_ns"]), off(r["again"]["step_ns"], r["step_ns"]), ms(r["measured"]["compute_ns"]),
              ms(r["again"]["compute_ns"]), f"{100 * error(r):+.1f}%"] for r in of_numbers]
    distances = [abs(error(r)) for r in of_numbers]
    heads = ["case", "overlap", "step, ms", "simulated", "error", "compute, ms", "simulated", "error"]
    return ("## With newer prices\n\nThe same overlap simulated again "
            f"({max(r['again']['time'] for r in of_numbers)[:10]}), without contention: communication of the emulation holds no SMs and no links. Steps with numbers "
            f"that are not finite are left out. Compute: mean absolute error {100 * sum(distances) / len(distances):.1f}%, at most {100 * max(distances):.1f}%.\n\n"
            f"{table(heads, lines)}\n")


def experts(rows):
    """The section of exchanges between ranks with different experts; "" without any."""
    lines = []
    for r in rows:
        measured, simulated = (r[side]["communication"].get("expert") for side in ("measured", "simulated"))
        if measured:
            loads = [f"{r[key]:.2f}" for key in ("load", "worst_load")] if "load" in r else ["1.00", ""]
            cells = [cell for of in (measured, simulated) for cell in (ms(of["total_ns"]), ms(of["exposed_ns"]), share(of))]
            lines.append([r["case"], r["variant"], *loads, *cells, gib(r["planned_bytes"]), gib(r["allocated_bytes"] - r["lasting_bytes"])])
    if not lines:
        return ""
    heads = ["case", "overlap", "rows of the rank", "at most", "exchanges, ms", "exposed", "share", "simulated, ms", "exposed", "share", "planned, GiB",
             "allocated"]
    return ("## Exchanges of rows of experts\n\nRows that come to the rank beside those of equal loads: mean of layers and microbatches, and the most. Ranks "
            f"wait for the busiest one, which this is. Allocated: without what stands for the others.\n\n{table(heads, lines)}\n")


def share(communication):
    return f"{100 * communication['exposed_ns'] / communication['total_ns']:.1f}%"


def off(simulated, measured):
    return f"{100 * (simulated / measured - 1):+.1f}%" if measured else ""


def ms(nanoseconds):
    return f"{nanoseconds * 1e-6:.1f}"


def exposed(side):
    return ", ".join(f"{kind} {ms(of['exposed_ns'])} of {ms(of['total_ns'])}" for kind, of in side["communication"].items()) or "none"


def distance(simulated_ns, r):
    return abs(simulated_ns / r["step_ns"] - 1)


def marks_of_notes(rows):
    """By note, in the order in which rows have them: (1), (2), ..."""
    notes = dict.fromkeys(note for r in rows for note in r["notes"])
    return {note: f"({i + 1})" for i, note in enumerate(notes)}


def mean_distances(variant, rows):
    of = {"by data sheet": [distance(r["simulated_step_ns"], r) for r in rows],
          "by profile": [distance(r["profile_step_ns"], r) for r in rows if "profile_step_ns" in r]}
    return f"`{variant}` " + ", ".join(f"{100 * sum(values) / len(values):.1f}% {name}" for name, values in of.items() if values)


def parts_of_error(r):
    """Of the traced step: the error of the step, and of each part of it; they add up."""
    measured, simulated = r["measured"], r["simulated"]
    part = lambda name: (simulated[name] - measured[name]) / measured["step_ns"]
    step, compute, exposed_part = part("step_ns"), part("compute_ns"), part("exposed_ns")
    return [step, compute, exposed_part, step - compute - exposed_part]


def part_rows(rows):
    """A line per run, and one per variant with the means."""
    percent = lambda values, sign: [f"{100 * value:{sign}.1f}%" for value in values]
    lines = [[r["case"], r["variant"], *percent(parts_of_error(r), "+")] for r in rows]
    for variant in dict.fromkeys(r["variant"] for r in rows):
        of = [parts_of_error(r) for r in rows if r["variant"] == variant]
        means = [sum(abs(value) for value in column) / len(of) for column in zip(*of)]
        lines.append([f"mean of {len(of)}", variant, *percent(means, "")])
    return lines


def step_row(r, marks):
    measured, simulated = r["measured"], r["simulated"]
    return [" ".join([r["case"], *(marks[note] for note in r["notes"])]), r["variant"], f"{ms(r['step_ns'])} ({ms(min(r['steps_ns']))} to {ms(max(r['steps_ns']))})",
            f"{r['tokens_per_s_per_rank']:,.0f}", ms(r["simulated_step_ns"]), off(r["simulated_step_ns"], r["step_ns"]),
            off(r["profile_step_ns"], r["step_ns"]) if "profile_step_ns" in r else "",
            ms(measured["compute_ns"]), off(simulated["compute_ns"], measured["compute_ns"]), exposed(measured), exposed(simulated),
            ms(measured["idle_ns"]), of_busy(r.get("clock_mhz")), of_busy(r.get("power_w"))]


def of_busy(value):
    """Unknown without NVIDIA's driver, and in older results."""
    return "" if value is None else f"{value:.0f}"


def memory_row(r):
    lasting = r["lasting_bytes"]
    equal = r["planned_bytes"] + lasting == r["allocated_bytes"]
    return [r["case"], r["variant"], gib(r["planned_bytes"]), gib(lasting) if lasting else "", "the same" if equal else gib(r["allocated_bytes"]),
            gib(r.get("driver_bytes")), gib(r["driver_bytes"] - r["allocated_bytes"]) if r.get("driver_bytes") else ""]


def op_rows(rows):
    """A line per op, a column per case, of the first variant that each has."""
    first = {r["case"]: r for r in reversed(rows)}
    large = {op for r in first.values() for op, of in r["measured"]["ops"].items() if of["ns"] > 0.01 * r["measured"]["step_ns"]}
    compute = sorted(op for op in large if any(op in r["simulated"]["ops"] for r in first.values()))
    cell = lambda r, op: off(r["simulated"]["ops"].get(op, {}).get("ns", 0), r["measured"]["ops"].get(op, {}).get("ns", 0))
    big = lambda r, op: r["measured"]["ops"].get(op, {}).get("ns", 0) > 0.01 * r["measured"]["step_ns"]
    cases = [case for case in multi_cases.CASES if case in first]
    return ["op", *cases], [[op, *(cell(first[case], op) if big(first[case], op) else "" for case in cases)] for op in compute]


def page(results, small):
    records = results.read()
    rows = newest(records, small)
    if not rows:
        raise Failure("there are no results")
    machine = [r for r in records if r["kind"] == "machine"][-1]
    days = sorted({r["time"][:10] for r in rows})
    facts = [["GPU", f"{machine['gpu']}, {machine.get('memory')}, power limit {machine.get('power_limit')}, driver {machine['driver']}"],
             ["host", f"{machine['cpu']}, {machine['cores']} cores"]]
    marks = marks_of_notes(rows)
    notes = "".join(f"{mark} {note}.\n" for note, mark in marks.items()) + ("\n" if marks else "")
    steps = table(["case", "overlap", "step, ms", "tokens/s and GPU", "simulated, ms", "error", "by profile", "compute, ms", "error", "exposed, ms",
                   "simulated exposed", "idle, ms", "clock, MHz", "power, W"], [step_row(r, marks) for r in rows])
    means = "; ".join(mean_distances(variant, [r for r in rows if r["variant"] == variant]) for variant in dict.fromkeys(r["variant"] for r in rows))
    memory = table(["case", "overlap", "planned", "for the others", "allocated", "by the driver", "beside it"], [memory_row(r) for r in rows])
    parts = table(["case", "overlap", "step", "compute", "exposed", "rest"], part_rows(rows))
    return PAGE.format(parts=parts, again=again(rows), experts=experts(rows), days=" to ".join(dict.fromkeys((days[0], days[-1]))), cluster=CLUSTER, steps=steps, memory=memory, means=means, notes=notes,
                       machine="".join(f"| {key} | {value} |\n" for key, value in facts),
                       steps_only=steps_only(records, rows, small), ops=table(*op_rows(rows)))


def main():
    arguments = parse_arguments()
    results = gpu_bench.Results(arguments.results)
    try:
        failures = 0
        if not arguments.page_only:
            results.add("machine", **gpu_bench.machine())
            failures = measure(arguments, results)
        if arguments.profile:
            simulate_by_profile(arguments, results)
        if arguments.again:
            simulate_again(arguments, results)
        path = arguments.report or arguments.results / "emulated.md"
        gpu_bench.write_whole(path, page(results, arguments.small))
        print(f"page {path}")
    except Failure as error:
        print(f"emulated.py: {error}", file=sys.stderr)
        return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
