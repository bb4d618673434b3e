#!/usr/bin/env python3
"""Tests of the benchmarks on several GPUs without one: run files, time limits, what a budget leaves out, the page.

usage: gpu_multi_test.py [BRAID]    with the program: also whether it takes every run file and every technique
"""
import contextlib
import io
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest

GPU = pathlib.Path(__file__).resolve().parent.parent.parent / "bench" / "gpu"
sys.dont_write_bytecode = True
sys.path[:0] = [str(GPU)]
import bounded_run  # noqa: E402
import expert_settings  # noqa: E402
import gpu_bench  # noqa: E402
import multi  # noqa: E402
import multi_cases  # noqa: E402
import multi_report  # noqa: E402

bounded_run.GRACE_S = 0.2
BRAID = sys.argv.pop(1) if len(sys.argv) > 1 else None
LAYOUT = {"ranks": 2, "data": 2, "tensor": 1, "context": 1, "pipeline": 1, "virtual_stages": 1, "sequence_parallel": False,
          "shard": "optimizer", "recompute": "none"}
FACTS = {"case": "llama-1b-zero1", "gpus": 2, "small": False, "session": "b"}
SHAPE = {"parameters": 1498482688, "sequence": 8192, "microbatch": 2, "microbatches": 1, "global_batch": 4, "flops_per_token": 9.0e9,
         "planned_bytes": 46 * 2**30, "layout": LAYOUT, "steps": 13}
CASE = {"kind": "multi_case", "time": "2026-01-01 00:00:00", **FACTS, "title": "llama-1b-zero1", **SHAPE}
MACHINE = {"kind": "machine", "time": "2026-01-01 00:00:00", "gpu": "NVIDIA H200", "memory": "143771 MiB", "power_limit": "700 W",
           "driver": "580", "cpu": "some", "cores": 32}


def run(side, speed, technique="", **more):
    return {"kind": "multi_run", "time": "2026-01-02 00:00:00", **FACTS, "side": side, "round": 1, "technique": technique, "changes": {},
            "tokens_per_s_per_gpu": speed, "driver_bytes": 50 * 2**30, "allocated_bytes": 40 * 2**30, "reserved_bytes": 45 * 2**30,
            "clock_mhz": 1500, "power_w": 690, "version": "2.11", "warmup": 3, **more}


def page(*records):
    return multi_report.Page([MACHINE, CASE, *records], small=False, gpus=2).text()


