#!/usr/bin/env python3
"""The other side of end_to_end.py: a training step of the same model in PyTorch, as somebody who knows PyTorch writes it.

bf16 matrices with fp32 main weights, kept by FSDP2 or by autocast; torch.compile per block and for the loss; cuDNN's or flash
attention, or the package flash-attn-4, which braid's build compiles for Hopper too; fused AdamW; gradients accumulated in fp32 and clipped to norm 1. Nothing waits for the GPU between steps.

A model file with `lora` is fine-tuned by the package peft instead: frozen matrices, adapters and their moments in bf16. In one with
`states`, Mamba-2 layers run the Triton kernels of the package mamba-ssm where it is installed.

usage: torch_llm.py --model JSON_OF_braid_bench_floor_--describe [--weights fsdp|autocast|float32] [--attention NAME|fastest]
                    [--scan mamba-ssm|plain] [--chunk N] [--fp8 RECIPE_OF_torchao] [--microbatch N] [--steps N] [--warmup N] [--device cuda|cpu] [--eager]
Prints one JSON line. Also a module: loss_curve/torch_losses.py trains the same models on real text.
"""
import argparse
import contextlib
import json
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_adapters
import torch_hybrids
from torch_experts import ExpertMlp, check_parameters

ATTENTIONS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
              "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
FLASH_ATTN_4 = "flash-attn-4"


def sdpa(q, k, v, scale=None):
    """Causal attention of [B, H, T, D] by PyTorch; scores are multiplied by `scale`, by default D ** -0.5."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


@torch.compiler.disable
def flash_attn_4(q, k, v, scale=None):
    """The same by the package flash-attn-4; its backward adds with atomics, which is its default and faster."""
    from flash_attn.cute import flash_attn_func
    mixed = flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), softmax_scale=scale, causal=True)
    return (mixed[0] if isinstance(mixed, tuple) else mixed).transpose(1, 2)


class RmsNorm(nn.Module):
    """Computed in fp32, rounded once, whatever the types of input and weight."""

    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.epsilon)
        return (y * self.weight.float()).to(x.dtype)


class AllHeadsNorm(RmsNorm):
    """Over all heads [., H, D] of a token together."""

    def forward(self, x):
        return super().forward(x.flatten(-2)).view(x.shape)


class LayerNorm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.epsilon = epsilon

    def forward(self, x):
        y = F.layer_norm(x.float(), (x.shape[-1],), self.weight.float(), self.bias.float(), self.epsilon)
        return y.to(x.dtype)


def rotate(x, cos, sin):
    """Pairs (i, i + half) of each head turned by the angles of the position; x [B, H, T, D]."""
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def rotate_neighbours(x, cos, sin):
    """The same of pairs (2 i, 2 i + 1), as in DeepSeek's models."""
    first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2).to(x.dtype)


def make_head_norm(shape, heads):
    """The norm of query or key heads, or None."""
    size, epsilon = shape["head_size"], shape["norm_epsilon"]
    if shape["family"] == "qwen3":
        return RmsNorm(size, epsilon)
    return AllHeadsNorm(heads * size, epsilon) if shape["family"] == "olmoe" else None


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads, self.kv_heads, self.size = shape["heads"], shape["kv_heads"], shape["head_size"]
        gpt2 = shape["family"] == "gpt2"
        self.attend = flash_attn_4 if shape.get("attention") == FLASH_ATTN_4 else sdpa
        self.qkv = nn.Linear(shape["width"], (self.heads + 2 * self.kv_heads) * self.size, bias=shape["qkv_bias"])
        self.proj = nn.Linear(self.heads * self.size, shape["width"], bias=gpt2)
        self.q_norm, self.k_norm = make_head_norm(shape, self.heads), make_head_norm(shape, self.kv_heads)

    def forward(self, x, angles):
        batches, tokens, _ = x.shape
        heads = self.qkv(x).view(batches, tokens, -1, self.size)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), 2)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        if angles is not None:
            q, k = rotate(q, *angles), rotate(k, *angles)
        mixed = self.attend(q, k, v)
        return self.proj(mixed.transpose(1, 2).reshape(batches, tokens, -1))


