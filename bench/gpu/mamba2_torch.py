#!/usr/bin/env python3
"""The other side of `braid_bench_memory_bound mamba2`: the part of a Mamba-2 layer between its two projections, in PyTorch with the Triton
kernels of the package mamba-ssm, which must be installed. Its convolution is compiled by torch.compile; the package causal-conv1d is not
needed.

usage: mamba2_torch.py [CHUNK...]
Prints a table of microseconds: forward, backward, and the chunk size that was fastest of those given (128 and 256 if none is). The backward
has what the forward kept (the convolved x, B and C among it); braid's computes them again.
"""
import statistics
import sys

import torch
from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

import torch_hybrids

LAYERS = {"nemotron-h-8b": (1, 8192, 128, 8), "nemotron-h-4b": (1, 8192, 112, 8), "mamba2-2.7b": (2, 4096, 80, 1)}
HEAD_SIZE, STATE, TAPS, EPSILON = 64, 128, 4, 1e-5
CHUNKS = (128, 256)
REPEATS, WARMUP = 20, 5
convolve = torch.compile(torch_hybrids.convolve)


class Layer:
    """Random weights and input of one layer."""

    def __init__(self, sequences, tokens, heads, groups):
        self.heads, self.groups, self.inner = heads, groups, heads * HEAD_SIZE
        factor = groups * STATE
        self.widths = (self.inner, self.inner + 2 * factor, heads)
        self.parts = (self.inner, factor, factor)
        self.zxbcdt = self.random(sequences, tokens, sum(self.widths))
        self.taps, self.bias = self.random(self.widths[1], TAPS), self.random(self.widths[1])
        self.dt_bias, self.a_log, self.skip = (self.random(heads) for _ in range(3))
        self.norm = self.random(self.inner)
        self.gradient = torch.rand(sequences, tokens, self.inner, device="cuda", dtype=torch.bfloat16)

    @staticmethod
    def random(*shape):
        return torch.rand(*shape, device="cuda", dtype=torch.bfloat16).mul(0.95).add(0.05).requires_grad_()

    def forward(self, chunk):
        z, xbc, dt = self.zxbcdt.split(self.widths, -1)
        x, b, c = convolve(xbc, self.taps, self.bias).split(self.parts, -1)
        heads = lambda part, count: part.unflatten(-1, (count, -1))
        y = mamba_chunk_scan_combined(heads(x, self.heads), dt, -torch.exp(self.a_log.float()), heads(b, self.groups),
                                      heads(c, self.groups), chunk, D=self.skip, dt_bias=self.dt_bias, dt_softplus=True)
        return rmsnorm_fn(y.flatten(-2), self.norm, None, z=z, eps=EPSILON, group_size=self.inner // self.groups,
                          norm_before_gate=False)

    def times(self, chunk):
        """Microseconds of forward and backward: medians."""
        samples = []
        for _ in range(WARMUP + REPEATS):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            marks[0].record()
            y = self.forward(chunk)
            marks[1].record()
            y.backward(self.gradient)
            marks[2].record()
            marks[2].synchronize()
            samples.append([1e3 * a.elapsed_time(b) for a, b in zip(marks, marks[1:])])
        return [statistics.median(column) for column in zip(*samples[WARMUP:])]


def main():
    chunks = [int(word) for word in sys.argv[1:]] or CHUNKS
    print("| layer | forward us | backward us | chunk |\n| --- | --- | --- | --- |")
    for name, sizes in LAYERS.items():
        layer = Layer(*sizes)
        times = {chunk: layer.times(chunk) for chunk in chunks}
        chunk = min(times, key=lambda each: sum(times[each]))
        print(f"| {name} | {times[chunk][0]:.0f} | {times[chunk][1]:.0f} | {chunk} |", flush=True)


if __name__ == "__main__":
    main()
