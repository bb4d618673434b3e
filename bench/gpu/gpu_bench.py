"""What the scripts of this folder share: raw results as JSON lines, running programs, and what the GPU does meanwhile."""
import array
import datetime
import json
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import threading

FOLDER = pathlib.Path(__file__).resolve().parent
CASES = ["llama-1b", "llama-1b-any-order", "llama-1b-accumulate", "llama-1b-accumulate-any-order", "llama-8b-l16",
         "llama-8b-l16-any-order", "qwen2.5-7b-l14", "gpt2-124m"]
EXPERT_CASES = ["olmoe-l12", "qwen3-30b-a3b-l6", "mixtral-8x7b-l3", "deepseek-v2-lite-l8"]  # of folder cases/experts
HYBRID_CASES = ["mamba2-2.7b", "nemotron-h-4b"]  # of folder cases/hybrids, which has cases of several GPUs, too
FINETUNE_CASES = ["llama-8b-lora"]  # of folder cases/finetune

# What --small makes of every case: seconds on a CPU, to rehearse the scripts.
SMALL = {"model.layers": 2, "model.width": 128, "model.heads": 4, "model.head_size": 32, "model.ffn": 256,
         "model.vocabulary": 1000, "train.sequence": 64, "train.microbatch": 2, "train.global_batch": 4, "train.steps": 6,
         "data.tokenizer": "ids:1000"}
SMALL_EXPERTS = {"model.experts": 16, "model.experts_per_token": 2, "model.expert_ffn": 64}  # in place of model.ffn
# Of a model with latent attention, in place of sizes of plain attention; its first layer has an MLP.
SMALL_LATENTS = {"model.kv_lora_rank": 48, "model.qk_nope_head_dim": 32, "model.qk_rope_head_dim": 16, "model.v_head_dim": 32,
                 "model.shared_ffn": 96, "model.ffn": SMALL["model.ffn"]}
# Of a model with states, in place of model.layers: sizes of its blocks that it would have from its preset.
SMALL_STATES = {"model.mamba_num_heads": 8, "model.mamba_head_dim": 32, "model.ssm_state_size": 32}
SMALL_HYBRIDS = {"mamba2-2.7b": {"model.pattern": "MM"}, "nemotron-h-4b": {"model.pattern": "M-M*-", "model.mamba_n_groups": 2}}


class Failure(Exception):
    """A program that did not do what it should; the message is for people."""


class Results:
    """JSON lines. New lines go to FOLDER/raw.jsonl, each written whole or not at all. Reading takes all .jsonl files of the folder, so
    that results of several calls, or machines, can be combined."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "raw.jsonl"

    def add(self, kind, **record):
        line = json.dumps({"kind": kind, "time": now(), **record})
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, (line + "\n").encode())
        finally:
            os.close(descriptor)

    def read(self):
        """All records in the order of their time."""
        lines = [line for path in sorted(self.folder.glob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()]
        return sorted(map(json.loads, lines), key=lambda record: record["time"])


def find_program(folder, name):
    """In a build folder, or in one folder with all programs."""
    for path in (folder / name, folder / "bench" / name, folder / "tests" / name):
        if path.is_file():
            return path
    raise Failure(f"there is no {name} in {folder}")


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def write_whole(path, text):
    """The file has its old content or the new one, never a part."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def run(command, timeout_s, environment=None):
    """Standard output of a program. Its output goes through files, so that what it printed before a time limit is not lost."""
    command = [str(word) for word in command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, errors="replace",
                              env={**os.environ, **(environment or {})})
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{command[0]} took more than {timeout_s} s") from error
    if done.returncode != 0:
        last = "\n".join((done.stdout[-1500:] + done.stderr[-3000:]).splitlines()[-25:])
        raise Failure(f"{' '.join(command)} ended with status {done.returncode}:\n{last}")
    return done.stdout


def last_json(text):
    """The last line that is a JSON object."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        raise Failure("the program printed no result")
    return json.loads(lines[-1])


QUERY = ["memory.used", "clocks.sm", "power.draw", "utilization.gpu"]


def num_gpus():
    """By NVIDIA's driver; 0 without one."""
    if not shutil.which("nvidia-smi"):
        return 0
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return len(done.stdout.splitlines()) if done.returncode == 0 else 0