class LatentAttention(nn.Module):
    """Multi-head latent attention: DeepSeek-V2, 2024, section 2.1."""

    def __init__(self, shape):
        super().__init__()
        sizes = shape["latents"]
        self.heads, self.plain, self.rotated, self.value = shape["heads"], sizes["plain"], sizes["rotated"], sizes["value"]
        size = self.plain + self.rotated
        self.scale = sizes["score_scale"] * size ** -0.5
        self.attend = flash_attn_4 if shape.get("attention") == FLASH_ATTN_4 else sdpa
        if sizes["q_rank"]:
            self.q_a = nn.Linear(shape["width"], sizes["q_rank"], bias=False)
            self.q_norm = RmsNorm(sizes["q_rank"], shape["norm_epsilon"])
        else:
            self.q_a = self.q_norm = nn.Identity()
        self.q = nn.Linear(sizes["q_rank"] or shape["width"], self.heads * size, bias=False)
        self.kv_a = nn.Linear(shape["width"], sizes["kv_rank"] + self.rotated, bias=False)
        self.kv_norm = RmsNorm(sizes["kv_rank"], shape["norm_epsilon"])
        self.kv_b = nn.Linear(sizes["kv_rank"], self.heads * (self.plain + self.value), bias=False)
        self.proj = nn.Linear(self.heads * self.value, shape["width"], bias=False)

    def forward(self, x, angles):
        batches, tokens, _ = x.shape
        heads = lambda rows: rows.view(batches, tokens, self.heads, -1).transpose(1, 2)
        q_plain, q_rotated = heads(self.q(self.q_norm(self.q_a(x)))).split((self.plain, self.rotated), -1)
        latent, k_rotated = self.kv_a(x).split((self.kv_norm.weight.shape[0], self.rotated), -1)
        k_plain, v = heads(self.kv_b(self.kv_norm(latent))).split((self.plain, self.value), -1)
        q = torch.cat((q_plain, rotate_neighbours(q_rotated, *angles)), -1)
        k_rotated = rotate_neighbours(k_rotated.unsqueeze(1), *angles)
        k = torch.cat((k_plain, k_rotated.expand(-1, self.heads, -1, -1)), -1)
        mixed = self.attend(q, k, v, self.scale)
        return self.proj(mixed.transpose(1, 2).reshape(batches, tokens, -1))


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gpt2 = shape["family"] == "gpt2"
        self.fc1 = nn.Linear(shape["width"], shape["ffn"] * (1 if self.gpt2 else 2), bias=self.gpt2)
        self.fc2 = nn.Linear(shape["ffn"], shape["width"], bias=self.gpt2)

    def forward(self, x):
        hidden = self.fc1(x)
        if self.gpt2:
            return self.fc2(F.gelu(hidden, approximate="tanh"))
        gate, up = hidden.chunk(2, -1)
        return self.fc2(F.silu(gate) * up)


class SquaredReluMlp(nn.Module):
    """Without a gate, as in Nemotron-H."""

    def __init__(self, shape):
        super().__init__()
        self.fc1 = nn.Linear(shape["width"], shape["ffn"], bias=False)
        self.fc2 = nn.Linear(shape["ffn"], shape["width"], bias=False)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)).square())


def make_norm(shape):
    kind = LayerNorm if shape["family"] == "gpt2" else RmsNorm
    return kind(shape["width"], shape["norm_epsilon"])


class Block(nn.Module):
    def __init__(self, shape, index=0):
        super().__init__()
        experts = shape.get("experts")
        has_experts = experts and index >= experts.get("dense_layers", 0)
        self.attention_norm, self.attention = make_norm(shape), (LatentAttention if shape.get("latents") else Attention)(shape)
        self.mlp_norm, self.mlp = make_norm(shape), ExpertMlp(shape) if has_experts else Mlp(shape)

    def forward(self, x, angles):
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.mlp(self.mlp_norm(x))


class HybridBlock(nn.Module):
    """A layer of a model with states: blocks by name, each behind a norm."""

    def __init__(self, shape, names):
        super().__init__()
        kinds = {"attention": Attention, "mamba": torch_hybrids.Mamba, "mlp": SquaredReluMlp if shape["family"] == "nemotron_h" else Mlp}
        self.names = names.split("+")
        for name in self.names:
            if name not in kinds:
                raise SystemExit(f"torch_llm.py: a layer {names} beside layers with states: there are {', '.join(kinds)} only")
            self.add_module(f"{name}_norm", make_norm(shape))
            self.add_module(name, kinds[name](shape))

    def forward(self, x, angles):
        for name in self.names:
            rows, block = getattr(self, f"{name}_norm")(x), getattr(self, name)
            x = x + (block(rows, angles) if name == "attention" else block(rows))
        return x