class PageTest(unittest.TestCase):
    def test_medians_and_ratio_by_gpu(self):
        text = page(run("braid", 50000), run("torch", 40000), run("braid", 60000), run("torch", 48000), run("braid", 56000),
                    run("torch", 39000))
        self.assertIn("| llama-1b-zero1 | 56,000 (50,000 to 60,000) | 40,000 (39,000 to 48,000) | 1.40 | 50.9% | 36.4% | 292.6 |", text)
        self.assertIn("# 2 x NVIDIA H200", text)
        self.assertIn("| 1,498 M | data 2, optimizer sharded | 1 x 2 x 8192 |  |  | 3 | 3 |", text)

    def test_what_was_found_is_named(self):
        overlap = {"overlap_grad_reduce": True, "comm_engine": "copy"}
        text = page({**CASE, "overlap": overlap}, run("braid", 5))
        self.assertIn("| 1 x 2 x 8192 |  | overlap_grad_reduce, comm_engine = copy | 1 |", text)

    def test_ranks_that_share_experts_are_named(self):
        self.assertIn("| data 2 expert 2, optimizer sharded |", page({**CASE, "experts": {"ranks": 2}}, run("braid", 5)))

    def test_only_the_newest_call_counts(self):
        text = page(run("braid", 90000, session="a"), run("braid", 50000))
        self.assertIn("| llama-1b-zero1 | 50,000 (50,000 to 50,000) |  |  |", text)

    def test_a_side_that_failed_is_named_with_its_reason(self):
        failure = {"kind": "failure", "time": "2026-01-02 00:00:00", **FACTS, "stage": "multi", "what": "torch",
                   "message": "rank 0 ended with status 1\n[rank0]: torch.OutOfMemoryError: CUDA out of memory.\nmore"}
        text = page(run("braid", 50000), failure)
        self.assertIn("| 50,000 (50,000 to 50,000) | failed |  |", text)
        self.assertIn("- llama-1b-zero1 torch: failed: rank 0 ended with status 1 - [rank0]: torch.OutOfMemoryError: CUDA out of memory.",
                      text)

    def test_exposed_communication_by_kind(self):
        trace = {"kind": "multi_trace", "time": "2026-01-02 00:00:00", **FACTS, "technique": "", "step_ns": 3e8, "compute_ns": 2.8e8,
                 "copy_ns": 0, "idle_ns": 1e7, "communication": {"total_ns": 5e7, "exposed_ns": 1e7, "exposed_wait_ns": 2e6},
                 "by_group": {"data": {"total_ns": 5e7, "exposed_ns": 1e7}}}
        self.assertIn("| llama-1b-zero1 | 300.0 | 280.0 | 10.0 | 2.0 | data 10.0 of 50.0 | 0.0 | 10.0 |", page(trace))

    def test_predictions_have_their_error(self):
        simulated = {"kind": "multi_simulation", "time": "2026-01-02 00:00:00", **FACTS, "cost": "h200x2", "step_ns": 270e6}
        self.assertIn("| llama-1b-zero1 | h200x2 | 270.0 | 300.0 | -10.0% |", page(simulated, run("braid", 16384 / 0.3)))

    def test_floors(self):
        floor = {"kind": "multi_floor", "time": "2026-01-02 00:00:00", **FACTS, "floor_ms": 240.0}
        self.assertIn("| 300.0 | 240.0 | 80% |", page(floor, run("braid", 16384 / 0.3)))

    def test_techniques_beside_off_stay_out_of_the_medians(self):
        text = page(run("braid", 60000), run("braid", 50000, "off"), run("braid", 55000, "grad_reduce"))
        self.assertIn("| llama-1b-zero1 | 60,000 (60,000 to 60,000) |", text)
        self.assertIn("| llama-1b-zero1 | as above | 60,000 | +20.0% |  |  |\n| llama-1b-zero1 | off | 50,000 | +0.0% |  |  |\n"
                      "| llama-1b-zero1 | grad_reduce | 55,000 | +10.0% |  |  |", text)

    def test_what_was_skipped_is_said_until_it_is_measured(self):
        skip = {"kind": "multi_skip", "time": "2026-01-01 00:00:00", **FACTS, "session": "a", "what": "torch",
                "reason": "no time for round 1"}
        other = {**skip, "case": "llama-8b-cp", "what": "", "reason": "no kernels"}
        text = multi_report.Page([MACHINE, skip, other, CASE], small=False, gpus=2).text()
        self.assertNotIn("no time", text)
        self.assertIn("- llama-8b-cp: no kernels\n", text)

    def test_each_number_of_gpus_has_its_page(self):
        more = {**CASE, "gpus": 4, "title": "on four"}
        self.assertEqual(multi_report.numbers_of_gpus([MACHINE, CASE, more], small=False), [2, 4])
        self.assertNotIn("on four", page(more))

    def test_further_sides_have_columns_where_they_ran(self):
        self.assertNotIn("any order |", page(run("braid", 5)))
        self.assertIn("| of the floor | braid, any order |\n", page(run("braid", 5), run("braid_any_order", 6)))

    def test_rehearsals_stay_out(self):
        self.assertNotIn("77,777", page(run("braid", 77777, small=True), run("braid", 5)))


