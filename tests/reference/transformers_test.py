#!/usr/bin/env python3
"""Trains small models with braid and with Hugging Face transformers, and compares.

    transformers_test.py BRAID [--python PYTHON]

Both start from the same random weights, which transformers made, and read the same data. The other side (transformers_side.py) has no
code of braid. braid computes in float32; transformers in float32 and, as a measure of rounding, in float64. Compared are the loss, the gradient norm and the learning rate of each step, the weights after the last one, and folders
that transformers and braid write: each loads all that the other wrote. Prints both losses. Exits 77 (ctest: skipped) without the
packages of `scripts/setup.sh --reference`, or of the Python that --python names.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIDE = pathlib.Path(__file__).with_name("transformers_side.py")

SETTINGS = {"sequence": 32, "microbatch": 2, "global_batch": 4, "steps": 20, "seed": 1234, "learning_rate": 3e-3,
            "min_learning_rate": 3e-4, "warmup_steps": 5, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1,
            "clip_norm": 1.0}
DOCUMENTS = 30  # about 1,900 tokens; the run reads 2,560, so it begins a second epoch

# Both sides compute in fp32 (2^-24 = 6e-8 per operation) and add up in different orders. Relative, ten times what was seen, which is
# rounding: braid is as near to float64 as transformers in float32 is.
LIMITS = {"loss": 3e-6, "grad_norm": 3e-5, "learning_rate": 1e-12}
# Absolute, at the end, about ten times what was seen. Adam's step is about the learning rate however small a gradient is, so rounding
# counts more where gradients are small. A weight goes up to 0.03 from its start.
WEIGHT_LIMIT = 3e-4
LOGIT_LIMIT = 5e-4
# A bias of keys adds the same to all scores of a query: softmax takes it out. GPT-2's has no gradient, then, but for rounding, and
# Qwen2's almost none where rotary positions turn slowly. Adam makes steps out of that, in any direction, with no effect on the loss.
KEY_BIAS_LIMIT = 1e-2


def llama(architecture, **more):
    return {"architecture": architecture,
            "config": {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                       "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 0,
                       "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": False, **more}}


def experts(architecture, **more):
    """Two of eight experts per token. That no choice hangs on rounding in these runs is luck of the seed."""
    return llama(architecture, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16, **more)


def deepseek(architecture, **more):
    """Latent attention, one layer without experts, two of eight experts per token in the other, and two for all."""
    return llama(architecture, num_key_value_heads=4, rms_norm_eps=1e-6, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8,
                 v_head_dim=16, n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=2, moe_intermediate_size=32,
                 first_k_dense_replace=1, **more)


def states(**more):
    """Two groups of heads, and chunks that do not divide the sequence."""
    return {"architecture": "Mamba2ForCausalLM",
            "config": {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "state_size": 12,
                       "n_groups": 2, "chunk_size": 20, "initializer_range": 0.02, "bos_token_id": 0, "eos_token_id": 0,
                       "pad_token_id": None, **more}}


def hybrid(pattern, **more):
    """States of eight heads, attention without positions, and squares of ReLU."""
    return {"architecture": "NemotronHForCausalLM",
            "config": {"vocab_size": 96, "hidden_size": 64, "layers_block_type": [LAYERS[letter] for letter in pattern],
                       "mamba_num_heads": 8, "mamba_head_dim": 12, "ssm_state_size": 10, "n_groups": 2, "chunk_size": 24,
                       "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
                       "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, **more}}


def gemma3(**more):
    """Heads apart from the width, and windows with a base of their own."""
    ropes = {"full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0},
             "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}}
    usual = {"num_hidden_layers": 3, "head_dim": 24, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 32, "sliding_window": 9,
             "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "tie_word_embeddings": True,
             "pad_token_id": None, "rope_parameters": ropes}
    return llama("Gemma3ForCausalLM", **(usual | more))


def gpt2(**more):
    return {"architecture": "GPT2LMHeadModel",
            "config": {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 48, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
                       "resid_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0, **more}}


def hybrid_experts(pattern, **more):
    """The same with two of eight experts per token, without gates, and one for all."""
    return hybrid(pattern, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, moe_shared_expert_intermediate_size=40,
                  routed_scaling_factor=2.5, **more)


LAYERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
# Scaled frequencies, with ramps inside of the pairs that these small heads have.
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}
YARN_WHOLE_ROPE = YARN_ROPE | {"truncate": False, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.25}
DEEPSEEK_ROPE = YARN_ROPE | {"mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1}
# Of 12 of a head's 16 elements. Longer sequences than the second number of positions have the long factors.
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 32,
            "short_factor": [1, 1.1, 1.25, 1.5, 2, 3], "long_factor": [1, 1.5, 3, 6.5, 12, 20]}
SLOW_ROPE = {"rope_type": "default", "rope_theta": 1e6}
MODELS = {
    "llama": llama("LlamaForCausalLM"),
    "llama_tied": llama("LlamaForCausalLM", tie_word_embeddings=True, num_key_value_heads=1),
    "llama_wide_heads": llama("LlamaForCausalLM", head_dim=24, num_key_value_heads=4),
    "mistral": llama("MistralForCausalLM", sliding_window=9),
    "ministral": llama("MinistralForCausalLM", head_dim=16, num_hidden_layers=3, sliding_window=7,
                       layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
    "qwen2_windows": llama("Qwen2ForCausalLM", rope_parameters=SLOW_ROPE, use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "qwen2": llama("Qwen2ForCausalLM", rope_parameters=SLOW_ROPE),
    "qwen2_tied": llama("Qwen2ForCausalLM", rope_parameters=SLOW_ROPE, tie_word_embeddings=True),
    "qwen3": llama("Qwen3ForCausalLM", head_dim=24),
    "phi3": llama("Phi3ForCausalLM", pad_token_id=None),
    "phi3_window": llama("Phi3ForCausalLM", sliding_window=9, num_key_value_heads=1, pad_token_id=None),
    "gemma3": gemma3(),
    "gemma3_untied": gemma3(hidden_size=60, tie_word_embeddings=False, num_key_value_heads=1),
    "phi3_partial": llama("Phi3ForCausalLM", pad_token_id=None,
                          rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}),
    "phi3_longrope": llama("Phi3ForCausalLM", pad_token_id=None, original_max_position_embeddings=32, rope_parameters=LONGROPE),
    "phi3_longrope_long": llama("Phi3ForCausalLM", pad_token_id=None, sliding_window=20, original_max_position_embeddings=24,
                                rope_parameters=LONGROPE | {"original_max_position_embeddings": 24}),
    "qwen2_moe": experts("Qwen2MoeForCausalLM", shared_expert_intermediate_size=48, num_hidden_layers=3, mlp_only_layers=[1],
                         rope_parameters=SLOW_ROPE),
    "qwen3_moe": experts("Qwen3MoeForCausalLM", norm_topk_prob=True),
    "qwen3_moe_some": experts("Qwen3MoeForCausalLM", num_hidden_layers=3, mlp_only_layers=[1], tie_word_embeddings=True),
    "mixtral": llama("MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2),
    # Its default pad_token_id is a token, whose embedding PyTorch then does not train.
    "olmoe": experts("OlmoeForCausalLM", intermediate_size=32, num_key_value_heads=4, pad_token_id=None),
    "gpt2": gpt2(),
    "gpt2_untied": gpt2(tie_word_embeddings=False, n_inner=80, n_positions=32),
    "deepseek_v2_lite": deepseek("DeepseekV2ForCausalLM", q_lora_rank=None),
    "deepseek_v2": deepseek("DeepseekV2ForCausalLM", q_lora_rank=40, topk_method="group_limited_greedy", n_group=4, topk_group=2,
                            routed_scaling_factor=4.0, tie_word_embeddings=True),
    "deepseek_v3": deepseek("DeepseekV3ForCausalLM", q_lora_rank=40, n_group=4, topk_group=2, num_nextn_predict_layers=0),
    "mamba2": states(),
    "mamba2_tied": states(tie_word_embeddings=True, n_groups=1, time_step_limit=(0.02, 0.5)),
    "nemotron_h": hybrid("M-M*-"),
    "nemotron_h_no_clamp": hybrid("*M-", time_step_min=1e-12, n_groups=4),
    "nemotron_3": hybrid_experts("ME*E"),
    "nemotron_3_groups": hybrid_experts("-M*E", n_group=4, topk_group=2, norm_topk_prob=False),
    "llama_llama3": llama("LlamaForCausalLM", rope_parameters=LLAMA3_ROPE),
    "llama_linear": llama("LlamaForCausalLM", rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    "qwen2_yarn": llama("Qwen2ForCausalLM", rope_parameters=YARN_ROPE),
    "qwen3_yarn": llama("Qwen3ForCausalLM", head_dim=24, rope_parameters=YARN_WHOLE_ROPE),
    "qwen2_moe_yarn": experts("Qwen2MoeForCausalLM", shared_expert_intermediate_size=48, rope_parameters=YARN_ROPE),
    "qwen3_moe_yarn": experts("Qwen3MoeForCausalLM", norm_topk_prob=True, rope_parameters=YARN_WHOLE_ROPE),
    "mixtral_llama3": llama("MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2, rope_parameters=LLAMA3_ROPE),
    "olmoe_linear": experts("OlmoeForCausalLM", intermediate_size=32, num_key_value_heads=4, pad_token_id=None,
                            rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}),
    # transformers rotates in float32 here even when it trains in float64, which is that much less exact.
    "deepseek_v2_yarn": deepseek("DeepseekV2ForCausalLM", q_lora_rank=None, rope_parameters=DEEPSEEK_ROPE),
    "deepseek_v3_yarn": deepseek("DeepseekV3ForCausalLM", q_lora_rank=40, n_group=4, topk_group=2, num_nextn_predict_layers=0,
                                 rope_parameters=DEEPSEEK_ROPE | {"mscale": 1.0}),
}

# Folders that transformers wrote, and braid's exports that must equal them.
EXPORTS = {"export": ("start", "export"), "in_files": ("start_in_files", "export_in_files"),
           "to_bfloat16": ("start_bfloat16", "export_bfloat16"), "from_bfloat16": ("start_bfloat16", "export_of_bfloat16"),
           "from_fused": ("start", "export_of_fused"), "to_fused": ("start_fused", "export_fused")}
ENDS = {"end": ("end_float32", "export_end"), "braid_from_float64": ("end_float64", "export_end"),
        "transformers_from_float64": ("end_float64", "end_float32")}


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, errors="replace", timeout=300)
    if done.returncode != 0:
        raise SystemExit(f"FAILED: {' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def model_section(imported):
    """The section [model] that `braid import` prints for run files."""
    return "[model]" + imported.split("[model]")[1].split("\n[")[0]


def run_file(folder, model):
    losses = "[moe]\nbalance_loss = 0.0  # the other side has none" if "\nexperts = " in model else ""
    if "\nrouter_bias = true" in model:
        losses += "\nbias_update_rate = 0.0"

    def keys(*names):
        return "\n".join(f"{name} = {SETTINGS[name]}" for name in names)

    return f"""{model}
