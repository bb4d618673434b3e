#!/usr/bin/python3
"""Tokens per second of a GPT-2-shaped training step in PyTorch eager on the CPU: the number that braid is held against.

One step: forward, backward, gradient clipping, AdamW, on random tokens, in fp32. Model: learned positions, pre-LayerNorm
blocks with biases, causal attention, GELU (tanh), head tied to the token embedding. Prints one JSON line.

Debian 12's python3-torch (1.13) has no compiled or fused attention on the CPU, so `--attention` offers the ways that eager
code has; the fastest three are within 2% of each other. A current torch has fused attention, and can compile (`--compile`).
With `--start FILE` weights and tokens come from `naive_gpt2 --write-start FILE`, so that losses can be compared.
"""

import argparse
import json
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=20, help="timed steps")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the timed ones")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--attention", choices=sorted(ATTENTIONS), default="library")
    parser.add_argument("--adamw", choices=["foreach", "loop"], default="foreach")
    parser.add_argument("--compile", action="store_true", help="the model by torch.compile, which needs torch 2")
    parser.add_argument("--start", help="weights and tokens written by naive_gpt2 --write-start")
    parser.add_argument("--profile", action="store_true", help="print time by operator to stderr")
    return parser.parse_args()


def attend_masked(q, k, v, mask, scale):
    """Textbook: scores, masked_fill, softmax, values."""
    scores = (q @ k.transpose(-2, -1)) * scale
    return scores.masked_fill(mask < 0, -math.inf).softmax(-1) @ v


def attend_baddbmm(q, k, v, mask, scale):
    """Scale and mask ride in the matrix product, so two passes over the scores are saved."""
    scores = torch.baddbmm(mask, q.flatten(0, 1), k.flatten(0, 1).transpose(-2, -1), alpha=scale)
    return (scores.softmax(-1) @ v.flatten(0, 1)).view_as(q)


def attend_library(q, k, v, mask, scale):
    """Fused since torch 2.0; torch 1.13 offers it under a private name, as several operators."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch._C._nn._scaled_dot_product_attention(q, k, v, None, 0.0, False, True)[0]


def attend_halves(q, k, v, mask, scale):
    """As baddbmm, but the first half of the queries never meets the second half of the keys."""
    half = q.shape[2] // 2
    low = attend_baddbmm(q[:, :, :half], k[:, :, :half], v[:, :, :half], mask[:half, :half], scale)
    high = attend_baddbmm(q[:, :, half:], k, v, mask[half:], scale)
    return torch.cat([low, high], 2)


ATTENTIONS = {"masked": attend_masked, "baddbmm": attend_baddbmm, "library": attend_library, "halves": attend_halves}


class Block(nn.Module):
    def __init__(self, width, heads, attend):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x, mask):
        batch, tokens, width = x.shape
        head_size = width // self.heads
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, head_size)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        mixed = self.attend(q, k, v, mask, 1 / math.sqrt(head_size))
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, arguments):
        super().__init__()
        width, attend = arguments.width, ATTENTIONS[arguments.attention]
        self.tokens = nn.Embedding(arguments.vocabulary, width)
        self.positions = nn.Embedding(arguments.sequence, width)
        self.blocks = nn.ModuleList(Block(width, arguments.heads, attend) for _ in range(arguments.layers))
        self.norm = nn.LayerNorm(width)
        mask = torch.full((arguments.sequence, arguments.sequence), -math.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, labels):
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x, self.mask)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1))


def make_optimizer(model, arguments):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), eps=1e-8, foreach=arguments.adamw == "foreach")


def load_start(model, path, arguments):
    """File of naive_gpt2: batch * (sequence + 1) int32 tokens, then all parameters in fp32 in the order of
    Gpt2.parameters()."""
    num_tokens = arguments.batch * (arguments.sequence + 1)
    with open(path, "rb") as file:
        content = file.read()
    tokens = torch.frombuffer(bytearray(content[: 4 * num_tokens]), dtype=torch.int32).long()
    weights = torch.frombuffer(bytearray(content[4 * num_tokens :]), dtype=torch.float32)
    expected = sum(p.numel() for p in model.parameters())
    if weights.numel() != expected:
        sys.exit(f"{path} holds {weights.numel()} weights, the model has {expected}")
    with torch.no_grad():
        at = 0
        for parameter in model.parameters():
            parameter.copy_(weights[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()
    return tokens.view(arguments.batch, arguments.sequence + 1)


def train_step(forward, optimizer, tokens):
    loss = forward(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def profile_step(forward, optimizer, tokens):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            train_step(forward, optimizer, tokens)
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=30), file=sys.stderr)


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads or torch.multiprocessing.cpu_count())
    torch.manual_seed(1)
    model = Gpt2(arguments)
    optimizer = make_optimizer(model, arguments)
    forward = torch.compile(model) if arguments.compile else model
    if arguments.start:
        tokens = load_start(model, arguments.start, arguments)
    else:
        tokens = torch.randint(arguments.vocabulary, (arguments.batch, arguments.sequence + 1))
    losses = [train_step(forward, optimizer, tokens) for _ in range(arguments.warmup)]
    if arguments.profile:
        profile_step(forward, optimizer, tokens)
    seconds = []
    for _ in range(arguments.steps):
        begin = time.perf_counter()
        losses.append(train_step(forward, optimizer, tokens))
        seconds.append(time.perf_counter() - begin)
    speeds = [arguments.batch * arguments.sequence / s for s in seconds]
    print(json.dumps({
        "engine": f"torch {torch.__version__} {'compiled' if arguments.compile else 'eager'}",
        "tokens_per_s": round(statistics.median(speeds), 1),
        "tokens_per_s_min": round(min(speeds), 1),
        "tokens_per_s_max": round(max(speeds), 1),
        "steps": arguments.steps,
        "threads": torch.get_num_threads(),
        "attention": arguments.attention,
        "adamw": arguments.adamw,
        "first_losses": [round(loss, 6) for loss in losses[:3]],
    }))


if __name__ == "__main__":
    main()
