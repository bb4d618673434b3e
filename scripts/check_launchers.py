#!/usr/bin/env python3
"""Trains under real launchers, on one host and on two, and proves that the run is the same bit for bit as in one process.

    scripts/check_launchers.py [--braid build/release/braid] [--only NAME...]

A tiny model with four ranks on the CPU (tensor parallelism within a host, data parallelism across), so that each rank is a process:

  mpirun, torchrun, srun   on one host: the launcher's own environment gives rank, world and address. The run is stopped after some
                           steps and the same command, given again, goes on to the end
  ..._two_hosts            the same with two ranks on each of two hosts; by_hand is a process per rank with RANK, WORLD_SIZE, LOCAL_RANK,
                           MASTER_ADDR and MASTER_PORT, mpich stands for the other MPIs, mpirun_in_slurm starts its daemons by srun, and
                           srun_pmi2 is srun --mpi=pmi2
  stop_..._two_hosts       asked to end, by what that launcher has for it: all save after the same step, and go on from there
  kill_two_hosts           kill -9 of a rank that is not on the host of rank 0: all end within 30 s, the message on the other host names
                           it, and the same command goes on from the last checkpoint
  link_two_hosts           the same where the network between the hosts goes down instead

Losses and the tensors of the last checkpoint must be those of the same ranks in one process. Hosts are namespaces of this machine
(two_hosts.py): the rendezvous and the bytes of the ranks go over virtual Ethernet, and nothing of it is left. A Slurm of slurmctld,
slurmd and munged is configured and started here. A launcher that is not installed is a case that is skipped.

Prints a line per case; the last is "N passed, N failed, N skipped". Exits with 1 if one failed, with 77 if none passed.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import time

import two_hosts
from launchers import (NUM_RANKS, WHY_NOT, Failure, Program, by_hand, mpich, mpirun, mpirun_in_slurm, slurm_conf, srun, srun_pmi2, tail,
                       torchrun, wait_for, wait_until)

ROOT = pathlib.Path(__file__).resolve().parent.parent
ISOLATED = "--isolated-in"  # how this program is told that it is
FIRST, SECOND = two_hosts.NAMES
LIMIT_S = 120  # of one run; all of them take seconds
END_LIMIT_S = 30  # from the blow to the end of all processes
SILENCE_S = 4  # runtime.timeout_s of runs with a blow: a rank that says nothing for so long is missed
SKIPPED = 77

RUN_FILE = f"""[model]
layers = 2
width = 32
heads = 2
[train]
sequence = 32
microbatch = 2
global_batch = 8
steps = 6
[optimizer]
learning_rate = 3e-3
schedule = "constant"
[parallel]
ranks = {NUM_RANKS}
tensor = 2
[data]
train = "corpus.txt"
split = "90,10,0"
[eval]
interval = 3
batches = 2
[checkpoint]
interval = 3
keep = 0
[logging]
interval = 1
[runtime]
device = "cpu"
threads = 1
"""
# A run that goes on until something happens to it.
LONG = {"train.steps": 20000, "checkpoint.interval": 5, "eval.interval": 0, "runtime.timeout_s": SILENCE_S}


def corpus():
    source = random.Random(3)
    words = ["the cat", "a dog", "my bird", "sees", "hears", "finds", "likes", "always", "quietly"]
    return "".join(" ".join(source.choice(words) for _ in range(6)) + (".\n\n" if i % 3 == 2 else ".\n") for i in range(900))


class Run:
    """A run folder, and the words that train in it."""

    def __init__(self, folder, braid, name, settings=None):
        self.folder, self.name = folder / name, name
        settings = {"logging.run_folder": name, **(settings or {})}
        self.words = [braid, "train", "run.toml", *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]

    def numbers(self):
        """Losses and norms of all steps and evaluations, as they were written."""
        lines = map(json.loads, (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        return [(key, value) for line in lines for key, value in sorted(line.items()) if "loss" in key or "norm" in key]

    def newest(self):
        folders = sorted((self.folder / "checkpoints").glob("step_*"))
        if not folders:
            raise Failure(f"run {self.name} has left no checkpoint")
        return folders[-1]

    def last_step(self):
        return int(self.newest().name.split("_")[1])

    def tensors(self):
        """Bytes of the newest checkpoint, by file."""
        return {path.name: path.read_bytes() for path in self.newest().glob("*.safetensors")}


def expect_same(run, other):
    """That losses and tensors are the same, and are there."""
    numbers, tensors = run.numbers(), run.tensors()
    if not numbers or not tensors:
        raise Failure(f"run {run.name} has {len(numbers)} losses and {len(tensors)} files of tensors")
    if numbers != other.numbers():
        raise Failure(f"losses differ from those of one process: {numbers[-2:]} and {other.numbers()[-2:]}")
    if run.newest().name != other.newest().name or tensors != other.tensors():
        raise Failure(f"tensors of {run.newest().name} differ from those of one process")


def train_in_one_process(hosts, run, *options):
    """The same ranks as threads."""
    program = Program(hosts, run.name, FIRST, [*run.words, "--set", "runtime.processes=one", *options], {})
    if wait_for([program], LIMIT_S) != [0]:
        raise Failure(f"in one process:\n{tail(program.said())}")


def train(launch, hosts, names, run, *options):
    """What all processes said, once they have ended well."""
    programs = launch(hosts, names, run, options)
    statuses = wait_for(programs, LIMIT_S)
    said = "\n".join(program.said() for program in programs)
    if any(statuses):
        raise Failure(f"statuses {statuses}:\n{tail(said)}")
    if "\x1b" in said:
        raise Failure(f"codes for a terminal are in a file: {said[:said.index(chr(27)) + 8][-200:]!r}")
    return said


def expect_said(said, *texts):
    for text in texts:
        if said.count(text) != 1:
            raise Failure(f"\"{text}\" was said {said.count(text)} times:\n{tail(said)}")


def check_launch(launch, hosts, names, braid):
    """Two starts of the same command are the whole run."""
    reference, run = Run(hosts.folder, braid, "one"), Run(hosts.folder, braid, "run")
    train_in_one_process(hosts, reference)
    expect_said(train(launch, hosts, names, run, "--stop-after", "4"), "stopped after step 4")
    expect_said(train(launch, hosts, names, run), "after step 4", "finished after step 6")
    expect_same(run, reference)
    return f"{NUM_RANKS} processes on {' and '.join(names)}: 4 steps and 2 more, the same bits as in one process"


def process_of(rank, braid, variable="RANK"):
    """The process of that rank, by the variable from which it has it."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            if (folder / "exe").resolve() == braid and f"{variable}={rank}".encode() in variables:
                return int(folder.name)
        except OSError:
            pass  # has ended meanwhile
    raise Failure(f"no process of rank {rank}")


