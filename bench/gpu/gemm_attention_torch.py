#!/usr/bin/env python3
"""PyTorch's side of gemm_attention_bench.cpp: the same shapes, random data, CUDA graphs, medians."""
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

REPLAYS = 9
REPLAY_MS = 20.0


def median_ms(work, sets):
    """Median time of work(set) over replays of a graph of many."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for operands in sets:
            work(*operands)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work(*sets[0])
        end.record()
        end.synchronize()
        launches = max(2, min(400, int(REPLAY_MS / begin.elapsed_time(end))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(launches):
                work(*sets[i % len(sets)])
        times = []
        for replay in range(REPLAYS + 1):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if replay > 0:
                times.append(begin.elapsed_time(end) / launches)
    return statistics.median(times)


def uniform(*shape, dtype=torch.bfloat16):
    return torch.rand(*shape, device="cuda", dtype=torch.float32).mul_(2).sub_(1).to(dtype)


def products():
    print("| product | us | TFLOP/s |\n| --- | --- | --- |")
    for rows, out, width in [(8192, 8192, 8192), (8192, 12288, 4096), (8192, 4096, 14336), (8192, 28672, 4096),
                             (4096, 4096, 4096), (8192, 2560, 4096), (16384, 3072, 2048), (16384, 16384, 2048),
                             (4096, 128256, 2048)]:
        sets = [(uniform(rows, width), uniform(out, width), torch.empty(rows, out, device="cuda", dtype=torch.bfloat16))
                for _ in range(2)]
        ms = median_ms(lambda x, w, y: torch.mm(x, w.t(), out=y), sets)
        print(f"| linear {rows}x{out}x{width} | {ms * 1e3:.1f} | {2 * rows * out * width / ms / 1e9:.0f} |", flush=True)


def attention():
    print("\n| sequences x tokens, heads/kv, head | forward TFLOP/s | backward |\n| --- | --- | --- |")
    for batches, tokens, heads, kv_heads, size in [(4, 2048, 32, 8, 128), (2, 4096, 32, 8, 128), (1, 8192, 32, 8, 128),
                                                   (2, 4096, 32, 8, 64), (2, 8192, 32, 8, 64), (16, 1024, 12, 12, 64),
                                                   (16, 1024, 28, 4, 128), (2, 4096, 32, 8, 96)]:
        def heads_of(count):
            return uniform(batches, tokens, count, size).transpose(1, 2).requires_grad_()

        q, k, v = heads_of(heads), heads_of(kv_heads), heads_of(kv_heads)
        flops = 2 * batches * tokens * heads * size * 0.5 * (tokens + 1)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            def forward(q, k, v):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

            with torch.no_grad():
                forward_ms = median_ms(forward, [(q, k, v)])
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                out = forward(q, k, v)
                d_out = uniform(batches, tokens, heads, size).transpose(1, 2)
                for _ in range(3):
                    torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                times = []
                for _ in range(REPLAYS):
                    begin.record()
                    for _ in range(8):
                        torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)
                    end.record()
                    end.synchronize()
                    times.append(begin.elapsed_time(end) / 8)
                backward_ms = statistics.median(times)
        print(f"| {batches} x {tokens}, {heads}/{kv_heads}, {size} | {2 * flops / forward_ms / 1e9:.0f} | "
              f"{5 * flops / backward_ms / 1e9:.0f} |", flush=True)


if __name__ == "__main__":
    print(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}\n")
    products()
    attention()
