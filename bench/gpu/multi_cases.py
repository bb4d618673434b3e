"""The cases of several GPUs (cases/multi/*.toml, each written for 8 GPUs) and what they are on fewer."""
import dataclasses
import re
import tomllib

import gpu_bench
from gpu_bench import FOLDER

RUN_FILES = FOLDER / "cases" / "multi"
GPUS = (2, 4, 8)


@dataclasses.dataclass(frozen=True)
class Case:
    """`scales` is the dimension of the layout that becomes smaller with fewer GPUs, the others stay; with "expert", data ranks do
    too. `layers`: by number of GPUs, where those of the run file would need more than about 110 GiB of a GPU (`braid plan`), for both
    sides; with experts 70 GiB of 4, which are H100s as often as not. `whole`: settings with which all layers fit into 139 GiB of each of 8,
    and `skewed`: unequal loads of experts with room for them, both for emulated.py."""
    name: str
    scales: str = "data"
    layers: dict = dataclasses.field(default_factory=dict)
    least_gpus: int = 2
    whole: dict = dataclasses.field(default_factory=dict)
    skewed: dict = dataclasses.field(default_factory=dict)


def skewed(concentration, capacity):
    """Settings of drawn loads (moe.force_skew); `capacity` has room for all rows."""
    return {"moe.force_balance": "false", "moe.force_skew": concentration, "moe.capacity": capacity}


# The most important first: a run with little time measures these.
CASES = {case.name: case for case in [
    Case("llama-1b-zero1"),
    Case("llama-8b-zero3"),
    Case("llama-1b-tp", "tensor"),
    Case("llama-8b-tp", "tensor"),
    Case("llama-8b-zero2-accumulate", layers={2: 24}),
    Case("qwen2.5-7b-zero1", layers={2: 20}),
    Case("llama-8b-pp", "pipeline", layers={2: 24}),
    Case("llama-70b-l8-tp", "tensor"),
    Case("llama-8b-zero1-accumulate", layers={2: 24}),
    Case("qwen2.5-1.5b-zero1"),
    Case("llama-8b-pp-dp", "pipeline", least_gpus=4),
    Case("qwen2.5-32b-zero3", least_gpus=8),
    Case("qwen3-30b-a3b-ep", "expert", layers={2: 8, 4: 9, 8: 20}, whole={"model.layers": 48, "memory.recompute": "full", "memory.recompute_layers": 32},
         skewed=skewed(1, 1.9)),
    Case("olmoe-7b-ep", "expert", layers={2: 10, 4: 12}, skewed=skewed(1, 1.85)),
    Case("mixtral-8x7b-ep", "expert", layers={2: 5, 4: 5, 8: 10}, whole={"model.layers": 32, "memory.recompute": "full", "train.microbatch": 1},
         skewed=skewed(16, 1.9)),
    Case("llama-8b-cp", "context", layers={2: 14, 4: 28}),
    Case("llama-8b-cp-ring", "context", layers={2: 14, 4: 28}),
]}

# What --small makes of every case: seconds on a CPU, to rehearse the scripts.
SMALL = {"model.width": 128, "model.heads": 8, "model.kv_heads": 8, "model.head_size": 16, "model.ffn": 256,
         "model.vocabulary": 1000, "data.tokenizer": "ids:1000", "train.sequence": 64, "train.steps": 7}
SMALL_LAYERS, SMALL_MICROBATCH, SMALL_MICROBATCHES = 4, 2, 4
SMALL_EXPERT_RUN = {"moe.capacity": 0}  # few rows are seldom spread evenly

OFF = {"overlap.mode": "off"}


def only(**keys):
    """Nothing but the techniques named."""
    return {"overlap.mode": "manual", **{f"overlap.{key}": value for key, value in keys.items()}}


