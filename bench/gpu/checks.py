#!/usr/bin/env python3
"""The GPU tests, alone, with other numbers of hardware queues, and under compute-sanitizer, and the benchmarks of single kernels.

usage: checks.py tests|connections|sanitizers|kernels --bin FOLDER --results FOLDER [--small] [--tool NAME...] [--program NAME...]
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import bounded_run
import gpu_bench
from gpu_bench import FOLDER, Failure

PROGRAMS = ["braid_cuda_tests", "braid_cuda_runtime_tests"]
NUM_PARTS = 8  # processes that share the GPU, each with a part of the cases: much of a case is its reference on the CPU
LIMIT_S = {"tests": 300, "connections": 300, "memcheck": 480, "racecheck": 480, "kernels": 300}
FOUND_ERRORS = 86  # exit status by which compute-sanitizer says so

# With few hardware queues streams wait for each other; what must not depend on that: layouts that overlap, by either engine.
CONNECTIONS = [1, 8, 32]
CONNECTION_CASES = re.compile(r"^(GpuLayouts\.(AreBitwiseTheSame|HaveTheLossesOfOneGpuByCopyEngines).*/"
                              r"(tensor2_sequence|parameters2|1f1b2|zbh1_2|dualpipev2|tensor2_pipeline2|"
                              r"experts2_optimizer|fp8_block_parameters2|fp8_dispatch2|hybrid_parameters2|hybrid_experts2)$|PeerCalls)")

# Cases that compare the device's free memory, so that nobody else may use it.
ALONE = ["CudaExecutorTest.TakesFromTheDriverWhatIsPlannedAndNothingLater",
         "CudaMemory.TheDriverGivesWhatIsPlannedAndNoMoreThanIsCounted"]
NOT_SANITIZED = {"CudaExecutorTest.ErrorsOfTheDeviceSurfaceAtWait":
                 "a death test that reads a bad address on purpose; racecheck hangs in the process that it starts"}
# Cases that a tool breaks, as patterns of their names: with them all cases after the first of them in the same process would fail.
BROKEN_BY_TOOL = {
    "racecheck": {r"^(LinearCudaTest|CudaEngine|CudaMemory|CudaGenerator|GpuLayouts|TracedRanks)\.":
                  "cuBLASLt's kernels meet an illegal address under racecheck, also unwatched (not without it, nor under memcheck); "
                  "the kernels of ours that these cases run have cases of their own"}}

# racecheck looks at shared memory only. It does not know the asynchronous copies and barriers of cuBLASLt's and cuDNN's kernels and
# reports hazards in them: a limit of the tool, in code that is not ours. So it watches the kernels whose (mangled) name has our
# namespace, in all tests.
TOOLS = {"memcheck": ["--report-api-errors", "no"],
         "racecheck": ["--kernel-name", "kernel_substring=braid", "--racecheck-report", "all"]}
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (.*)")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=["tests", "connections", "sanitizers", "kernels"])
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="build folder, or folder of the programs")
    parser.add_argument("--results", required=True, help="folder of raw.jsonl, which is appended to")
    parser.add_argument("--small", action="store_true", help="sanitizers: only the cases of our own kernels")
    parser.add_argument("--tool", action="append", choices=list(TOOLS), help="sanitizers: only this one; may be repeated")
    parser.add_argument("--program", action="append", choices=PROGRAMS, help="tests, sanitizers: only this one; may be repeated")
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    return parser.parse_args()


def listed_cases(program):
    """Names "Suite.Case" of a GoogleTest program."""
    names, suite = [], ""
    for line in gpu_bench.run([program, "--gtest_list_tests"], 60).splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith("  "):
            names.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return names


def run_for(command, limit_s):
    """Exit status, or "time limit", and the output of a program. At its limit all that it started ends too: a test that
    compute-sanitizer left behind would keep the GPU, and its end of the pipe."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = "time limit"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # nothing of it is left, as should be
            process.wait()
        output.seek(0)
        return status, output.read().decode(errors="replace")