def make_layers(shape):
    if shape.get("states"):
        return nn.ModuleList(HybridBlock(shape, names) for names in shape["pattern"])
    return nn.ModuleList(Block(shape, index) for index in range(shape["layers"]))


class Model(nn.Module):
    """Names of parameters as in braid's checkpoints, but for `embedding`, `positions`, `norm` and `output` (see NAMES); Llama's fc1
    has its gate rows in front of its up rows here, and in turns with them there."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.columns = shape["vocabulary"]  # of the logits that take part in the loss
        rows = shape["padded_vocabulary"]
        self.embedding = nn.Embedding(rows, shape["width"])
        self.positions = nn.Embedding(shape["max_positions"], shape["width"]) if shape["family"] == "gpt2" else None
        self.layers = make_layers(shape)
        self.norm = make_norm(shape)
        self.output = None if shape["tied_embeddings"] else nn.Linear(shape["width"], rows, bias=False)

    def angles(self, tokens, device):
        """Cosine and sine [T, D / 2] of the rotary angles, or None."""
        if self.shape["rope_frequencies"] is None:
            return None
        frequencies = torch.tensor(self.shape["rope_frequencies"], device=device, dtype=torch.float64)
        turned = torch.outer(torch.arange(tokens, device=device).double(), frequencies)
        amplitude = self.shape["rope_amplitude"]
        return (amplitude * turned.cos()).float(), (amplitude * turned.sin()).float()

    def forward(self, tokens, labels, angles, compute_type, loss):
        x = self.embedding(tokens).to(compute_type)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]].to(compute_type)
        for layer in self.layers:
            x = layer(x, angles)
        weight = self.embedding.weight if self.output is None else self.output.weight
        return loss(F.linear(self.norm(x), weight), labels, self.columns)

    def initialise(self, generator):
        """Normal matrices, ones and zeros elsewhere; smaller where a branch joins the residual stream."""
        blocks = sum(name.endswith("_norm") for layer in self.layers for name, _ in layer.named_children())
        residual = blocks ** -0.5
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                if local.dim() > 1:
                    joins = name.endswith((".proj.weight", ".out_proj.weight", "fc2.weight", "experts.fc2"))
                    local.normal_(0, self.shape["init_std"] * (residual if joins else 1), generator=generator)
                else:
                    local.fill_(1 if "norm.weight" in name else 0)
            for module in self.modules():
                if isinstance(module, torch_hybrids.Mamba):
                    module.initialise(generator)


NAMES = {"embedding.weight": "embedding.tokens", "positions.weight": "embedding.positions", "norm.weight": "head.norm.weight",
         "norm.bias": "head.norm.bias", "output.weight": "head.output"}


def cross_entropy(logits, labels, columns):
    """Mean over the labels; columns beyond are padding, as if they were not there."""
    return F.cross_entropy(logits.flatten(0, -2)[:, :columns].float(), labels.flatten())


def convert_to_fp8(layers, recipe):
    """Makes the matrices of layers FP8 by the package torchao; the head and the embedding stay as they are, as in braid."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    convert_to_float8_training(layers, config=Float8LinearConfig.from_recipe_name(recipe))