class CasesTest(unittest.TestCase):
    def test_every_case_has_its_run_file(self):
        self.assertEqual(sorted(path.stem for path in multi_cases.RUN_FILES.glob("*.toml")), sorted(multi_cases.CASES))

    def test_layouts_use_all_gpus(self):
        for gpus in multi_cases.GPUS:
            for name in multi_cases.CASES:
                ranks = multi_cases.layout(name, gpus)
                if not multi_cases.why_not(name, gpus):
                    self.assertEqual(ranks["data"] * ranks["tensor"] * ranks["context"] * ranks["pipeline"], gpus, name)

    def test_a_data_rank_has_as_much_to_do_on_fewer_gpus(self):
        self.assertEqual(multi_cases.changes("qwen2.5-7b-zero1", 2)["train.global_batch"], 128)
        self.assertEqual(multi_cases.changes("llama-8b-pp", 4)["train.global_batch"], 32)
        self.assertEqual(multi_cases.changes("llama-8b-pp-dp", 4)["train.global_batch"], 64)
        self.assertEqual(multi_cases.changes("qwen3-30b-a3b-ep", 4)["train.global_batch"], 32)

    def test_all_data_ranks_share_the_experts(self):
        for gpus in multi_cases.GPUS:
            for name in ("qwen3-30b-a3b-ep", "olmoe-7b-ep", "mixtral-8x7b-ep"):
                changes = multi_cases.changes(name, gpus)
                self.assertEqual((changes["parallel.expert"], changes["parallel.data"]), (gpus, gpus), name)
        self.assertEqual(multi_cases.changes("llama-1b-zero1", 4)["parallel.expert"], 1)

    def test_small_experts_have_no_other_mlp(self):
        changes = multi_cases.changes("mixtral-8x7b-ep", 8, small=True)
        self.assertEqual((changes["model.experts"], changes["moe.capacity"], "model.ffn" in changes), (16, 0, False))
        self.assertIn("model.ffn", multi_cases.changes("llama-8b-tp", 8, small=True))

    def test_a_search_is_for_the_cards_at_hand(self):
        self.assertEqual(multi.cluster_of("NVIDIA H100 80GB HBM3", 4), "h100x4")
        self.assertEqual(multi.cluster_of("NVIDIA H200", 8), "h200x8")
        self.assertEqual(multi.cluster_of(None, 2), "h200x2")

    def test_pytorch_has_no_context_ranks(self):
        self.assertEqual([name for name in multi_cases.CASES if multi_cases.why_not_torch(name, 8)],
                         ["llama-8b-cp", "llama-8b-cp-ring"])

    def test_a_model_that_was_cut_says_so_in_its_name(self):
        self.assertEqual(multi_cases.title("llama-8b-pp", 2), "llama-8b-l24-pp")
        self.assertEqual(multi_cases.title("qwen2.5-7b-zero1", 2), "qwen2.5-7b-l20-zero1")
        self.assertEqual(multi_cases.title("qwen2.5-7b-zero1", 4), "qwen2.5-7b-zero1")
        self.assertEqual(multi_cases.title("qwen3-30b-a3b-ep", 4), "qwen3-30b-a3b-l9-ep")
        self.assertEqual(multi_cases.title("mixtral-8x7b-ep", 2), "mixtral-8x7b-l5-ep")

    def test_techniques_are_those_of_the_layout(self):
        self.assertEqual(list(multi_cases.techniques("llama-8b-zero3", 2, "h200x2"))[:2], ["off", "grad_reduce"])
        self.assertNotIn("grad_reduce", multi_cases.techniques("llama-8b-tp", 2, "h200x2"))
        self.assertEqual(multi_cases.techniques("llama-8b-tp", 2, "h200x2")["search_same_bits"], {"overlap.cost": "h200x2"})

    def test_halves_are_of_two_sequences(self):
        halves = {key for key, (_, changes) in multi_cases.TECHNIQUES.items() if "halves" in changes.get("overlap.pair_forward_backward", "")}
        self.assertEqual(halves, {"halves", "forward_halves", "exchange_halves", "exchange_forward_halves"})
        self.assertEqual(halves & set(multi_cases.techniques("llama-8b-tp", 8, "h200x8")), {"halves", "forward_halves"})
        self.assertEqual(halves & set(multi_cases.techniques("olmoe-7b-ep", 8, "h200x8")), {"exchange_halves", "exchange_forward_halves"})
        self.assertEqual(halves & set(multi_cases.techniques("llama-70b-l8-tp", 8, "h200x8")), set())

    def test_recompute_is_chosen_where_a_case_has_some(self):
        self.assertIn("recompute_auto", multi_cases.techniques("qwen2.5-32b-zero3", 8, "h200x8"))
        self.assertNotIn("recompute_auto", multi_cases.techniques("llama-8b-zero3", 8, "h200x8"))

    def test_every_switch_of_overlap_is_a_technique(self):
        reference = (GPU.parent.parent / "docs" / "configuration.md").read_text(encoding="utf-8")
        section = reference.split("## [overlap]")[1].split("\n## ")[0]
        switches = set(re.findall(r"^\| `(\w+)` \| `\w+` \| true or false", section, re.MULTILINE))
        settings = [*(changes for _, changes in multi_cases.TECHNIQUES.values()), *multi_cases.VARIANTS.values(), multi_cases.SEARCHED]
        measured = {key.removeprefix("overlap.") for changes in settings for key in changes}
        self.assertIn("overlap_grad_reduce", switches)
        self.assertEqual(switches - measured, set(), "a new key belongs into TECHNIQUES of bench/gpu/multi_cases.py")

    @unittest.skipUnless(BRAID, "without the program")
    def test_braid_takes_all_cases(self):
        for name in multi_cases.CASES:
            self.plan(name, 8, {})

    @unittest.skipUnless(BRAID, "without the program")
    def test_braid_takes_all_techniques(self):
        seen = set()
        for name in multi_cases.CASES:
            for technique, changes in multi_cases.techniques(name, 2, "h200x2").items():
                if technique not in seen:
                    self.plan(name, 2, changes)
                    seen.add(technique)
        self.assertEqual(seen, {"off", *multi_cases.TECHNIQUES, *multi_cases.VARIANTS})

    @unittest.skipUnless(BRAID, "without the program")
    def test_a_search_finds_a_run_file_that_braid_takes(self):
        with tempfile.TemporaryDirectory() as folder:
            words = ["--bin", str(pathlib.Path(BRAID).parent), "--results", folder, "--gpus", "8", "--small", "--device", "cpu"]
            bench = multi.Bench(multi.parse_arguments(words), pathlib.Path(folder))
            found = bench.with_found_overlap(multi.Case("llama-8b-tp", bench))
            self.assertEqual(bench.failures, 0)
            self.assertIn("tp_comm_overlap", multi.overlap_of(found.run_file))
            done = subprocess.run([BRAID, "plan", *map(str, found.words())], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)

    def plan(self, name, gpus, technique):
        words = gpu_bench.as_arguments({**multi_cases.changes(name, gpus, small=True, device="cpu"), **technique})
        done = subprocess.run([BRAID, "plan", multi_cases.run_file(name), *words], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, f"{name} {words}: {done.stderr}")


