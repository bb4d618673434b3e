#!/usr/bin/env python3
"""Tests of what bench/gpu does without a GPU: reading results, the page, token files, test reports."""
import json
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import types
import unittest

GPU = pathlib.Path(__file__).resolve().parent.parent.parent / "bench" / "gpu"
sys.dont_write_bytecode = True
sys.path[:0] = [str(GPU), str(GPU / "loss_curve")]
import checks  # noqa: E402
import compare  # noqa: E402
import end_to_end  # noqa: E402
import gpu_bench  # noqa: E402
import plot  # noqa: E402
import report  # noqa: E402


def run(side, tokens_per_s, number, session="b", **options):
    return {"kind": "run", "time": f"2026-01-0{number} 00:00:00", "case": "llama-1b", "side": side, "round": number, "small": False,
            "session": session, "options": options, "tokens_per_s": tokens_per_s, "microbatch": 2, "warmup": 3, "weights": "fsdp",
            "attention": "cudnn", "version": "2.11", "driver_bytes": 50 * 2**30, "allocated_bytes": 40 * 2**30,
            "reserved_bytes": 45 * 2**30, "clock_mhz": 1500, "power_w": 690}


CASE = {"kind": "case", "time": "2026-01-01 00:00:00", "name": "llama-1b", "small": False, "parameters": 1498482688, "sequence": 8192,
        "global_batch": 2, "flops_per_token": 9.0e9, "planned_bytes": 46 * 2**30}
MACHINE = {"kind": "machine", "time": "2026-01-01 00:00:00", "gpu": "NVIDIA H200", "memory": "143771 MiB", "power_limit": "700 W",
           "driver": "580", "cpu": "some", "cores": 16}
OP = {"op": "attention_backward", "count": 16, "flops": 1e12, "bytes": 1e8, "us": 5000.0, "alone_ms": 80.0, "floor_ms": 80.0}
FLOOR = {"kind": "floor", "time": "2026-01-01 00:00:00", "name": "llama-1b", "small": False, "copy_bytes_per_s": 4.2e12, "alone_ms": 240.0,
         "floor_ms": 200.0, "floor_atomics_ms": 180.0, "scratch_bytes": 4 * 2**30, "ops": [{**OP, "atomics_us": 4000.0}]}


def page(*records):
    return report.Page([MACHINE, CASE, *records], small=False).text()