# One overlap technique after the other, alone (plus the keys that it needs), compared with no overlap. A technique is measured if its
# dimension of the layout has more than one rank. {cost}: the costs of tasks.
TECHNIQUES = {
    "grad_reduce": ("data", only(overlap_grad_reduce="true")),
    "param_gather": ("data", only(overlap_param_gather="true")),
    "param_gather_with_optimizer": ("data", only(overlap_param_gather="true", overlap_param_gather_with_optimizer_step="true")),
    "align_param_gather": ("data", only(overlap_param_gather="true", align_param_gather="true")),
    "param_gather_budget": ("data", {**only(overlap_param_gather="true"), "memory.gather_budget": "4GiB"}),
    "param_gather_in_budget": ("data", {**only(overlap_param_gather="true", param_gather_fills_budget="false"),
                                        "memory.gather_budget": "4GiB"}),
    "param_gather_whole_units": ("data", only(overlap_param_gather="true", param_gather_whole_units="2")),
    "tp_bulk": ("tensor", only(tp_comm_overlap="true", tp_comm_overlap_ag="false", tp_comm_overlap_rs="false")),
    "tp_all_gather": ("tensor", only(tp_comm_overlap="true", tp_comm_overlap_rs="false", tp_comm_bulk_dgrad="false",
                                     tp_comm_bulk_wgrad="false")),
    "tp_reduce_scatter": ("tensor", only(tp_comm_overlap="true", tp_comm_overlap_ag="false", tp_comm_bulk_dgrad="false",
                                         tp_comm_bulk_wgrad="false")),
    "tp_reduce_scatter_dgrad": ("tensor", only(tp_comm_overlap="true", tp_comm_overlap_ag="false", tp_comm_overlap_rs="false",
                                               tp_comm_bulk_dgrad="false", tp_comm_bulk_wgrad="false",
                                               tp_comm_overlap_rs_dgrad="true")),
    "tp_all": ("tensor", only(tp_comm_overlap="true")),
    "split_ops": ("tensor", only(tp_comm_overlap="true", split_ops="true", cost="{cost}")),
    "halves": ("tensor", only(pair_forward_backward='"halves"')),
    "forward_halves": ("tensor", only(pair_forward_backward='"forward_halves"')),
    "exchange": ("expert", only(overlap_moe_expert_parallel_comm="true")),
    "exchange_halves": ("expert", only(overlap_moe_expert_parallel_comm="true", pair_forward_backward='"halves"')),
    "exchange_forward_halves": ("expert", only(overlap_moe_expert_parallel_comm="true", pair_forward_backward='"forward_halves"')),
    "exchange_list_schedule": ("expert", only(overlap_moe_expert_parallel_comm="true", list_schedule="true", cost="{cost}")),
    "context": ("context", only(overlap_context_comm="true")),
    "context_halves": ("context", only(overlap_context_comm="true", split_ops="true", cost="{cost}")),
    "p2p": ("pipeline", only(overlap_p2p_comm="true")),
    "p2p_warmup_flush": ("pipeline", only(overlap_p2p_comm="true", overlap_p2p_comm_warmup_flush="true")),
    "p2p_backward_on_comm_stream": ("pipeline", only(overlap_p2p_comm="true", overlap_p2p_backward_on_comm_stream="true")),
    "p2p_delayed_wgrad": ("pipeline", only(overlap_p2p_comm="true", overlap_p2p_wgrad_delayed_layer_number="1",
                                           overlap_p2p_with_transformer_layer_wgrad="true")),
    "fill_cooldown": ("pipeline", only(overlap_p2p_comm="true", fill_cooldown="true")),
    "defer_embedding_wgrad": ("pipeline", only(defer_embedding_wgrad_compute="true")),
    "list_schedule": ("pipeline", only(overlap_p2p_comm="true", list_schedule="true", cost="{cost}")),
}

# What braid's side runs with: the settings that a search by simulation finds fastest for the machine, found once per case (multi.py).
SEARCHED = {"overlap.may_change_rounding": "true"}

# Whole settings of the run file: what braid does without a cost model, what a search finds that may change no bit, copies by copy
# engines, all ranks in one process.
VARIANTS = {
    "defaults": {},
    "search_same_bits": {"overlap.cost": "{cost}"},
    "copy_engines": {"overlap.comm_engine": "copy"},
    "one_process": {"runtime.processes": "one"},
    "recompute_auto": {"overlap.cost": "{cost}", "overlap.may_change_rounding": "true", "memory.recompute": "auto"},
}

NOT_WITH_SHARDED_WEIGHTS = {"param_gather_with_optimizer", "align_param_gather"}  # these are gathered for each use
ONLY_WITH_SHARDED_WEIGHTS = {"param_gather_whole_units", "param_gather_budget", "param_gather_in_budget"}
NOT_WITH_ONE_SEQUENCE = {"halves", "forward_halves", "exchange_halves", "exchange_forward_halves"}
ONLY_WITH_EXCHANGED_HEADS = {"context_halves"}