class Trainer:
    """One training step of a model under the given settings; loss and gradient norm stay on the device."""

    def __init__(self, shape, device, weights="fsdp", compiled=True, seed=1, fp8=None, optimizer="adamw"):
        self.device, self.weights = torch.device(device), weights
        self.compute_type = torch.float32 if weights == "float32" else torch.bfloat16
        with torch.device("meta"):
            self.model = Model(shape)
        lora = shape.get("lora")
        if lora:
            torch_adapters.add_adapters(self.model, lora)
        check_parameters(self.model, shape)
        if fp8:
            convert_to_fp8(self.model.layers, fp8)
        if compiled:
            for layer in self.model.layers:
                layer.compile()
        self.loss = torch.compile(cross_entropy) if compiled else cross_entropy
        if weights == "fsdp" and not lora:
            self.shard()
        self.model.to_empty(device=self.device)
        self.model.initialise(torch.Generator(self.device).manual_seed(seed))
        if lora:
            torch_adapters.initialise_adapters(self.model)
        self.angles = self.model.angles(shape["sequence"], self.device)
        self.clip_norm = shape["clip_norm"]
        self.optimizers = self.make_optimizers(shape, optimizer)

    def make_optimizers(self, shape, name):
        """AdamW of all weights, or of those that Muon leaves: it takes the matrices of layers."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        layers = {id(p) for p in self.model.layers.parameters()}
        by_muon = [p for p in trained if p.dim() == 2 and id(p) in layers] if name == "muon" else []
        taken = {id(p) for p in by_muon}
        decayed = [p for p in trained if p.dim() > 1 and id(p) not in taken]
        others = [p for p in trained if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": shape["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
        optimizers = [torch.optim.AdamW(groups, lr=shape["learning_rate"], betas=(shape["beta1"], shape["beta2"]),
                                        eps=shape["epsilon"], fused=True)]
        if by_muon:
            optimizers.append(torch.optim.Muon(by_muon, lr=shape["learning_rate"], weight_decay=shape["weight_decay"],
                                               adjust_lr_fn="match_rms_adamw"))
        return optimizers

    def shard(self):
        """On one GPU nothing is shared out: FSDP2 keeps fp32 weights beside the bf16 ones and fp32 gradients."""
        if not dist.is_initialized():
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        mesh = dist.device_mesh.init_device_mesh(self.device.type, (1,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for module in [*self.model.layers, self.model]:
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=False)

    def autocast(self):
        return torch.autocast(self.device.type, torch.bfloat16) if self.weights == "autocast" else contextlib.nullcontext()

    def microbatch_loss(self, tokens, labels):
        with self.autocast():
            return self.model(tokens, labels, self.angles, self.compute_type, self.loss)

    def step(self, microbatches, learning_rate=None):
        """`microbatches`: pairs of tokens and labels [B, T]. Returns the mean loss and the gradient norm."""
        total = torch.zeros((), device=self.device)
        for i, (tokens, labels) in enumerate(microbatches):
            if hasattr(self.model, "set_is_last_backward"):  # FSDP2's
                last = i == len(microbatches) - 1
                self.model.set_requires_gradient_sync(last)
                self.model.set_is_last_backward(last)
                self.model.set_reshard_after_backward(last)
            loss = self.microbatch_loss(tokens, labels) / len(microbatches)
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm, foreach=True)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] if learning_rate is None else learning_rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return total, norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def attention_ms(backend, shape, batches, device):
    """Forward and backward of one layer's attention; infinite if the backend cannot."""
    latents = shape.get("latents")
    size, value = (latents["plain"] + latents["rotated"], latents["value"]) if latents else (shape["head_size"],) * 2
    kv_heads = shape["heads" if latents else "kv_heads"]
    sizes = [(batches, shape["sequence"], *of) for of in ((shape["heads"], size), (kv_heads, size), (kv_heads, value))]
    q, k, v = (torch.randn(s, device=device, dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for s in sizes)
    gradient = torch.randn((*sizes[0][:3], value), device=device, dtype=torch.bfloat16).transpose(1, 2)
    times = []
    try:
        with sdpa_kernel(backend):
            for _ in range(8):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                               enable_gqa=shape["heads"] != kv_heads).backward(gradient)
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end))
    except RuntimeError:
        return float("inf")
    return statistics.median(times[3:])


def choose_attention(name, shape, batches, device):
    """The backend to use, and the milliseconds by which "fastest" chose; None for a model without attention."""
    if not shape["heads"]:
        return None, {}
    if name != "fastest":
        return name, {}
    if device != "cuda":
        return "math", {}
    times = {each: attention_ms(ATTENTIONS[each], shape, batches, device) for each in ("cudnn", "flash")}
    return min(times, key=times.get), times


def random_microbatch(shape, generator, device):
    ids = torch.randint(shape["vocabulary"], (shape["microbatch"], shape["sequence"] + 1), generator=generator, device=device)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


