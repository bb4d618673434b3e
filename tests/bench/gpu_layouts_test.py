#!/usr/bin/env python3
"""Tests of bench/gpu/layouts.py without a GPU: its layouts, a rehearsal on CPU ranks, and what it says when a run hangs or it is ended.

usage: gpu_layouts_test.py BRAID
"""
import argparse
import array
import contextlib
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "bench" / "gpu")]
import bounded_run  # noqa: E402
import layouts  # noqa: E402
from gpu_bench import Failure, as_arguments  # noqa: E402

BRAID = pathlib.Path(sys.argv.pop(1)).resolve()
SCRIPT = ROOT / "bench" / "gpu" / "layouts.py"


def command(results, *options):
    return [sys.executable, SCRIPT, "--bin", BRAID.parent, "--results", results, "--device", "cpu", *options]


def records(results):
    return [json.loads(line) for line in (pathlib.Path(results) / "raw.jsonl").read_text().splitlines()]


def layouts_of(suite):
    """Ranks and kind of model of each layout that a suite of layouts_test.cpp lists."""
    return {name: (int(ranks), family or "llama")
            for name, ranks, family in re.findall(r'GpuLayout\{"(\w+)", (\d+),(?:[^{}]|\{[^{}]*\})*?(?:,\s+"(\w+)")?\}', suite)}


class LayoutsTest(unittest.TestCase):
    def test_layouts_are_those_of_the_test_in_one_process(self):
        source = (ROOT / "tests" / "cuda_runtime" / "layouts_test.cpp").read_text(encoding="utf-8")
        suites = dict(re.findall(r"INSTANTIATE_TEST_SUITE_P\(\s*, (\w+),(.*?)\n\n", source + "\n", re.DOTALL))
        there = {**layouts_of(suites["GpuLayouts"]), **{f"{name}_hosts": layout for name, layout in layouts_of(suites["GpuRowsOverHosts"]).items()}}
        self.assertGreater(len(there), 45)
        self.assertEqual(there, {name: (layout[0], layouts.family_of(name)) for name, layout in layouts.LAYOUTS.items()})
        self.assertEqual({name for name in there if name.endswith("_hosts")}, set(layouts.OVER_HOSTS))

    def test_braid_takes_all_of_them(self):
        with tempfile.TemporaryDirectory() as folder:
            for family in layouts.FAMILIES:
                (pathlib.Path(folder) / f"{family}.toml").write_text(layouts.run_file("cuda", family), encoding="utf-8")
            for layout in layouts.LAYOUTS:
                settings = as_arguments({**layouts.settings_of(layout, 2), "logging.run_folder": "none"})
                done = subprocess.run([BRAID, "plan", f"{layouts.family_of(layout)}.toml", *settings], cwd=folder, capture_output=True,
                                      text=True, check=False)
                self.assertEqual(done.returncode, 0, f"{layout}: {done.stderr}")
                self.assertIn(f"ranks_per_gpu = {max(1, layouts.LAYOUTS[layout][0] // 2)}\n", done.stdout)

    def test_weights_are_compared(self):
        one = {"w": array.array("f", [3, 4]), "b": array.array("f", [0])}
        self.assertEqual(layouts.relative_difference(one, one), 0)
        self.assertAlmostEqual(layouts.relative_difference({**one, "w": array.array("f", [3, 4.5])}, one), 0.1)
        for other in ({"w": one["w"]}, {**one, "w": one["b"]}):
            with self.assertRaises(Failure):
                layouts.relative_difference(other, one)

    def checked(self, outcomes, losses_of_service=()):
        """The records of ring2 whose attempts raise `outcomes` (None: it is good). The service goes away during the attempts numbered
        in `losses_of_service`; somebody else notices where the number is negative."""
        service = mock.Mock(number=1, environment={})
        attempts = []

        def attempt(*_):
            attempts.append(None)
            if -len(attempts) in losses_of_service:
                service.number += 1
            if outcomes[len(attempts) - 1]:
                raise outcomes[len(attempts) - 1]

        def renew():
            if len(attempts) in losses_of_service:
                service.number += 1
        service.renew_if_gone.side_effect = renew
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(layouts, "check_layout", attempt):
            results = pathlib.Path(folder) / "results"
            arguments = argparse.Namespace(bin=BRAID.parent, device="cpu", results=results, slots=2, limit=1, service=service)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                good = layouts.Check(arguments, folder, 1).one("ring2", mock.Mock(**{"runs.cache": None}))
            (record,) = records(results)
        self.assertEqual(len(attempts), len(outcomes))
        self.assertEqual(good, not record["failure"])
        return record["failure"]

    def test_a_layout_under_which_the_service_went_away_starts_again(self):
        broken, late = Failure("no GPU"), layouts.Overrun("too long")
        self.assertEqual(self.checked([None]), "")
        self.assertEqual(self.checked([broken]), "no GPU")
        self.assertEqual(self.checked([broken, None], [1]), "")
        self.assertEqual(self.checked([broken, broken], [1, 2]), "no GPU")
        self.assertEqual(self.checked([broken, None], [-1]), "")
        self.assertEqual(self.checked([late], [1]), "too long")  # it took the service down
        self.assertEqual(self.checked([late, None], [-1]), "")  # it waited for ranks whose service had gone

    def test_a_rehearsal(self):
        with tempfile.TemporaryDirectory() as results:
            done = subprocess.run(command(results, "--gpus", "1", "--only", "tensor2_data2", "--only", "ring2"), capture_output=True,
                                  text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            found = {record["layout"]: record for record in records(results)}
            self.assertEqual({name: record["ranks_per_gpu"] for name, record in found.items()}, {"tensor2_data2": 4, "ring2": 2})
            for record in found.values():
                self.assertEqual(record["same"], ["second run", "no overlap"])
                self.assertGreater(record["weight_difference"], 0)  # bf16: else one rank was compared with itself
            self.assertIn("| tensor2_data2 | 4 | 4 |", (pathlib.Path(results) / "layouts.md").read_text())

    def test_a_run_that_hangs_is_ended_and_says_where_it_stood(self):
        with tempfile.TemporaryDirectory() as results:
            done = subprocess.run(command(results, "--limit", "0.05", "--only", "ring2"), capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"run \w+ took more than 0 s")  # on a busy machine, the first one may end before it is looked at
            self.assertRegex(done.stderr, r"process \d+: no rank, ")

    def test_who_is_ended_says_where_it_stands(self):
        with tempfile.TemporaryDirectory() as results:
            environment = {**os.environ, "BRAID_LAYOUTS_TEST": str(time.time())}
            tag = f"BRAID_LAYOUTS_TEST={environment['BRAID_LAYOUTS_TEST']}".encode()
            process = subprocess.Popen(command(results), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       env=environment)  # of all layouts: minutes
            while process.poll() is None and BRAID not in [self.program(each) for each in self.processes_with(tag)]:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 128 + signal.SIGTERM, said)
            self.assertRegex(said, r"== \w+: (run \w+, for \d+ s|between two runs)")
            self.assertEqual(self.processes_with(tag), [])

    @classmethod
    def processes_with(cls, variable):
        return [process for process in pathlib.Path("/proc").glob("[0-9]*") if cls.has(process, variable)]

    @staticmethod
    def program(process):
        try:
            return (process / "exe").resolve()
        except OSError:
            return None

    @staticmethod
    def has(process, variable):
        try:
            return variable in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            return False


if __name__ == "__main__":
    bounded_run.end_as_one()
    unittest.main()