def wait_for_steps(programs, steps):
    def has_come():
        if any(program.process.poll() is not None for program in programs):
            raise Failure("ended before its time:\n" + "\n".join(tail(program.said()) for program in programs))
        return sum(program.said().count("  loss ") for program in programs) >= steps
    wait_until(has_come, f"step {steps}", LIMIT_S)


def start_long_run(launch, hosts, names, braid):
    """A run that has made some steps, and its programs."""
    run = Run(hosts.folder, braid, "run", LONG)
    programs = launch(hosts, names, run, ())
    wait_for_steps(programs, 7)
    return run, programs


def expect_to_go_on(launch, hosts, names, braid, run):
    """The same command goes on from the last checkpoint as if nothing had happened."""
    step = run.last_step()
    until = ["--stop-after", step + 3]
    expect_said(train(launch, hosts, names, run, *until), f"after step {step}\n")
    whole = Run(hosts.folder, braid, "one", LONG)
    train_in_one_process(hosts, whole, *until)
    expect_same(run, whole)
    return f"resumed after step {step}, the same bits as in one process without it"


# Each asks a run on two hosts to end, as is usual with its launcher.


def ask_programs(hosts, programs, braid):
    for program in programs:
        program.process.send_signal(signal.SIGTERM)


def ask_slurm(hosts, programs, braid):
    two_hosts.call(*hosts.enter(FIRST), "env", f"SLURM_CONF={slurm_conf(hosts)}", "scancel", "1")


def ask_last_rank(hosts, programs, braid):
    """Open MPI lets SIGTERM be followed by SIGKILL too soon."""
    os.kill(process_of(NUM_RANKS - 1, braid, "OMPI_COMM_WORLD_RANK"), signal.SIGTERM)


def check_stop(launch, ask, hosts, names, braid):
    run, programs = start_long_run(launch, hosts, names, braid)
    ask(hosts, programs, braid)
    wait_for(programs, END_LIMIT_S)  # their statuses are a matter of the launcher
    expect_said("\n".join(program.said() for program in programs), f"stopped after step {run.last_step()};")
    return expect_to_go_on(launch, hosts, names, braid, run)


def kill_last_rank(hosts, braid):
    """Who must be named, on the host of rank 0."""
    process = process_of(NUM_RANKS - 1, braid)
    os.kill(process, signal.SIGKILL)
    return {FIRST: rf"rank {NUM_RANKS - 1} \({SECOND}:{process}\) has ended"}