class Part:
    """Some cases of a test program in a separate process."""

    def __init__(self, cases, program, prefix=()):
        self.cases, self.program, self.prefix = cases, program, prefix
        self.status, self.output, self.report = 0, "", None

    def run(self, limit_s):
        with tempfile.TemporaryDirectory() as work:
            report = pathlib.Path(work) / "report.json"
            command = [*self.prefix, self.program, f"--gtest_filter={':'.join(self.cases)}", f"--gtest_output=json:{report}"]
            self.status, self.output = run_for([str(word) for word in command], limit_s)
            if self.status == "time limit":
                self.output += f"\nmore than {limit_s} s"
            elif report.exists():
                self.report = json.loads(report.read_text())

    def outcomes(self):
        """Names of the cases that passed and failed, and the reasons of those that were skipped."""
        found = {"passed": [], "failed": [], "skipped": collections.Counter()}
        if self.report is None:
            return self.outcomes_in_output(found)
        reasons = dict(re.findall(r"\[ RUN      \] (\S+)\n(?:.*Skipped\n)?(.*)\n", self.output))
        for suite in self.report["testsuites"]:
            for case in suite["testsuite"]:
                name = f'{suite["name"]}.{case["name"]}'
                if case.get("failures"):
                    found["failed"].append(name)
                elif case["result"] == "SKIPPED":
                    found["skipped"][reasons.get(name, "no reason given").strip()] += 1
                else:
                    found["passed"].append(name)
        return found


    def outcomes_in_output(self, found):
        """Outcomes of a program that ended early, from its output so far. The case in which it ended has failed; cases that did not
        start have no outcome."""
        ended = {name: outcome for outcome, name in re.findall(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+) \(", self.output)}
        started = re.findall(r"\[ RUN      \] (\S+)", self.output)
        found["passed"] = [name for name, outcome in ended.items() if outcome == "OK"]
        found["failed"] = [name for name, outcome in ended.items() if outcome == "FAILED"]
        found["skipped"]["no reason given"] += sum(outcome == "SKIPPED" for outcome in ended.values())
        last = next((name for name in reversed(started) if name not in ended), "before its first case" if not started else "at its end")
        found["failed"].append(f"{self.program.name}: ended with {self.status}, {last}")
        return found


def run_parts(program, cases, limit_s, prefix=()):
    """The parts of a program, after all have run."""
    together = [case for case in cases if case not in ALONE]
    parts = [Part(together[i::NUM_PARTS], program, prefix) for i in range(min(NUM_PARTS, len(together)))]
    with concurrent.futures.ThreadPoolExecutor(NUM_PARTS) as pool:
        list(pool.map(lambda part: part.run(limit_s), parts))
    alone = [case for case in cases if case in ALONE]
    if alone:
        parts.append(Part(alone, program, prefix))
        parts[-1].run(limit_s)
    return parts


def run_tests(program, results, cases=None, kind="tests", **variables):
    """Whether all cases of a test program, or these, passed or were skipped, with these environment variables."""
    begin = time.monotonic()
    prefix = ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []
    parts = run_parts(program, listed_cases(program) if cases is None else cases, LIMIT_S[kind], prefix)
    title = " ".join([program.name, *prefix[1:]])
    seconds = time.monotonic() - begin
    passed, failed, skipped = 0, [], collections.Counter()
    for part in parts:
        found = part.outcomes()
        passed += len(found["passed"])
        failed += found["failed"]
        skipped += found["skipped"]
        if part.status != 0:
            print(f"{title}: a part ended with status {part.status}:\n{part.output[-6000:]}")
    for name in failed:
        print(f"failed: {name}")
    for reason, count in skipped.items():
        print(f"skipped: {count} cases: {reason}")
    print(f"{title}: {passed} passed, {len(failed)} failed, {sum(skipped.values())} skipped in {seconds:.0f} s", flush=True)
    results.add(kind, program=program.name, passed=passed, failed=failed, skipped=dict(skipped), seconds=seconds, **variables)
    return all(part.status == 0 for part in parts)


def run_connections(program, results):
    """Whether the cases that streams matter for pass with every number of hardware queues. Exchanges of rows need one for each stream and
    are refused with fewer, by a line that says so."""
    cases = [case for case in listed_cases(program) if CONNECTION_CASES.search(case)]
    without_exchanges = [case for case in cases if not re.search("experts|dispatch", case)]
    return all([run_tests(program, results, cases if count > 1 else without_exchanges, "connections", CUDA_DEVICE_MAX_CONNECTIONS=count)
                for count in CONNECTIONS])


def stage_connections(arguments, results):
    return for_each_program(arguments, results, "connections", lambda program: run_connections(program, results))


def for_each_program(arguments, results, stage, check_program):
    """Whether a check passes for all programs. A program that is missing, or that breaks the check, counts as a failure."""
    good = True
    for name in arguments.program or PROGRAMS:
        try:
            good = check_program(gpu_bench.find_program(arguments.bin, name)) and good
        except Failure as failure:
            print(f"{stage} {name}: FAILED: {failure}", flush=True)
            results.add("failure", stage=stage, program=name, message=str(failure)[-2000:])
            good = False
    return good


def stage_tests(arguments, results):
    return for_each_program(arguments, results, "tests", lambda program: run_tests(program, results))


def sanitizer_command():
    for path in ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer"):
        if shutil.which(path):
            return path
    raise Failure("there is no compute-sanitizer; it is part of the CUDA toolkit")


def sanitize(tool, program, arguments, results):
    """Whether the tool found nothing in any case; with --small only cases of our own kernels."""
    cases = listed_cases(program)
    left_out = {case: NOT_SANITIZED[case] for case in cases if case in NOT_SANITIZED}
    for pattern, reason in BROKEN_BY_TOOL.get(tool, {}).items():
        left_out |= {case: reason for case in cases if re.search(pattern, case)}
    for reason, count in collections.Counter(left_out.values()).items():
        names = [case for case in left_out if left_out[case] == reason]
        print(f"{tool} {program.name}: {count} left out ({', '.join(names[:3])}{', ...' if count > 3 else ''}): {reason}")
    cases = [case for case in cases if case not in left_out]
    if arguments.small:
        cases = [case for case in cases if re.search("Norm|Rope|Embedding", case)]
    begin = time.monotonic()
    parts = run_parts(program, cases, LIMIT_S[tool],
                      [sanitizer_command(), "--tool", tool, "--error-exitcode", str(FOUND_ERRORS), *TOOLS[tool]])
    seconds = time.monotonic() - begin
    summaries = collections.Counter(match for part in parts for match in SUMMARY.findall(part.output))
    outcomes = [part.outcomes() for part in parts]
    ran = sum(len(each["passed"]) for each in outcomes)
    failed = [name for each in outcomes for name in each["failed"]]
    skipped = sum((each["skipped"] for each in outcomes), collections.Counter())
    clean = all(part.status == 0 for part in parts) and not failed
    for part in parts:
        if part.status != 0:
            print(f"{tool} {program.name}: a part ended with status {part.status}:\n{part.output[-6000:]}")
    for reason, count in skipped.items():
        print(f"{tool} {program.name}: skipped: {count} cases: {reason}")
    facts = [f"{ran} cases passed", f"{len(failed)} failed" + "".join(f" ({name})" for name in failed[:5]),
             f"{sum(skipped.values())} skipped", *(f"{count} x {text}" for text, count in summaries.items())]
    print(f"{tool} {program.name}: {'clean' if clean else 'NOT CLEAN'}: {', '.join(facts)}; {seconds:.0f} s", flush=True)
    results.add("sanitizer", tool=tool, program=program.name, clean=clean, cases=ran, failed=failed, skipped=dict(skipped),
                seconds=seconds, small=arguments.small, statuses=[part.status for part in parts], summaries=dict(summaries))
    return clean


def stage_sanitizers(arguments, results):
    print("racecheck: kernels of cuBLASLt and cuDNN are left out (a known limit of the tool), ours are watched in all tests")
    return all([for_each_program(arguments, results, tool, lambda program: sanitize(tool, program, arguments, results))
                for tool in arguments.tool or TOOLS])


def stage_kernels(arguments, results):
    cache = pathlib.Path(arguments.results) / "algorithms"
    programs = {"Matrix products and attention": [gpu_bench.find_program(arguments.bin, "braid_bench_gemm_attention"), cache],
                "Matrix products and attention in PyTorch": [arguments.python, FOLDER / "gemm_attention_torch.py"],
                "FP8 copies and products": [gpu_bench.find_program(arguments.bin, "braid_bench_fp8"), cache, "llama-8b"],
                "Kernels that memory limits": [gpu_bench.find_program(arguments.bin, "braid_bench_memory_bound")]}
    good = True
    for title, command in programs.items():
        begin = time.monotonic()
        try:
            text = gpu_bench.run(command, LIMIT_S["kernels"])
        except Failure as failure:
            print(f"{title}: FAILED: {failure}", flush=True)
            results.add("failure", stage="kernels", message=str(failure)[-2000:])
            good = False
            continue
        print(f"\n{title} ({time.monotonic() - begin:.0f} s)\n\n{text}", flush=True)
        results.add("kernels", title=title, text=text, seconds=time.monotonic() - begin)
    shutil.rmtree(cache, ignore_errors=True)
    return good


def main():
    arguments = parse_arguments()
    bounded_run.end_with_this()
    results = gpu_bench.Results(arguments.results)
    results.add("machine", **gpu_bench.machine())
    stage = {"tests": stage_tests, "connections": stage_connections, "sanitizers": stage_sanitizers, "kernels": stage_kernels}[arguments.stage]
    try:
        return 0 if stage(arguments, results) else 1
    except Failure as failure:
        print(f"checks.py {arguments.stage}: {failure}", file=sys.stderr)
        results.add("failure", stage=arguments.stage, message=str(failure)[-2000:])
        return 1


if __name__ == "__main__":
    sys.exit(main())
