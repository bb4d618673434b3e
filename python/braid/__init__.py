"""braid trains large language models and hides communication under compute.

    import braid

    run = braid.load("run.toml", {"train.steps": 100})
    print(run.plan())
    print(run.simulate("h200x8").step_ns / 1e6, "ms")
    run.train(lambda step: step["loss"] > 2.0)      # False ends the run
    losses = braid.metrics("runs/run")["loss"]

docs/python.md has more. Everything that braid refuses raises braid.Error with one line that names value, limit and option.
"""
import collections.abc
import importlib.util
import os
import warnings

from braid_start import processor

processor.check()
with processor.faster_products(importlib.util.find_spec("braid._braid").origin):
    from . import _braid
from ._braid import (
    CommunicationTime, Error, MemoryClass, PassRecord, Plan, RankPlan, Run, Simulation, TrainResult, Verification)
from ._run_file import overrides_of

__all__ = ["CommunicationTime", "Error", "MemoryClass", "PassRecord", "Plan", "RankPlan", "Run", "Simulation",
           "TrainResult", "Verification", "load", "metrics"]


def load(run, overrides=(), *, name="run"):
    """Loads a run: a Run.

    run: the path of a run file (docs/configuration.md), or a dict of its keys, {"train": {"steps": 100}} or
    {"train.steps": 100}.
    overrides: keys that replace those of `run`: a dict of the same form, or strings "section.key=value" as those of
    `--set`.
    name: for a dict, the name of its run folder, "runs/<name>", unless logging.run_folder gives one.

    Raises Error: "config" for what is wrong in it, "data" where a tokenizer must say the size of the vocabulary and
    cannot; TypeError for a value that a run file cannot have.
    """
    if isinstance(run, collections.abc.Mapping):
        return Run._parse("", name, overrides_of(run) + overrides_of(overrides))
    return Run._load(os.fspath(run), overrides_of(overrides))


def metrics(run_folder):
    """What a run has measured so far, from metrics.jsonl of its folder, also while it goes on: a dict of arrays.

    One array per number, all of shape [steps]: step, consumed_samples, consumed_tokens (int64), loss (nats per token),
    grad_norm, learning_rate, tokens_per_s (over all ranks), step_ms, tflops_per_s_per_rank (float64). eval_step (int64)
    and eval_loss (float64, nats per token) are of shape [evaluations]; step 0 is before the first step. What was not
    finite is NaN.

    The arrays are NumPy's; without NumPy they are lists. Records that cannot be read are left out, with a warning.
    Raises Error ("data") where there is no such run, or its file cannot be read.
    """
    columns, damage = _braid._read_metrics(os.fspath(run_folder))
    if damage:
        warnings.warn(damage, RuntimeWarning, stacklevel=2)
    try:
        import numpy
    except ImportError:
        return columns
    whole = {"step", "consumed_samples", "consumed_tokens", "eval_step"}
    return {name: numpy.array(values, dtype="int64" if name in whole else "float64")
            for name, values in columns.items()}