def unplug(hosts, _):
    """Each host must name one of the other."""
    hosts.set_link(SECOND, "down")
    silent = rf"has not answered for {SILENCE_S} s"
    return {FIRST: rf"rank [23] \({SECOND}:\d+\) {silent}", SECOND: rf"rank 0 \({FIRST}:\d+\) {silent}"}


def check_blow(blow, hosts, names, braid):
    """All end soon, and say who is missing."""
    run, programs = start_long_run(by_hand, hosts, names, braid)
    begin = time.monotonic()
    expected = blow(hosts, braid)
    statuses = wait_for(programs, END_LIMIT_S)
    took_s = time.monotonic() - begin
    if 0 in statuses:
        raise Failure(f"statuses {statuses}")
    for host, pattern in expected.items():
        said = "\n".join(program.said() for program in programs if program.host == host)
        if not re.search(pattern, said):
            raise Failure(f"nobody on {host} says {pattern}:\n{tail(said)}")
    hosts.set_link(SECOND, "up")
    return f"all ended after {took_s:.1f} s; " + expect_to_go_on(by_hand, hosts, names, braid, run)


def launch_case(launch, names):
    return WHY_NOT[launch], lambda hosts, braid: check_launch(launch, hosts, names, braid)


def stop_case(launch, ask):
    return WHY_NOT[launch], lambda hosts, braid: check_stop(launch, ask, hosts, two_hosts.NAMES, braid)


def blow_case(blow):
    return WHY_NOT[by_hand], lambda hosts, braid: check_blow(blow, hosts, two_hosts.NAMES, braid)


ON_ONE_HOST = (mpirun, torchrun, srun)
ON_TWO_HOSTS = (by_hand, mpirun, mpirun_in_slurm, mpich, torchrun, srun, srun_pmi2)
HOW_TO_STOP = {mpirun: ask_last_rank, torchrun: ask_programs, srun: ask_slurm}
CASES = {  # by name: why it cannot be, and the check
    **{launch.__name__: launch_case(launch, [FIRST]) for launch in ON_ONE_HOST},
    **{f"{launch.__name__}_two_hosts": launch_case(launch, two_hosts.NAMES) for launch in ON_TWO_HOSTS},
    **{f"stop_{launch.__name__}_two_hosts": stop_case(launch, ask) for launch, ask in HOW_TO_STOP.items()},
    "kill_two_hosts": blow_case(kill_last_rank),
    "link_two_hosts": blow_case(unplug),
}


def outcome_of(name, folder, braid):
    """"passed", "failed" or "skipped", and what there is to say."""
    why_not, check = CASES[name]
    reason = why_not()
    if reason:
        return "skipped", reason
    case_folder = folder / name
    case_folder.mkdir()
    (case_folder / "corpus.txt").write_text(corpus(), encoding="utf-8")
    (case_folder / "run.toml").write_text(RUN_FILE, encoding="utf-8")
    try:
        with two_hosts.Hosts(case_folder) as hosts:
            return "passed", check(hosts, braid)
    except (Failure, RuntimeError) as failure:
        return "failed", str(failure)
    finally:
        shutil.rmtree(case_folder)


def check_all(names, folder, braid):
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name in names:
        begin = time.monotonic()
        outcome, said = outcome_of(name, folder, braid)
        counts[outcome] += 1
        print(f"{name}: {outcome} ({time.monotonic() - begin:.1f} s): {said}", flush=True)
    return finish(counts)


def finish(counts):
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if counts["failed"] else 0 if counts["passed"] else SKIPPED


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--braid", metavar="PATH", type=pathlib.Path, default=ROOT / "build" / "release" / "braid",
                        help="the program (build/release/braid)")
    parser.add_argument("--only", action="append", choices=CASES, metavar="NAME", help="only this case; may be repeated")
    parser.add_argument(ISOLATED, type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    names, braid = arguments.only or list(CASES), arguments.braid.resolve()
    if not os.access(braid, os.X_OK):
        print(f"check_launchers.py: {arguments.braid} is no program: build it, or give --braid", file=sys.stderr)
        return 2
    if arguments.isolated_in:
        return check_all(names, arguments.isolated_in, braid)
    reason = two_hosts.why_not()
    if reason:
        print("\n".join(f"{name}: skipped: {reason}" for name in names))
        return finish({"passed": 0, "failed": 0, "skipped": len(names)})
    return two_hosts.run_isolated([*sys.argv[1:], ISOLATED])


if __name__ == "__main__":
    sys.exit(main())
