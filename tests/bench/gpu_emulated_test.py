#!/usr/bin/env python3
"""Tests of bench/gpu/emulated.py without a GPU: a rehearsal on the CPU, what is run with which run file, and the page.

usage: gpu_emulated_test.py BRAID
"""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "bench" / "gpu")]
import emulated  # noqa: E402
import gpu_bench  # noqa: E402

BRAID = pathlib.Path(sys.argv.pop(1)).resolve()


def arguments(results, *more):
    return emulated.parse_arguments(["--bin", str(BRAID.parent), "--results", str(results), "--device", "cpu", "--small", *more])


def record(case, variant="found", step_ns=100_000_000, simulated_ns=103_000_000, time="2026-01-01 00:00:00", **more):
    side = {"step_ns": step_ns, "compute_ns": 80_000_000, "idle_ns": 0, "copy_ns": 0, "exposed_ns": 20_000_000,
            "communication": {"tensor": {"total_ns": 50_000_000, "exposed_ns": 20_000_000}},
            "ops": {"linear": {"tasks": 4, "ns": 40_000_000}, "embedding": {"tasks": 1, "ns": 1000}}}
    return {"kind": "emulated", "time": time, "case": case, "variant": variant, "small": True, "step_ns": step_ns,
            "steps_ns": [step_ns, step_ns + 1_000_000], "simulated_step_ns": simulated_ns, "tokens_per_s_per_rank": 81920.0,
            "planned_bytes": 2**30, "lasting_bytes": 0, "allocated_bytes": 2**30, "driver_bytes": 3 * 2**30, "measured": side, "simulated": side, "notes": [], **more}


class EmulatedTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def results_of(self, *records):
        (self.folder / "raw.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
        return gpu_bench.Results(self.folder)

    def test_rehearses_a_case_of_each_dimension_on_the_cpu(self):
        cases = ["llama-1b-zero1", "llama-8b-tp", "llama-8b-pp", "llama-8b-cp", "qwen3-30b-a3b-ep"]
        words = arguments(self.folder, "--variant", "defaults", "--steps", "1", *(w for case in cases for w in ("--case", case)))
        fp8 = arguments(self.folder, "--variant", "defaults-block", "--steps", "1", "--case", "llama-8b-zero3")
        skewed = arguments(self.folder, "--variant", "defaults-skewed", "--steps", "1", "--case", "mixtral-8x7b-ep", "--case", "llama-8b-tp")
        results = gpu_bench.Results(self.folder)
        results.add("machine", **gpu_bench.machine())
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(sum(emulated.measure(each, results) for each in (words, fp8, skewed)), 0, printed.getvalue())
        self.assertIn("llama-8b-tp, defaults-skewed: has no experts", printed.getvalue())
        emulated.simulate_again(words, results)
        page = emulated.page(results, True)
        again = page[page.index("## With newer prices"):page.index("## Exchanges of rows")]
        for case in cases:
            self.assertIn(f"| {case} | defaults | ", page)
            self.assertRegex(again, rf"\| {case} \| defaults \| [0-9.]+ \| [0-9.]+ \| ")
        self.assertIn("| llama-8b-zero3 | defaults-block | ", page)
        self.assertRegex(page, r"\| qwen3-30b-a3b-ep \| defaults \| 1\.00 \|  \| ")
        self.assertRegex(page, r"\| mixtral-8x7b-ep \| defaults-skewed \| [1-4]\.[0-9]+ \| ")
        self.assertIn("pipeline ", page)
        self.assertIn("the same", page)

    def test_simulations_that_are_newer_are_beside_what_was_measured(self):
        again = {"kind": "again", "time": "2026-01-02 00:00:00", "small": True, "variant": "found", "step_ns": 104_000_000, "compute_ns": 82_000_000}
        machine = {"kind": "machine", "time": "2026-01-01 00:00:00", "gpu": "X", "driver": "1", "cpu": "Y", "cores": 2}
        results = self.results_of(machine, record("llama-8b-tp"), record("llama-8b-cp", notes=["loss or gradients are not finite"]),
                                  {**again, "case": "llama-8b-tp"}, {**again, "case": "llama-8b-cp"})
        page = emulated.page(results, True)
        section = page[page.index("## With newer prices"):page.index("## Parts of the error")]
        self.assertIn("2026-01-02", section)
        self.assertIn("| llama-8b-tp | found | 100.0 | 104.0 | +4.0% | 80.0 | 82.0 | +2.5% |", section)
        self.assertIn("mean absolute error 2.5%, at most 2.5%", section)
        self.assertNotIn("llama-8b-cp", section)
        self.assertNotIn("## With newer prices", emulated.page(self.results_of(machine, record("llama-8b-tp")), True))

    def test_a_found_run_file_says_all(self):
        (self.folder / "llama-8b-tp.toml").write_text("", encoding="utf-8")
        words = arguments(self.folder, "--found", str(self.folder))
        found = [str(word) for word in emulated.command(words, "llama-8b-tp", "found")]
        self.assertIn(str(self.folder / "llama-8b-tp.toml"), found)
        self.assertNotIn("--auto-overlap", found)
        searched = [str(word) for word in emulated.command(words, "llama-8b-pp", "found")]
        self.assertIn("--auto-overlap", searched)
        self.assertIn("overlap.may_change_rounding=true", searched)
        off = [str(word) for word in emulated.command(words, "llama-8b-tp", "off")]
        self.assertIn("overlap.mode=off", off)
        self.assertNotIn("--auto-overlap", off)

    def test_fp8_variants_have_sizes_and_files_of_their_own(self):
        (self.folder / "llama-8b-tp-block.toml").write_text("", encoding="utf-8")
        (self.folder / "llama-8b-zero3.toml").write_text("", encoding="utf-8")
        words = arguments(self.folder, "--found", str(self.folder))
        found = [str(word) for word in emulated.command(words, "llama-8b-tp", "found-block")]
        self.assertIn(str(self.folder / "llama-8b-tp-block.toml"), found)
        self.assertIn("model.width=1024", found)
        searched = [str(word) for word in emulated.command(words, "llama-8b-zero3", "copies-tensor")]
        self.assertIn("train.fp8=tensor", searched)
        self.assertIn("model.width=128", searched)
        self.assertIn("--auto-overlap", searched)
        self.assertIn("--copies", searched)

    def test_models_with_experts_are_whole_and_skewed_as_their_case_says(self):
        words = [str(word) for word in emulated.command(emulated.parse_arguments(["--bin", str(BRAID.parent), "--results", str(self.folder)]),
                                                        "qwen3-30b-a3b-ep", "found-skewed")]
        for setting in ("model.layers=48", "memory.recompute=full", "moe.force_skew=1", "moe.force_balance=false", "--auto-overlap"):
            self.assertIn(setting, words)

    def test_shares_of_exposed_exchanges(self):
        r = record("olmoe-7b-ep", "found-skewed", load=1.5, worst_load=1.8)
        r["measured"] = r["simulated"] = r["measured"] | {"communication": {"expert": {"total_ns": 40_000_000, "exposed_ns": 2_000_000}}}
        self.assertIn("| olmoe-7b-ep | found-skewed | 1.50 | 1.80 | 40.0 | 2.0 | 5.0% | 40.0 | 2.0 | 5.0% | 1.0 | 1.0 |", emulated.experts([r]))
        self.assertEqual(emulated.experts([record("llama-8b-tp")]), "")

    def test_begins_nothing_behind_its_time(self):
        words = arguments(self.folder, "--seconds", "-1")
        with mock.patch.object(emulated.bounded_run, "run_together") as run, contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(emulated.measure(words, gpu_bench.Results(self.folder)), 0)
        run.assert_not_called()
        self.assertIn("llama-8b-tp, found: no time left", printed.getvalue())

    def test_what_fails_is_counted_and_the_rest_goes_on(self):
        words = arguments(self.folder, "--case", "llama-8b-tp", "--case", "llama-8b-pp")
        result = {key: value for key, value in record("").items() if key not in ("kind", "time", "case", "variant", "small")}
        outputs = [emulated.Failure("broken"), ["note\n" + json.dumps(result, indent=2)]]
        with mock.patch.object(emulated.bounded_run, "run_together", side_effect=outputs), \
                contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(emulated.measure(words, gpu_bench.Results(self.folder)), 1)
        kinds = [r["kind"] for r in gpu_bench.Results(self.folder).read()]
        self.assertEqual(kinds, ["failure", "emulated"])

    def test_clock_and_power_of_the_run_are_kept(self):
        words = arguments(self.folder, "--case", "llama-8b-tp")
        result = {key: value for key, value in record("").items() if key not in ("kind", "time", "case", "variant", "small")}
        busy = {"driver_bytes": 2**40, "clock_mhz": 1545.0, "power_w": 698.7}
        with mock.patch.object(emulated.bounded_run, "run_together", return_value=[json.dumps(result, indent=2)]), \
                mock.patch.object(gpu_bench.GpuMonitor, "summary", return_value=busy), contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(emulated.measure(words, gpu_bench.Results(self.folder)), 0)
        kept = gpu_bench.Results(self.folder).read()[0]
        self.assertEqual((kept["clock_mhz"], kept["power_w"], kept["driver_bytes"]), (1545.0, 698.7, 3 * 2**30))
        page = emulated.page(self.results_of({"kind": "machine", "time": "2026-01-01 00:00:00", **gpu_bench.machine()}, kept), True)
        self.assertIn(" | 1545 | 699 |", page)

    def test_page_has_the_newest_of_each_and_errors_of_predictions(self):
        results = self.results_of({"kind": "machine", "time": "2026-01-01 00:00:00", **gpu_bench.machine()},
                                  record("llama-8b-tp", step_ns=200_000_000), record("llama-8b-tp", time="2026-01-02 00:00:00"))
        page = emulated.page(results, True)
        self.assertIn("| llama-8b-tp | found | 100.0 (100.0 to 101.0) | 81,920 | 103.0 | +3.0% |  | 80.0 | +0.0% | tensor 20.0 of 50.0 |", page)
        self.assertIn("Mean absolute errors: `found` 3.0% by data sheet.", page)
        self.assertIn("| llama-8b-tp | found | 1.0 |  | the same | 3.0 | 2.0 |", page)
        self.assertIn("| linear | +0.0% |", page)
        self.assertNotIn("| embedding |", page)

    def test_parts_of_an_error_that_cancel_are_shown_apart(self):
        machine = {"kind": "machine", "time": "2026-01-01 00:00:00", **gpu_bench.machine()}
        first, second = record("llama-8b-tp"), record("llama-8b-pp")
        first["simulated"] = first["measured"] | {"compute_ns": 86_000_000, "exposed_ns": 13_000_000}
        second["simulated"] = second["measured"] | {"step_ns": 98_000_000, "compute_ns": 78_000_000}
        page = emulated.page(self.results_of(machine, first, second), True)
        self.assertIn("| llama-8b-tp | found | +0.0% | +6.0% | -7.0% | +1.0% |", page)
        self.assertIn("| llama-8b-pp | found | -2.0% | -2.0% | +0.0% | +0.0% |", page)
        self.assertIn("| mean of 2 | found | 1.0% | 4.0% | 3.5% | 0.5% |", page)

    def test_notes_are_below_the_table(self):
        machine = {"kind": "machine", "time": "2026-01-01 00:00:00", **gpu_bench.machine()}
        page = emulated.page(self.results_of(machine, record("llama-8b-tp", notes=["not finite", "late"]), record("llama-8b-pp", notes=["late"])), True)
        self.assertIn("| llama-8b-tp (1) (2) | found |", page)
        self.assertIn("| llama-8b-pp (2) | found |", page)
        self.assertIn("(1) not finite.\n(2) late.\n\nTokens/s", page)

    def test_a_profile_simulates_what_was_measured(self):
        results = self.results_of({"kind": "machine", "time": "2026-01-01 00:00:00", **gpu_bench.machine()}, record("llama-8b-tp"))
        words = arguments(self.folder, "--profile", "some.json", "--page-only")
        simulated = ["note\n" + json.dumps({"step_ns": 99_000_000, "cost": "measured"}, indent=2)]
        with mock.patch.object(emulated.bounded_run, "run_together", return_value=simulated) as run:
            emulated.simulate_by_profile(words, results)
        self.assertIn("--auto-overlap", run.call_args.args[0])
        self.assertEqual(run.call_args.args[0][-3:], ["--profile", "some.json", "--json"])
        page = emulated.page(results, True)
        self.assertIn(" | 103.0 | +3.0% | -1.0% | ", page)
        self.assertIn("Mean absolute errors: `found` 3.0% by data sheet, 1.0% by profile.", page)

    def test_without_results_there_is_no_page(self):
        with self.assertRaises(emulated.Failure):
            emulated.page(self.results_of(), True)


if __name__ == "__main__":
    unittest.main()