def has_ended(pid):
    """One that nobody reaped has too."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def eventually(condition, limit_s=30):
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


class BoundedRunTest(unittest.TestCase):
    def test_outputs_by_rank(self):
        outputs = bounded_run.run_together(["bash", "-c", "echo rank $RANK"], 30, [{"RANK": "0"}, {"RANK": "1"}])
        self.assertEqual(outputs, ["rank 0\n", "rank 1\n"])

    def test_logs_are_whole_also_of_what_failed(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(gpu_bench.Failure):
            log = pathlib.Path(folder, "logs", "one.log")
            try:
                bounded_run.run_together(["bash", "-c", "seq 1 100; exit $RANK"], 30, [{"RANK": "0"}, {"RANK": "4"}], log)
            finally:
                text = log.read_text(encoding="utf-8")
                self.assertEqual(text.count("\n57\n"), 2)
                self.assertIn("== rank 1 of bash -c seq 1 100; exit $RANK: status 4\n1\n", text)

    def test_a_rank_that_fails_ends_the_others_and_is_quoted(self):
        begin = time.monotonic()
        with self.assertRaisesRegex(gpu_bench.Failure, "(?s)rank 1 ended with status 3.*not enough"):
            bounded_run.run_together(["bash", "-c", "[ $RANK = 0 ] && exec sleep 100; echo not enough; exit 3"], 60,
                                     [{"RANK": "0"}, {"RANK": "1"}])
        self.assertLess(time.monotonic() - begin, 40)

    def test_at_the_time_limit_what_left_the_session_ends_too(self):
        with tempfile.TemporaryDirectory() as folder:
            pid = pathlib.Path(folder, "pid")
            script = f"echo begun; setsid bash -c 'echo $$ >{pid}; exec sleep 100' & sleep 100"
            with self.assertRaisesRegex(gpu_bench.Failure, "(?s)more than 1 s.*begun"):
                bounded_run.run_together(["bash", "-c", script], 1, [{}])
            ended = pid.read_text().strip()
            self.assertTrue(eventually(lambda: has_ended(ended)))  # one that is being killed has not ended yet

    def test_nothing_outlives_a_driver_that_is_ended(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with tempfile.TemporaryDirectory() as folder:
                pid = pathlib.Path(folder, "pid")
                script = (f"import sys; sys.path.insert(0, {str(GPU)!r}); import bounded_run; bounded_run.end_as_one(); "
                          f"bounded_run.run_together(['bash', '-c', 'echo $$ >{pid}; exec sleep 100'], 60, [{{}}])")
                with subprocess.Popen([sys.executable, "-B", "-c", script]) as driver:
                    self.assertTrue(eventually(lambda: pid.exists() and pid.read_text().endswith("\n")))
                    driver.send_signal(number)
                self.assertTrue(eventually(lambda: has_ended(pid.read_text().strip())), number)


class FakeBench(multi.Bench):
    """Runs that take no time and are remembered."""

    def __init__(self, folder, *words):
        self.order, self.words = [], words
        super().__init__(multi.parse_arguments(["--bin", folder, "--results", folder, "--gpus", "2", *words]), pathlib.Path(folder))

    def shape_of(self, case):
        return SHAPE

    def simulate(self, case):
        pass

    def with_found_overlap(self, case):
        path = self.work / "found.toml"
        path.write_text('[overlap]\nmode = "manual"\ncomm_engine = "copy"\noverlap_grad_reduce = true\nsplit_ops = false\n')
        return case.with_run_file(path)

    def run_braid(self, case, shape, what, technique, trace):
        self.order.append((case.name, "braid", trace, case.changes.get("overlap.mode")))
        if case.name == "llama-1b-tp" and case.is_searched() and "--small" in self.words:
            raise gpu_bench.Failure("copies hang")
        if trace and case.name == "llama-8b-zero3":
            raise gpu_bench.Failure("tracing hangs")
        return {"tokens_per_s": 10.0}

    def run_torch(self, case, shape, side):
        self.order.append((side,))
        if case.name.startswith("qwen"):
            raise gpu_bench.Failure("out of memory")
        return {"tokens_per_s": 8.0}


class OrderTest(unittest.TestCase):
    def run_all(self, *words):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            bench = FakeBench(folder, *words)
            bench.run_all()
            return bench, bench.results.read()

    def test_all_cases_once_on_both_sides_before_any_twice(self):
        bench, records = self.run_all("--case", "llama-1b-zero1", "--case", "llama-1b-tp", "--rounds", "2")
        both = [("llama-1b-zero1", "braid", True, None), ("torch",), ("llama-1b-tp", "braid", True, None), ("torch",)]
        again = [("llama-1b-zero1", "braid", False, None), ("torch",), ("llama-1b-tp", "braid", False, None), ("torch",)]
        self.assertEqual(bench.order, both + again)
        self.assertEqual([r["tokens_per_s_per_gpu"] for r in records if r["kind"] == "multi_run"], [5.0, 4.0] * 4)

    def test_a_run_that_fails_when_traced_is_made_again_without(self):
        bench, records = self.run_all("--case", "llama-8b-zero3", "--case", "llama-1b-tp", "--rounds", "1", "--side", "braid")
        self.assertEqual([each[:3] for each in bench.order],
                         [("llama-8b-zero3", "braid", True), ("llama-8b-zero3", "braid", False), ("llama-1b-tp", "braid", False)])
        self.assertEqual([r["message"] for r in records if r["kind"] == "failure"], ["tracing hangs"])
        self.assertEqual(bench.failures, 1)

    def test_a_case_says_what_was_found(self):
        _, records = self.run_all("--case", "llama-1b-zero1", "--rounds", "1")
        self.assertEqual([r["overlap"] for r in records if r["kind"] == "multi_case"],
                         [{"comm_engine": "copy", "overlap_grad_reduce": True}])
        _, records = self.run_all("--case", "llama-1b-zero1", "--rounds", "1", "--defaults")
        self.assertEqual([r["overlap"] for r in records if r["kind"] == "multi_case"], [{}])

    def test_where_what_was_found_fails_the_defaults_are_measured(self):
        bench, records = self.run_all("--case", "llama-1b-tp", "--rounds", "1", "--side", "braid", "--no-trace", "--small")
        self.assertEqual([each[0] for each in bench.order], ["llama-1b-tp", "llama-1b-tp"])
        self.assertEqual([r["technique"] for r in records if r["kind"] == "multi_run"], ["defaults"])

    def test_what_failed_is_not_tried_again(self):
        bench, records = self.run_all("--case", "qwen2.5-1.5b-zero1", "--rounds", "3", "--side", "torch")
        self.assertEqual(bench.order, [("torch",)])
        self.assertEqual([r["message"] for r in records if r["kind"] == "failure"], ["out of memory"])

    def test_any_order_is_a_side_of_its_own(self):
        bench, records = self.run_all("--case", "llama-1b-tp", "--rounds", "1", "--side", "braid_any_order")
        self.assertEqual([(r["side"], r["planned_bytes"]) for r in records if r["kind"] == "multi_run"],
                         [("braid_any_order", SHAPE["planned_bytes"])])
        self.assertEqual(bench.order, [("llama-1b-tp", "braid", False, None)])

    def test_async_tp_is_for_tensor_ranks(self):
        bench, _ = self.run_all("--case", "llama-1b-zero1", "--case", "llama-1b-tp", "--rounds", "1", "--side", "torch_async_tp")
        self.assertEqual(bench.order, [("torch_async_tp",)])

    def test_no_run_begins_that_would_not_end_in_time(self):
        budget = multi.Budget(seconds=100, limit_s=300)
        self.assertTrue(budget.has_time("a"))
        self.assertLess(budget.limit(), 101)
        budget.took["a"] = 200
        self.assertFalse(budget.has_time("a"))
        _, records = self.run_all("--case", "llama-1b-tp", "--seconds", "0")
        self.assertEqual({r["reason"] for r in records if r["kind"] == "multi_skip"}, {f"no time for round {n}" for n in (1, 2, 3)})

    def test_techniques_come_last_each_alone(self):
        bench, records = self.run_all("--case", "llama-1b-zero1", "--rounds", "1", "--side", "braid", "--techniques", "--no-trace")
        self.assertEqual([each[3] for each in bench.order], [None, "off", *["manual"] * 4, *[None] * (len(multi_cases.VARIANTS) - 1)])
        self.assertEqual([r["technique"] for r in records if r["kind"] == "multi_run"][:3], ["", "off", "grad_reduce"])

    def test_cases_without_a_version_for_these_gpus_say_why(self):
        _, records = self.run_all("--case", "qwen2.5-32b-zero3", "--case", "llama-8b-pp-dp")
        self.assertEqual([r["reason"] for r in records if r["kind"] == "multi_skip"], ["needs 8 GPUs", "needs 4 GPUs"])

    def test_a_side_that_cannot_run_a_case_is_left_out_once(self):
        bench, records = self.run_all("--case", "llama-8b-cp", "--rounds", "2", "--side", "braid", "--side", "torch", "--no-trace")
        self.assertEqual([each[1] for each in bench.order], ["braid", "braid"])
        self.assertEqual([(r["what"], r["reason"]) for r in records if r["kind"] == "multi_skip"],
                         [("torch", "torch_multi.py has no context ranks")])


class ExpertSettingsTest(unittest.TestCase):
    def test_of_the_preset_the_file_and_the_changes(self):
        run_file = multi_cases.run_file("olmoe-7b-ep")
        self.assertEqual(expert_settings.of_run(run_file, {}),
                         {"experts": 64, "experts_per_token": 8, "expert_ffn": 1024, "router_normalize": False, "balance_loss": 0.01,
                          "force_balance": True, "ranks": 8})
        changed = expert_settings.of_run(run_file, {"parallel.expert": 2, "moe.force_balance": "false", "model.experts": 16})
        self.assertEqual([changed[key] for key in ("ranks", "force_balance", "experts")], [2, False, 16])

    def test_sizes_beside_a_preset_replace_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            run_file = pathlib.Path(folder) / "found.toml"
            run_file.write_text('[model]\npreset = "mixtral-8x7b"\nexperts = 4\nexpert_ffn = 64\n', encoding="utf-8")
            self.assertEqual(expert_settings.of_run(run_file, {}),
                             {"experts": 4, "experts_per_token": 2, "expert_ffn": 64, "router_normalize": True, "balance_loss": 0.01,
                              "force_balance": False, "ranks": 1})

    def test_a_model_without_has_none(self):
        self.assertIsNone(expert_settings.of_run(multi_cases.run_file("llama-8b-tp"), {}))

    def test_presets_are_those_of_the_cases(self):
        files = [*map(multi_cases.run_file, multi_cases.CASES), *map(gpu_bench.run_file, gpu_bench.EXPERT_CASES)]
        models = [tomllib.loads(file.read_text(encoding="utf-8"))["model"] for file in files if expert_settings.of_run(file, {})]
        known = {model["preset"] for model in models}
        self.assertEqual(known, set(expert_settings.PRESETS))


class FiguresTest(unittest.TestCase):
    def test_traced_steps_behind_the_timed_ones_do_not_count(self):
        text = "".join(f" [2026-11-21 03:55:{10 + i}.000000] iteration        {i}/      7 | lm loss: {i}.5E+00 |\n" for i in range(1, 6))
        text += " [2026-11-21 03:57:00.000000] iteration        6/      7 | lm loss: 6.0E+00 |\n"
        figures = multi.braid_figures(text, {"steps": 5, "global_batch": 4, "sequence": 100})
        self.assertEqual(figures, {"tokens_per_s": 400.0, "step_ms": [1000.0, 1000.0], "loss": 5.5})

    def test_a_run_that_ended_early_is_a_failure(self):
        with self.assertRaisesRegex(gpu_bench.Failure, "logged 0 of 5 steps"):
            multi.braid_figures("", {"steps": 5})

    def test_mean_of_traced_steps(self):
        steps = [{"step": 8, "step_ns": 10, "by_group": {"data": {"total_ns": 4}},
                  "ops": [{"op": "linear", "num_tasks": 2, "busy_ns": 6}]},
                 {"step": 9, "step_ns": 20, "by_group": {"data": {"total_ns": 2}, "tensor": {"total_ns": 6}}, "ops": []}]
        self.assertEqual(multi.traced_step({"data": {"traced_steps": steps}}),
                         {"step_ns": 15, "by_group": {"data": {"total_ns": 3}, "tensor": {"total_ns": 3}},
                          "ops": {"linear": {"num_tasks": 1, "busy_ns": 3}}})

    def test_settings_of_the_command_line(self):
        self.assertEqual(multi.as_changes(["runtime.repeatable=false"]), {"runtime.repeatable": "false"})
        with self.assertRaises(gpu_bench.Failure):
            multi.as_changes(["runtime.repeatable"])


if __name__ == "__main__":
    unittest.main()