class GpuMonitor:
    """Samples of nvidia-smi, of the first `gpus` GPUs that programs see, while one runs; without an NVIDIA driver there are none."""

    def __init__(self, gpus=1):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.devices = ",".join((visible.split(",") if visible else list(map(str, range(gpus))))[:gpus])

    def __enter__(self):
        self.samples, self.process = [], None
        self.idle_mib = self.once()
        if self.idle_mib is not None:
            self.process = subprocess.Popen(
                ["nvidia-smi", "-i", self.devices, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits", "-lms", "200"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.thread = threading.Thread(target=self.read, daemon=True)
            self.thread.start()
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.thread.join()

    def once(self):
        """What the GPU that has most in use has in use."""
        if not shutil.which("nvidia-smi"):
            return None
        done = subprocess.run(["nvidia-smi", "-i", self.devices, "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, check=False)
        return max(map(float, done.stdout.split())) if done.returncode == 0 else None

    def read(self):
        for line in self.process.stdout:
            try:
                self.samples.append([float(value) for value in line.split(",")])
            except ValueError:
                pass  # "[N/A]"

    def summary(self):
        """Memory that the program took by the driver's count, on the GPU where it took most, and medians of clock and power of busy
        GPUs."""
        if not self.samples:
            return {"driver_bytes": None, "clock_mhz": None, "power_w": None}
        busy = [sample for sample in self.samples if sample[3] >= 90] or self.samples
        return {"driver_bytes": (max(sample[0] for sample in self.samples) - self.idle_mib) * 2**20,
                "clock_mhz": statistics.median(sample[1] for sample in busy),
                "power_w": statistics.median(sample[2] for sample in busy)}


def machine():
    """What the figures were measured on."""
    facts = {"cores": os.cpu_count(), "gpu": None, "driver": None}
    if shutil.which("nvidia-smi"):
        done = subprocess.run(["nvidia-smi", "-i", "0", "--query-gpu=name,driver_version,memory.total,power.limit",
                               "--format=csv,noheader"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            name, facts["driver"], facts["memory"], facts["power_limit"] = [x.strip() for x in done.stdout.split(",")[:4]]
            facts["gpu"] = name
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    facts["cpu"] = models[0] if models else "unknown"
    return facts


def write_random_tokens(prefix, vocabulary, count=1 << 22, seed=1):
    """A .bin/.idx pair (src/data/indexed_dataset.h) of one document of uniform ids below `vocabulary`. Text would train the same
    matrices; with random ids nothing depends on what was learnt."""
    prefix = pathlib.Path(prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    ids = array.array("i", random.Random(seed).choices(range(vocabulary), k=count))
    with open(f"{prefix}.bin", "wb") as file:
        ids.tofile(file)
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 4, 1, 2, count, 0, 0, 1))


def run_file(case):
    """Of a case on one GPU."""
    folders = {"experts": EXPERT_CASES, "hybrids": HYBRID_CASES, "finetune": FINETUNE_CASES}
    folder = next((name for name, cases in folders.items() if case in cases), "")
    return FOLDER / "cases" / folder / f"{case}.toml"


def with_small_experts(changes):
    """What makes a case small, of a model with experts."""
    return {key: value for key, value in changes.items() if key != "model.ffn"} | SMALL_EXPERTS


def with_small_latents(changes):
    """The same, of a model with latent attention, too."""
    return {key: value for key, value in changes.items() if key not in ("model.kv_heads", "model.head_size")} | SMALL_LATENTS


def with_small_states(changes, case):
    """The same, of a model with states, and with attention and MLPs if its preset has them."""
    pattern = SMALL_HYBRIDS[case]["model.pattern"]
    unused = ["model.layers", *(["model.ffn"] if "-" not in pattern else []),
              *(["model.heads", "model.kv_heads", "model.head_size"] if "*" not in pattern else [])]
    return {key: value for key, value in changes.items() if key not in unused} | SMALL_STATES | SMALL_HYBRIDS[case]


def settings(case, small, device):
    """Values of `--set` for a case: none but the device, or all that makes it small."""
    changes = {"runtime.device": device}
    if small:
        changes |= SMALL
        changes["model.kv_heads"] = 4 if case.startswith("gpt2") else 2
    changes = with_small_experts(changes) if small and case in EXPERT_CASES else changes
    changes = with_small_states(changes, case) if small and case in HYBRID_CASES else changes
    return with_small_latents(changes) if small and case.startswith("deepseek") else changes


def as_arguments(changes):
    return [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