[train]
{keys("sequence", "microbatch", "global_batch", "steps", "seed")}
dtype = "float32"
[optimizer]
schedule = "cosine"
{keys("learning_rate", "min_learning_rate", "warmup_steps", "beta1", "beta2", "epsilon", "weight_decay", "clip_norm")}
[data]
train = "{folder}/data"
tokenizer = "ids:96"
split = "1,0,0"
[eval]
interval = 0
{losses}
[checkpoint]
resume = "{folder}/imported"
[logging]
run_folder = "{folder}/run"
interval = 1
[runtime]
device = "cpu"
threads = 1
"""


def run_braid(braid, folder):
    """Trains and exports everything in the folder of a model; the records of the steps."""
    imported = run(braid, "import", folder / "start", folder / "imported")
    run(braid, "export", folder / "imported", folder / "export")
    run(braid, "export", folder / "imported", folder / "export_bfloat16", "--dtype", "bf16")
    for form in ("in_files", "bfloat16"):
        run(braid, "import", folder / f"start_{form}", folder / f"imported_{form}")
    run(braid, "export", folder / "imported_in_files", folder / "export_in_files", "--max-shard-size", "40KB")
    run(braid, "import", folder / "start_fused", folder / "imported_fused")
    run(braid, "export", folder / "imported_fused", folder / "export_of_fused")
    run(braid, "export", folder / "imported", folder / "export_fused", "--fused-experts")
    run(braid, "export", folder / "imported_bfloat16", folder / "export_of_bfloat16", "--dtype", "bf16")
    (folder / "run.toml").write_text(run_file(folder, model_section(imported)))
    run(braid, "train", folder / "run.toml")
    run(braid, "export", folder / "run", folder / "export_end")
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if "expert_layer" not in record]  # those of steps


def relative(ours, theirs):
    return abs(ours - theirs) / abs(theirs)


def largest(key, ours, theirs):
    return max(relative(a[key], b[key]) for a, b in zip(ours, theirs))


def compare_steps(name, ours, theirs, exact):
    """Prints both losses of each step; what differs from them, or from those in float64."""
    print(f"\n{name}\n  step  loss of braid  of transformers  difference   gradient norm, difference")
    for a, b in zip(ours, theirs):
        print(f"{a['step']:6} {a['loss']:14.8f} {b['loss']:16.8f} {relative(a['loss'], b['loss']):11.1e} "
              f"{a['grad_norm']:15.6f} {relative(a['grad_norm'], b['grad_norm']):11.1e}")
    faults = []
    if [record["step"] for record in ours] != list(range(1, SETTINGS["steps"] + 1)) or len(theirs) != len(ours):
        faults.append(f"{len(ours)} and {len(theirs)} steps, not {SETTINGS['steps']}")
    for key, limit in LIMITS.items():
        gap, to_exact = largest(key, ours, theirs), largest(key, ours, exact)
        print(f"  largest difference of {key}: {gap:.1e} (limit {limit:.0e}); from float64 braid's {to_exact:.1e}, "
              f"transformers' {largest(key, theirs, exact):.1e}")
        if not max(gap, to_exact) <= limit:
            faults.append(f"{key} differs by {gap:.1e}, from float64 by {to_exact:.1e}")
    if not ours[-1]["loss"] < 0.97 * ours[0]["loss"]:
        faults.append("the loss does not fall, so the comparison says little")
    return faults


def gaps_of(end):
    """Largest differences of two trained models: of weights other than biases of keys, of these, and of logits."""
    keys = {name: gap for name, gap in end["weights"].items() if ".k_" in name and name.endswith(".bias")}
    others = [gap for name, gap in end["weights"].items() if name not in keys]
    return max(others), max(keys.values(), default=0.0), end["logits"]


def compare_ends(answer):
    """Weights and logits after the last step."""
    faults = []
    pairs = zip(("weight", "bias of keys", "logit"), (WEIGHT_LIMIT, KEY_BIAS_LIMIT, LOGIT_LIMIT), *(gaps_of(answer[pair]) for pair in ENDS))
    for what, limit, gap, ours, theirs in pairs:
        print(f"  largest difference of a {what} at the end: {gap:.1e} (limit {limit:.0e}); from float64 braid's {ours:.1e}, "
              f"transformers' {theirs:.1e}")
        if not max(gap, ours) <= limit:
            faults.append(f"a {what} at the end differs by {gap:.1e}, from float64 by {ours:.1e}")
    return faults


def compare_exports(architecture, answer):
    """Folders that braid wrote from those of transformers must be these, bit by bit."""
    faults = []
    for export in EXPORTS:
        found = answer[export]
        if found["classes"] != [architecture] * 2 or len(set(found["types"])) != 1:
            faults.append(f"{export} loads as {found['classes']} of {found['types']}")
        elif found["logits"] != 0 or any(found["weights"].values()):
            faults.append(f"{export} has other weights, or logits that differ by {found['logits']:.1e}")
    print(f"  transformers loads {len(EXPORTS) + 1} exports as {architecture}; {len(EXPORTS) - len(faults)} equal the original bit by bit")
    return faults


def compare_all(braid, python, work):
    (work / "request.json").write_text(
        json.dumps({"models": MODELS, "settings": SETTINGS, "documents": DOCUMENTS, "pairs": EXPORTS | ENDS}))
    run(python, SIDE, "make", work)
    print(", ".join(f"{package} {version}" for package, version in json.loads((work / "answer.json").read_text()).items()))
    records = {name: run_braid(braid, work / name) for name in MODELS}
    run(python, SIDE, "train", work)
    answers = json.loads((work / "answer.json").read_text())
    faults = []
    for name, answer in answers.items():
        found = compare_steps(name, records[name], answer["float32"], answer["float64"])
        found += compare_ends(answer) + compare_exports(MODELS[name]["architecture"], answer)
        faults += [f"{name}: {fault}" for fault in found]
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("braid", type=pathlib.Path)
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / "build/reference/bin/python")
    arguments = parser.parse_args()
    if not arguments.python.exists():
        print("skipped: no Hugging Face transformers in build/reference; `scripts/setup.sh --reference` installs it")
        return 77
    with tempfile.TemporaryDirectory() as work:
        faults = compare_all(arguments.braid.resolve(), arguments.python, pathlib.Path(work))
    print("", *(f"FAILED: {fault}" for fault in faults), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
