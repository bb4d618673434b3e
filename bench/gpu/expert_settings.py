"""What PyTorch's side must know of the experts of a case, beside what `braid_bench_floor --describe` prints."""
import tomllib

# Experts of published models, as braid's presets have them; the numbers of parameters that follow are compared with braid's. "shared_ffn":
# hidden features of an expert for all tokens; "dense_layers": so many first layers have an MLP.
PRESETS = {
    "deepseek-v2-lite": {"experts": 64, "experts_per_token": 6, "expert_ffn": 1408, "router_normalize": False, "shared_ffn": 2816,
                         "dense_layers": 1},
    "mixtral-8x7b": {"experts": 8, "experts_per_token": 2, "expert_ffn": 14336, "router_normalize": True},
    "olmoe-1b-7b": {"experts": 64, "experts_per_token": 8, "expert_ffn": 1024, "router_normalize": False},
    "qwen3-30b-a3b": {"experts": 128, "experts_per_token": 8, "expert_ffn": 768, "router_normalize": True},
}
OWN = ("experts", "experts_per_token", "expert_ffn", "router_normalize")  # what a model without a preset gives itself
DEFAULTS = {"moe.balance_loss": 0.01, "moe.force_balance": False, "parallel.expert": 1}


def of_run(run_file, changes):
    """Sizes, router and number of expert ranks of a run file with `changes` (values of `--set`), or None for a model without."""
    file = tomllib.loads(run_file.read_text(encoding="utf-8"))
    preset = PRESETS.get(file["model"].get("preset"))
    if preset is None and "experts" in file["model"]:
        preset = {key: file["model"][key] for key in OWN}
    if preset is None:
        return None

    def value(section, key, default):
        change = changes.get(f"{section}.{key}")
        return parsed(change) if change is not None else file.get(section, {}).get(key, default)

    model = {key: value("model", key, default) for key, default in preset.items()}
    balance = {key: value("moe", key, DEFAULTS[f"moe.{key}"]) for key in ("balance_loss", "force_balance")}
    return {**model, **balance, "ranks": value("parallel", "expert", DEFAULTS["parallel.expert"])}


def parsed(value):
    """A value of `--set`, which may be a text."""
    return tomllib.loads(f"value = {value}")["value"] if isinstance(value, str) else value