class PageTest(unittest.TestCase):
    def test_medians_ratio_and_model_flops(self):
        text = page(run("braid", 50000, 1), run("torch", 40000, 1), run("braid", 60000, 2), run("torch", 48000, 2),
                    run("braid", 56000, 3), run("torch", 39000, 3))
        self.assertIn("| llama-1b | 56,000 (50,000 to 60,000) | 40,000 (39,000 to 48,000) | 1.40 | 50.9% | 36.4% | 292.6 |", text)

    def test_only_the_newest_call_and_its_fastest_settings_count(self):
        text = page(run("braid", 90000, 1, session="a"), run("braid", 50000, 2), run("torch", 70000, 2, weights="fsdp"),
                    run("torch", 80000, 2, weights="autocast"), run("torch", 60000, 3, weights="autocast"))
        self.assertIn("| llama-1b | 50,000 (50,000 to 50,000) | 70,000 (60,000 to 80,000) | 0.71 |", text)

    def test_models_with_states_name_their_scan(self):
        hybrid = {**run("torch", 40000, 1), "case": "mamba2-2.7b", "attention": None, "scan": "mamba-ssm 2.3.1", "chunk": 256}
        text = page({**CASE, "name": "mamba2-2.7b"}, {**run("braid", 50000, 1), "case": "mamba2-2.7b"}, hybrid)
        self.assertIn("| mamba2-2.7b | 50,000 (50,000 to 50,000) | 40,000 (40,000 to 40,000) | 1.25 |", text)
        self.assertIn("| 2, fsdp, no attention, scan by mamba-ssm 2.3.1, chunks of 256 |", text)

    def test_pytorch_with_flash_attn_4_is_a_third_side(self):
        text = page(run("braid", 60000, 1), run("torch", 40000, 1), run("torch_flash_attn_4", 50000, 1))
        self.assertIn("| 1.50 | 50,000 (50,000 to 50,000) | 1.20 |", text)
        self.assertIn("PyTorch with flash-attn-4", text)
        self.assertNotIn("PyTorch with flash-attn-4, tokens/s", page(run("braid", 60000, 1), run("torch", 40000, 1)))

    def test_floors(self):
        text = page(FLOOR, run("braid", 16384 / 0.25, 1), run("torch", 1, 1))
        self.assertIn("| 250.0 | 200.0 | 80% | 72% |", text)
        self.assertIn("| attention_backward | 16 | 200 | 20 | 80.00 | 80.00 |\n| with atomics | 16 | 250 |  | 64.00 |  |", text)
        self.assertIn("| llama-1b | 46.0 | 4.0 | 50.0 | 40.0 | 45.0 | 50.0 |", text)

    def test_a_side_that_failed_leaves_a_hole_and_nothing_else(self):
        failure = {"kind": "failure", "time": "2026-01-01 00:00:01", "stage": "end_to_end", "case": "llama-1b", "side": "torch",
                   "options": {}, "message": "no"}
        self.assertIn("| llama-1b | 50,000 (50,000 to 50,000) | failed |  |",
                      page(run("braid", 50000, 1, session="2026-01-01 00:00:00"), failure))

    def test_a_side_that_was_not_run_leaves_a_hole_and_no_failure(self):
        earlier = {"kind": "failure", "time": "2025-12-31 00:00:00", "stage": "end_to_end", "case": "llama-1b", "side": "torch",
                   "options": {}, "message": "no"}
        self.assertIn("| llama-1b | 50,000 (50,000 to 50,000) |  |  |",
                      page(earlier, run("braid", 50000, 1, session="2026-01-01 00:00:00")))

    def test_rehearsals_stay_out(self):
        self.assertNotIn("llama-1b", page({**run("braid", 50000, 1), "small": True}))

    def test_sanitizers_have_a_row_per_tool_and_program(self):
        record = {"kind": "sanitizer", "time": "2026-01-01 00:00:00", "tool": "racecheck", "program": "t", "clean": False, "cases": 7,
                  "seconds": 4.0, "small": False, "failed": ["A.B"], "skipped": {"no NVTX": 3}}
        self.assertIn("| racecheck, `t` | NOT CLEAN, 7 cases, 1 failed, A.B, 3 skipped (3: no NVTX) | 4 |", page(record))

    def test_settings_that_ran_out_of_memory_are_named(self):
        choice = {"kind": "choice", "time": "2026-01-01 00:00:00", "case": "llama-1b", "side": "torch", "small": False,
                  "options": {"microbatch": 8}, "measured": [{"microbatch": 8, "tokens_per_s": 1e4}, {"microbatch": 16, "tokens_per_s": None}]}
        self.assertIn("- llama-1b, PyTorch: microbatch 8: 10,000; microbatch 16: failed", page(choice, run("braid", 1, 1), run("torch", 1, 1)))


class ResultsTest(unittest.TestCase):
    def test_reads_all_files_in_order_of_time(self):
        with tempfile.TemporaryDirectory() as folder:
            results = gpu_bench.Results(folder)
            results.add("late", value=1)
            pathlib.Path(folder, "other.jsonl").write_text('{"kind": "early", "time": "2001-01-01 00:00:00"}\n', encoding="utf-8")
            self.assertEqual([record["kind"] for record in results.read()], ["early", "late"])

    def test_random_tokens_have_the_layout_of_megatron(self):
        with tempfile.TemporaryDirectory() as folder:
            gpu_bench.write_random_tokens(f"{folder}/ids", vocabulary=70000, count=1000)
            ids = struct.unpack("<1000i", pathlib.Path(folder, "ids.bin").read_bytes())
            index = pathlib.Path(folder, "ids.idx").read_bytes()
        self.assertTrue(all(0 <= each < 70000 for each in ids) and max(ids) > 65536)
        self.assertEqual(struct.unpack("<9sQBQQiqqq", index), (b"MMIDIDX\0\0", 1, 4, 1, 2, 1000, 0, 0, 1))


