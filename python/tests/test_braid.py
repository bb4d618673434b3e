"""The Python module on a model of two layers and two ranks."""
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import threading

import braid
import pytest
from braid._run_file import overrides_of
from braid_start import processor

SMALL = {
    "model": {"family": "llama", "layers": 2, "width": 32, "heads": 2},
    "train": {"sequence": 32, "microbatch": 1, "global_batch": 4, "steps": 3},
    "parallel": {"ranks": 2, "pipeline": 2},
    "data": {"train": "corpus.txt", "tokenizer": "bytes", "split": "80,20,0"},
    "eval": {"interval": 3, "batches": 1},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "corpus.txt").write_text("The quick brown fox jumps over the lazy dog.\n\n" * 200)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def message_of(call, kind):
    """The line of the braid.Error that the call raises."""
    with pytest.raises(braid.Error) as raised:
        call()
    assert raised.value.kind == kind
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_file_and_dict_give_the_same_configuration(folder):
    (folder / "small.toml").write_text(
        "\n".join(f"[{section}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
                  for section, keys in SMALL.items()))
    of_file = braid.load(folder / "small.toml", ["train.steps=7"]).config
    of_dict = braid.load(SMALL, {"train.steps": 7}, name="small").config
    assert of_file == of_dict
    assert of_dict["train"]["steps"] == 7
    assert of_dict["logging"]["run_folder"] == "runs/small"


def test_values_become_toml():
    assert overrides_of({"a": {"b": True, "c": 'quo"te ü\n'}, "d.e": [1, 2.5], "f.g": pathlib.Path("x"), "h.i": math.inf}) == [
        "a.b=true", 'a.c="quo\\"te ü\\n"', "d.e=[1, 2.5]", 'f.g="x"', "h.i=inf"]
    with pytest.raises(TypeError, match="a.b: a run file has no value of type NoneType"):
        overrides_of({"a": {"b": None}})
    with pytest.raises(TypeError, match="not the string"):
        overrides_of("train.steps=3")


def test_plan_gives_memory_by_class_or_the_reason_why_there_is_none():
    run = braid.load(SMALL)
    plan = run.plan(with_programs=True)
    assert (plan.num_ranks, [rank.rank for rank in plan.ranks]) == (2, [0, 1])
    for rank in plan.ranks:
        assert sum(part.persistent_bytes + part.step_bytes for part in rank.memory) == rank.peak_bytes > 0
        assert rank.program.count("\n") > rank.num_tasks > 0
    assert "weights" in [part.name for part in plan.ranks[0].memory]
    assert str(plan) == plan.description
    assert "128 KiB" in message_of(lambda: run.plan(device_memory_bytes=1 << 17), "config")
    assert "set parallel.ranks = 3" in message_of(lambda: braid.load(SMALL, {"parallel.pipeline": 3}).plan(), "config")


def test_simulation_is_that_of_the_command():
    step = braid.load(SMALL).simulate("h200x2")
    assert step.step_ns > step.exposed_ns > 0
    assert [part.kind for part in step.communication] == ["pipeline", "world"]
    assert step.json["step_ns"] == step.step_ns
    assert sum(part["ns"] for part in step.json["critical_path"]["parts"]) == step.step_ns
    assert braid.load(SMALL).simulate("h200x4", ranks=4).json["ranks"] == 4
    assert "h900x2" in message_of(lambda: braid.load(SMALL).simulate("h900x2"), "config")


def test_layout_equals_one_rank():
    found = braid.load(SMALL).verify(steps=2)
    assert found.equal
    assert found.gradient_difference <= found.gradient_tolerance
    assert len(found.losses) == len(found.one_rank_losses) == 2