class Clock:
    """Ends of steps by the device's clock, so that nothing waits for it; by the host's on a CPU."""

    def __init__(self, device):
        self.cuda = device == "cuda"
        self.marks = []

    def mark(self):
        if self.cuda:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def step_ms(self):
        pairs = zip(self.marks, self.marks[1:])
        return [a.elapsed_time(b) if self.cuda else (b - a) * 1e3 for a, b in pairs]


def measure(trainer, shape, arguments):
    """Times `steps` steps after `warmup` ones."""
    generator = torch.Generator(arguments.device).manual_seed(1)

    def step():
        return trainer.step([random_microbatch(shape, generator, arguments.device) for _ in range(shape["microbatches"])])

    losses = [step()[0] for _ in range(arguments.warmup)]
    clock = Clock(arguments.device)
    clock.wait()
    begin = time.perf_counter()
    clock.mark()
    for _ in range(arguments.steps):
        losses.append(step()[0])
        clock.mark()
    clock.wait()
    seconds = time.perf_counter() - begin
    tokens = shape["microbatch"] * shape["microbatches"] * shape["sequence"]
    return {"tokens_per_s": tokens * arguments.steps / seconds, "step_ms": clock.step_ms(), "loss": losses[-1].item()}


def set_scan(shape, arguments):
    """How states are scanned, in a model that has them."""
    if not shape.get("states"):
        if arguments.scan or arguments.chunk:
            raise SystemExit("torch_llm.py: --scan and --chunk: the model has no states")
        return
    shape["scan"] = arguments.scan or torch_hybrids.fastest_scan(arguments.device)
    shape["states"]["chunk"] = arguments.chunk or shape["states"]["chunk"]


def describe_scan(shape):
    return {"scan": torch_hybrids.scan_version(shape["scan"]), "chunk": shape["states"]["chunk"]} if shape.get("states") else {}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="JSON file of braid_bench_floor --describe")
    parser.add_argument("--weights", choices=["fsdp", "autocast", "float32"], default="fsdp")
    parser.add_argument("--attention", choices=[*ATTENTIONS, FLASH_ATTN_4, "fastest"], default="fastest")
    parser.add_argument("--scan", choices=torch_hybrids.SCANS, help="of states (mamba-ssm on a GPU where it is installed, else plain)")
    parser.add_argument("--chunk", type=int, help="tokens that a scan of states takes together (the model file's)")
    parser.add_argument("--fp8", choices=["tensorwise", "rowwise"], help="FP8 matrices in layers, by torchao")
    parser.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw", help="muon: of the matrices of layers (torch.optim.Muon)")
    parser.add_argument("--microbatch", type=int, help="instead of the model file's; the step keeps its sequences")
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    begin = time.perf_counter()
    with open(arguments.model, encoding="utf-8") as file:
        shape = json.load(file)
    if shape.get("experts") and arguments.weights == "autocast":
        raise SystemExit("torch_llm.py: --weights autocast: does not cast what experts multiply; use fsdp")
    if arguments.microbatch:
        if shape["global_batch"] % arguments.microbatch:
            raise SystemExit(f"torch_llm.py: --microbatch {arguments.microbatch} does not divide {shape['global_batch']}")
        shape["microbatch"] = arguments.microbatch
        shape["microbatches"] = shape["global_batch"] // arguments.microbatch
    set_scan(shape, arguments)
    attention, attention_times = choose_attention(arguments.attention, shape, shape["microbatch"], arguments.device)
    shape["attention"] = attention
    with sdpa_kernel(ATTENTIONS.get(attention, SDPBackend.MATH)):
        trainer = Trainer(shape, arguments.device, arguments.weights, not arguments.eager, fp8=arguments.fp8, optimizer=arguments.optimizer)
        trainer.model.columns = shape["padded_vocabulary"]  # aligned rows are faster, and padding is learned away
        result = measure(trainer, shape, arguments)
    cuda = arguments.device == "cuda"
    print(json.dumps({
        "version": torch.__version__, "weights": arguments.weights, "fp8": arguments.fp8, "optimizer": arguments.optimizer, "attention": attention, "attention_ms": attention_times,
        **describe_scan(shape),
        "compiled": not arguments.eager, "microbatch": shape["microbatch"], "warmup": arguments.warmup,
        "allocated_bytes": torch.cuda.max_memory_allocated() if cuda else None,
        "reserved_bytes": torch.cuda.max_memory_reserved() if cuda else None,
        "total_s": time.perf_counter() - begin, **result}))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