def has_process(pid):
    """Whether `pid` runs; one that ended and was not reaped (nobody may be there to do it) does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class ProgramsTest(unittest.TestCase):
    def test_skipped_cases_keep_their_reason(self):
        part = checks.Part([], pathlib.Path("tests"))
        part.output = ("[ RUN      ] A.One\n../a.h:41: Skipped\nno GPU: none\n\n[  SKIPPED ] A.One (0 ms)\n[ RUN      ] A.Two\n"
                       "[       OK ] A.Two (0 ms)\n[ RUN      ] A.Three\nbad\n[  FAILED  ] A.Three (0 ms)\n")
        cases = [{"name": "One", "result": "SKIPPED"}, {"name": "Two", "result": "COMPLETED"},
                 {"name": "Three", "result": "COMPLETED", "failures": [{}]}]
        part.report = {"testsuites": [{"name": "A", "testsuite": cases}]}
        self.assertEqual(part.outcomes(), {"passed": ["A.Two"], "failed": ["A.Three"], "skipped": {"no GPU: none": 1}})

    def test_a_program_that_dies_is_a_failure(self):
        part = checks.Part(["A.One"], pathlib.Path("tests"))
        part.status = -11
        self.assertEqual(part.outcomes()["failed"], ["tests: ended with -11, before its first case"])

    def test_what_a_program_did_before_its_time_limit_counts(self):
        part = checks.Part([], pathlib.Path("tests"))
        part.status = "time limit"
        part.output = ("[ RUN      ] A.One\n[       OK ] A.One (5 ms)\n[ RUN      ] A.Two\nbad\n[  FAILED  ] A.Two (0 ms)\n"
                       "[ RUN      ] A.Three\nmore than 9 s")
        self.assertEqual(part.outcomes()["passed"], ["A.One"])
        self.assertEqual(part.outcomes()["failed"], ["A.Two", "tests: ended with time limit, A.Three"])

    def test_at_the_time_limit_all_that_was_started_ends(self):
        with tempfile.TemporaryDirectory() as folder:
            pid = pathlib.Path(folder, "pid")
            begin = time.monotonic()
            status, output = checks.run_for(["bash", "-c", f"echo begun; sleep 60 & echo $! >{pid}; wait"], 1)
            self.assertLess(time.monotonic() - begin, 30)
            self.assertEqual((status, output), ("time limit", "begun\n"))
            # A signal is sent before it is obeyed: on a busy machine the process is there a moment longer.
            while has_process(pid.read_text().strip()) and time.monotonic() - begin < 30:
                time.sleep(0.01)
            self.assertFalse(has_process(pid.read_text().strip()))

    def test_what_asks_the_checks_to_end_ends_all_that_they_started(self):
        with tempfile.TemporaryDirectory() as folder:
            pid = pathlib.Path(folder, "pid")
            script = (f"import sys; sys.path.insert(0, {str(GPU)!r}); import concurrent.futures, bounded_run, checks; "
                      "bounded_run.end_with_this(); "
                      f"concurrent.futures.ThreadPoolExecutor(1).submit(checks.run_for, ['bash', '-c', 'echo $$ >{pid}; sleep 60'], 60)")
            driver = subprocess.Popen([sys.executable, "-c", script])
            begin = time.monotonic()
            while not (pid.exists() and pid.read_text().strip()) and time.monotonic() - begin < 30:
                time.sleep(0.01)
            driver.terminate()
            self.assertEqual(driver.wait(30), 128 + signal.SIGTERM)
            while has_process(pid.read_text().strip()) and time.monotonic() - begin < 60:
                time.sleep(0.01)
            self.assertFalse(has_process(pid.read_text().strip()))
            self.assertLess(time.monotonic() - begin, 50)

    def test_every_tool_runs_on_every_program_even_if_one_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            results = gpu_bench.Results(folder)
            arguments = types.SimpleNamespace(program=None, bin=pathlib.Path(folder))
            seen = []
            good = checks.for_each_program(arguments, results, "memcheck", lambda program: seen.append(program.name) or True)
            self.assertFalse(good)
            self.assertEqual([r["program"] for r in results.read()], checks.PROGRAMS)
            for name in checks.PROGRAMS:
                pathlib.Path(folder, name).touch()
            self.assertTrue(checks.for_each_program(arguments, results, "memcheck", lambda program: seen.append(program.name) or True))
            self.assertEqual(seen, checks.PROGRAMS)

    def test_ends_of_steps_are_found_in_the_log(self):
        line = " [2026-11-21 03:55:36.660332] iteration        2/      33 | consumed samples:            4 | elapsed ...\n"
        self.assertEqual(end_to_end.LOG_LINE.findall("model  llama\n" + line), [("2026-11-21 03:55:36.660332", "2")])

    def test_settings_are_tried_one_after_the_other(self):
        """The best of each goes on to the next; what runs out of memory is out."""
        speeds = {("fsdp", 8): 10, ("autocast", 8): 12, ("autocast", 16): None}
        with tempfile.TemporaryDirectory() as folder:
            arguments = types.SimpleNamespace(choose=True, small=False, floors=False)
            bench = types.SimpleNamespace(arguments=arguments, choices={}, failures=0, results=gpu_bench.Results(folder))
            bench.chosen = lambda case, side: bench.choices.get(case, {}).get(side, {})
            bench.open_settings = lambda case, side: end_to_end.Bench.open_settings(bench, case, side)
            tried = []
            bench.measure = lambda case, side, shape, path, options, number: tried.append(options) or speeds[
                options["weights"], options["microbatch"]]
            end_to_end.Bench.take_turn(bench, "qwen2.5-7b-l14", "torch", {"microbatch": 8}, None, 1)
            end_to_end.Bench.take_turn(bench, "qwen2.5-7b-l14", "torch", {"microbatch": 8}, None, 2)
        self.assertEqual([(each["weights"], each["microbatch"]) for each in tried],
                         [("fsdp", 8), ("autocast", 8), ("autocast", 16), ("autocast", 8)])
        self.assertEqual(bench.failures, 0)


class LossCurveTest(unittest.TestCase):
    def test_difference_of_curves(self):
        steps = 200
        apart = compare.difference([1.0 + 0.1 * (i >= 100) for i in range(steps)], [1.0] * steps)
        self.assertEqual(apart["first"], 0)
        self.assertAlmostEqual(apart["largest_smoothed"], 0.1)
        self.assertAlmostEqual(apart["mean_step"], 0.05)

    def test_plot_is_well_formed(self):
        import xml.etree.ElementTree as ElementTree
        smooth = {side: [3.0 - 0.01 * i + 0.001 * len(side) for i in range(151)] for side in compare.SIDES}
        root = ElementTree.fromstring(plot.two_panels(smooth, 50, {side: {0: 4.0, 200: 2.0} for side in compare.SIDES}))
        lines = [element for element in root if element.tag.endswith("polyline")]
        self.assertEqual(len(lines), 5)
        self.assertEqual(len(lines[0].get("points").split()), 151)

    def test_table_has_a_row_per_step(self):
        steps = {side: {1: {"loss": 2.0, "grad_norm": 1.0, "learning_rate": 0.1}} for side in compare.SIDES}
        rows = compare.table(compare.SIDES, steps, {side: {0: 8.0} for side in compare.SIDES}).splitlines()
        self.assertEqual(rows[1:], ["0,,,,,,,,8,8,8", "1,0.1,2,2,2,1,1,1,,,"])


class CasesTest(unittest.TestCase):
    def test_every_case_has_its_run_file(self):
        self.assertEqual(sorted(path.stem for path in (GPU / "cases").glob("*.toml")), sorted(gpu_bench.CASES))
        self.assertEqual(sorted(path.stem for path in (GPU / "cases" / "experts").glob("*.toml")), sorted(gpu_bench.EXPERT_CASES))
        self.assertLessEqual(set(gpu_bench.HYBRID_CASES), {path.stem for path in (GPU / "cases" / "hybrids").glob("*.toml")})

    def test_choices_name_cases(self):
        path = GPU / "cases" / "choices.json"
        choices = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.assertLessEqual(set(choices), set(gpu_bench.CASES))


if __name__ == "__main__":
    unittest.main()