def run_file(name):
    return RUN_FILES / f"{name}.toml"


def load(name):
    return tomllib.loads(run_file(name).read_text(encoding="utf-8"))


def layout(name, gpus):
    """Ranks by dimension on `gpus` GPUs."""
    case, parallel = CASES[name], load(name)["parallel"]
    ranks = {key: parallel.get(key, 1) for key in ("tensor", "context", "pipeline", "expert")}
    data = parallel.get("data", parallel["ranks"] // (ranks["tensor"] * ranks["context"] * ranks["pipeline"]))
    ranks["data"] = data
    for scaled in ("data", "expert") if case.scales == "expert" else (case.scales,):
        ranks[scaled] = ranks[scaled] * gpus // parallel["ranks"]
    return ranks


def why_not(name, gpus):
    """Why a case has no version on so many GPUs, or an empty text."""
    case = CASES[name]
    return f"needs {case.least_gpus} GPUs" if gpus < case.least_gpus else ""


def why_not_torch(name, gpus):
    """The same of its run by PyTorch (torch_multi.py)."""
    return "torch_multi.py has no context ranks" if layout(name, gpus)["context"] > 1 else ""


def layers_cut(name, gpus):
    """Layers that the model has on so few GPUs, or None for all."""
    return CASES[name].layers.get(gpus)


def title(name, gpus):
    cut = layers_cut(name, gpus)
    return re.sub(r"^([a-z]+[0-9.]*-[0-9.x]+b(-a[0-9]+b)?)", rf"\1-l{cut}", name) if cut else name


def changes(name, gpus, small=False, device="cuda"):
    """Values of `--set` that make the run file one for `gpus` ranks."""
    file, ranks = load(name), layout(name, gpus)
    per_data_rank = file["train"]["global_batch"] // layout(name, file["parallel"]["ranks"])["data"]
    values = {"runtime.device": device, "parallel.ranks": gpus}
    values |= {f"parallel.{key}": ranks[key] for key in ("tensor", "context", "pipeline", "expert", "data")}
    if layers_cut(name, gpus):
        values["model.layers"] = layers_cut(name, gpus)
    if small:
        stages = ranks["pipeline"] * file["parallel"].get("virtual_stages", 1)
        values |= SMALL | {"model.layers": max(SMALL_LAYERS, stages),
                           "train.microbatch": min(file["train"]["microbatch"], SMALL_MICROBATCH)}
        if CASES[name].scales == "expert":
            values = gpu_bench.with_small_experts(values) | SMALL_EXPERT_RUN
        per_data_rank = min(per_data_rank, max(SMALL_MICROBATCHES, ranks["pipeline"]) * values["train.microbatch"])
    values["train.global_batch"] = per_data_rank * ranks["data"]
    return values


def small_fp8(name, gpus):
    """What --small changes besides with FP8 products, whose tokens, inputs and features on a rank are multiples of 128."""
    tensor = layout(name, gpus)["tensor"]
    return {"model.width": 128 * tensor, "model.head_size": 16 * tensor, "model.ffn": 256 * tensor, "train.sequence": 128 * tensor}


def techniques(name, gpus, cost):
    """Changes of its run file to measure for a case, by name; the first is no overlap at all. `cost`: what a search goes by."""
    ranks, file = layout(name, gpus), load(name)
    never = {*(() if file.get("memory", {}).get("recompute", "none") != "none" else ("recompute_auto",)),
             *(NOT_WITH_SHARDED_WEIGHTS if file["parallel"].get("shard") == "parameters" else ONLY_WITH_SHARDED_WEIGHTS),
             *(() if file["parallel"].get("context_method") == "a2a" else ONLY_WITH_EXCHANGED_HEADS),
             *(NOT_WITH_ONE_SEQUENCE if file["train"]["microbatch"] == 1 else ())}
    alone = {key: values for key, (dimension, values) in TECHNIQUES.items() if ranks[dimension] > 1 and key not in never}
    chosen = {"off": OFF} | alone | {key: values for key, values in VARIANTS.items() if key not in never}
    return {key: {name: text.format(cost=cost) for name, text in values.items()} for key, values in chosen.items()}