def test_metrics_are_what_the_callback_saw(folder):
    numpy = pytest.importorskip("numpy")
    steps, texts, others = [], [], []
    stop = threading.Event()
    thread = threading.Thread(target=lambda: others.append(stop.wait(60)))
    thread.start()

    def on_step(step):
        stop.set()  # the other thread runs although this one is in braid
        steps.append(step)

    result = braid.load(SMALL, name="seen").train(on_step, on_output=texts.append)
    thread.join()
    assert others == [True]
    assert (result.last_step, result.stopped_early) == (3, False)
    assert f"saved    {result.checkpoint}" in "".join(texts)
    assert pathlib.Path(result.checkpoint).is_dir() and pathlib.Path(result.report).is_file()
    arrays = braid.metrics(result.run_folder)
    for name in steps[0]:
        assert arrays[name].shape == (3,)
        assert arrays[name].tolist() == [step[name] for step in steps]
    assert arrays["step"].dtype == numpy.int64 and arrays["loss"].dtype == numpy.float64
    assert arrays["consumed_samples"].tolist() == [4, 8, 12]
    assert arrays["eval_step"].tolist() == [0, 3]
    assert arrays["eval_loss"][-1] == result.last_eval_loss


def test_false_ends_with_a_checkpoint_and_an_exception_passes(folder):
    run = braid.load(SMALL, name="ends")
    result = run.train(lambda step: step["step"] < 2)
    assert (result.last_step, result.stopped_early) == (2, True)
    assert result.checkpoint.endswith("step_00000002")
    seen = []

    def fail(step):
        seen.append(step["step"])
        raise KeyError("of the caller")

    with pytest.raises(KeyError, match="of the caller"):
        run.train(fail)
    assert seen == [3]  # it had resumed


@pytest.mark.parametrize("while_in_python", [True, False])
def test_interrupt_saves_and_is_raised(folder, while_in_python):
    run = braid.load(SMALL, {"train.steps": 100000, "eval.interval": 0}, name="interrupted")

    def interrupt_after(step):
        if step["step"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT])

    def interrupt_at(text):
        if "  loss " in text and timer.ident is None:
            timer.start()

    with pytest.raises(KeyboardInterrupt):
        run.train(**({"on_step": interrupt_after} if while_in_python else {"on_output": interrupt_at}))
    steps = braid.metrics("runs/interrupted")["step"]
    assert steps[-1] == 2 or not while_in_python
    assert [path.name for path in pathlib.Path("runs/interrupted/checkpoints").glob("step_*")] == [f"step_{steps[-1]:08}"]


def test_errors_have_a_kind_and_one_line(folder):
    assert "train.stepz" in message_of(lambda: braid.load(SMALL, {"train.stepz": 1}), "config")
    assert "nowhere.txt" in message_of(lambda: braid.load(SMALL, {"data.train": "nowhere.txt"}).train(), "data")
    assert "nowhere" in message_of(lambda: braid.metrics("nowhere"), "data")


def test_metrics_are_lists_without_numpy(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    braid.load(SMALL, {"train.steps": 1}, name="lists").train()
    found = braid.metrics("runs/lists")
    assert found["step"] == [1] and isinstance(found["loss"], list)


def test_damage_of_metrics_is_a_warning(folder):
    (folder / "run").mkdir()
    (folder / "run" / "metrics.jsonl").write_text('{"step": 1, "valid_loss": 2.5}\nno record\n{"step": 2, "valid_loss": null}\n')
    with pytest.warns(RuntimeWarning, match="line 2"):
        found = braid.metrics("run")
    assert found["eval_loss"][0] == 2.5 and math.isnan(found["eval_loss"][1])


def test_an_older_processor_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(processor, "NEEDED_FLAGS", ["avx2048"])
    with pytest.raises(ImportError, match="needs a processor with avx2048"):
        processor.check()


def test_products_use_the_kernels_of_this_processor():
    """Whatever OpenBLAS would choose by itself: the module finds nothing to improve once it is loaded."""
    found = subprocess.run([sys.executable, "-c", "import braid, os; print(braid._braid._better_environment(), "
                            "'OPENBLAS_CORETYPE' in os.environ)"], capture_output=True, text=True, check=True,
                           env={name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"})
    # With a core type that was chosen before, the library is asked about that one.
    assert found.stdout == "{} False\n"
