#!/usr/bin/env python3
"""Runs the tests of one build folder and counts them.

    scripts/run_tests.py [--preset release] [--quick] [-k REGEX] [-j N]

GoogleTest cases are counted one by one; a test that is no GoogleTest program (the include check, command-line tests)
counts as one. The last line is "N passed, N failed, N skipped"; the exit status is 0 only if none failed and at
least one passed.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="release", help="build folder build/PRESET and ctest preset")
    parser.add_argument("--quick", action="store_true", help="leave out tests labelled slow")
    parser.add_argument("-k", metavar="REGEX", help="only tests and cases (Suite.Name) that match")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="test programs at once (default 2)")
    return parser.parse_args()


def without_address_randomisation(preset):
    """Prefix for the TSan build: its shadow memory has fixed places, which the address layout of newer kernels may
    occupy ("unexpected memory mapping"). Empty where randomisation cannot be switched off, or need not be."""
    prefix = ["setarch", "-R"]
    if preset != "tsan" or not shutil.which("setarch"):
        return []
    return prefix if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0 else []


def listed_cases(program, environment):
    """Names "Suite.Case" of a GoogleTest program."""
    listing = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, errors="replace", check=True,
                             env=environment).stdout
    suite = ""
    for line in listing.splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith("  "):
            yield suite + name.strip()
        elif name.endswith("."):
            suite = name


def select(ctest, pattern):
    """Names of the ctest tests to run and of the GoogleTest cases in them (None: all) that match the pattern."""
    shown = subprocess.run([*ctest, "--show-only=json-v1"], capture_output=True, text=True, check=True, cwd=ROOT)
    tests, cases = [], []
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GTEST_")}
    for test in json.loads(shown.stdout)["tests"]:
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        spared = "".join(change.partition("=string_append:")[2] for change in properties.get("ENVIRONMENT_MODIFICATION", []))
        seen = environment | {"GTEST_FILTER": spared or "*"}
        is_gtest = any(value.startswith("GTEST_OUTPUT=") for value in properties.get("ENVIRONMENT", []))
        if re.search(pattern, test["name"]):
            tests.append(test["name"])
            cases += listed_cases(test["command"][0], seen) if is_gtest else []
        elif is_gtest:
            found = [case for case in listed_cases(test["command"][0], seen) if re.search(pattern, case)]
            tests += [test["name"]] if found else []
            cases += found
    return tests, cases


def count_gtest(report):
    """Outcomes of one GoogleTest report: lists of case names by outcome."""
    outcome = {"passed": [], "failed": [], "skipped": []}
    for suite in json.loads(report.read_text())["testsuites"]:
        for case in suite["testsuite"]:
            name = f'{suite["name"]}.{case["name"]}'
            if case.get("failures"):
                outcome["failed"].append(name)
            elif case["result"] == "COMPLETED":
                outcome["passed"].append(name)
            elif case["result"] == "SKIPPED" or case["status"] == "NOTRUN" and "DISABLED_" in name:
                outcome["skipped"].append(name)
    return outcome


def skip_reasons(output):
    """What GTEST_SKIP printed, by case; the reports have no reasons."""
    found = re.findall(r"\[ RUN      \] (\S+)\n[^\n]*: Skipped\n(.*)\n", output)
    return {case: reason.strip() for case, reason in found}


def grouped_by_reason(program, cases, output):
    """Lines that say what was skipped and why; cases of one reason share a line."""
    reasons = skip_reasons(output)
    counts = collections.Counter(reasons[case] for case in cases if case in reasons)
    lines = [f"{program}: {count} cases: {reason}" for reason, count in counts.items()]
    return lines + [f"{program}: {case}" for case in cases if case not in reasons]


def was_skipped(test):
    """Whether the test itself asked to be skipped; ctest marks a missing program in the same way."""
    skipped = test.find("skipped")
    return skipped is not None and skipped.get("message", "").startswith("SKIP_")


def with_reason(name, output):
    """A test that was skipped, and the first line that it printed."""
    lines = output.strip().splitlines()
    return f"{name}: {lines[0]}" if lines else name


def count_ctest(reports):
    """Outcomes of the whole run, from ctest's summary and the report of each GoogleTest program; "why" is what to print of
    those that were skipped."""
    total = {"passed": [], "failed": [], "skipped": [], "why": []}
    for test in ElementTree.parse(reports / "ctest.xml").getroot().iter("testcase"):
        name, status = test.get("name"), test.get("status")
        report = reports / f"{name}.json"
        if report.exists():
            outcome = count_gtest(report)
            for kind, names in outcome.items():
                total[kind] += [f"{name}: {case}" for case in names]
            total["why"] += grouped_by_reason(name, outcome["skipped"], test.findtext("system-out", ""))
            # A program can fail outside its cases: a leak reported at exit, a crash after the report was written.
            if status == "fail" and not any(case.startswith(f"{name}: ") for case in total["failed"]):
                total["failed"].append(f"{name}: exit status of the program")
        elif status == "run":
            total["passed"].append(name)
        elif status == "disabled" or was_skipped(test):
            total["skipped"].append(name)
            total["why"].append(with_reason(name, test.findtext("system-out") or ""))
        else:
            total["failed"].append(name)
    return total


def main():
    arguments = parse_arguments()
    reports = ROOT / "build" / arguments.preset / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)

    ctest = ["ctest", "--preset", arguments.preset]
    if arguments.quick:
        ctest += ["--label-exclude", "^slow$"]
    environment = dict(os.environ)
    if arguments.k is not None:
        tests, cases = select(ctest, arguments.k)
        if not tests:
            print(f"no test matches {arguments.k}\n0 passed, 0 failed, 0 skipped")
            return 1
        ctest += ["--tests-regex", "^(" + "|".join(re.escape(test) for test in tests) + ")$"]
        environment["GTEST_FILTER"] = ":".join(cases)
    status = subprocess.run(
        [*without_address_randomisation(arguments.preset), *ctest, "--parallel", str(arguments.j),
         "--no-label-summary", "--test-output-size-passed", str(1 << 20), "--output-junit", str(reports / "ctest.xml")],
        cwd=ROOT, env=environment).returncode

    if not (reports / "ctest.xml").exists():
        print("ctest ended without a summary\n0 passed, 1 failed, 0 skipped")
        return 1
    total = count_ctest(reports)
    if status != 0 and not total["failed"]:
        total["failed"].append(f"ctest: exit status {status}")
    for kind, lines in (("skipped", total["why"]), ("failed", total["failed"])):
        for line in lines:
            print(f"{kind}: {line}")
    print(", ".join(f"{len(total[kind])} {kind}" for kind in ("passed", "failed", "skipped")))
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
