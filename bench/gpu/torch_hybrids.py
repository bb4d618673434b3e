"""Mamba-2 layers for torch_llm.py: two projections, and between them a compiled convolution, the scan of states and a gated norm.

Scan and norm are either the Triton kernels of the package mamba-ssm ("mamba-ssm"), or PyTorch, to be compiled ("plain"): states in chunks of
tokens, as in Dao and Gu, Transformers are SSMs, 2024, section 6. The package causal-conv1d is not needed.

Letters in shapes: N sequences, T tokens, H heads of P features, G groups of heads with the same factors B and C of S elements, C channels
of the convolution, K taps.
"""
import importlib.util
import math

import torch
import torch.nn.functional as F
from torch import nn

SCANS = ("mamba-ssm", "plain")
DECAYS = 1.0, 16.0  # initial values, uniform: those of the published code
STEPS = 1e-3, 0.1  # the same, log-uniform


def fastest_scan(device):
    """The package's kernels where they can run."""
    return "mamba-ssm" if torch.device(device).type == "cuda" and importlib.util.find_spec("mamba_ssm") else "plain"


def scan_version(scan):
    """For people."""
    if scan != "mamba-ssm":
        return scan
    import mamba_ssm
    return f"{scan} {mamba_ssm.__version__}"


def convolve(xbc, weight, bias):
    """Causal, depthwise, then SiLU; xbc [N, T, C], weight [C, K]."""
    taps = weight.shape[1]
    padded = F.pad(xbc.float(), (0, 0, taps - 1, 0))
    total = bias.float() + sum(padded[:, k:k + xbc.shape[1]] * weight[:, k].float() for k in range(taps))
    return F.silu(total).to(xbc.dtype)


def decays_between(ends, begins, keep):
    """exp(ends [..., I] - begins [..., J]) as [..., I, J] where `keep` [I, J], and 0 elsewhere, where the difference may be large."""
    return (ends.unsqueeze(-1) - begins.unsqueeze(-2)).masked_fill(~keep, -math.inf).exp()


def scan_in_chunks(x, steps, decay, b, c, chunk):
    """y_t = S_t c_t of states S_t = exp(steps_t decay) S_{t-1} + steps_t x_t b_t^T. x [N, T, H, P], steps [N, T, H] and decay [H] in fp32,
    b and c [N, T, G, S]; products have the type of x, sums of decays and states fp32."""
    tokens, groups = x.shape[1], b.shape[2]
    chunk = min(chunk, tokens)
    more = -tokens % chunk  # rows with steps of 0 change no state

    def in_chunks(rows):
        return F.pad(rows, (0, 0) * (rows.dim() - 2) + (0, more)).unflatten(1, (-1, chunk))

    # Below: n sequences, k and l chunks, i and j rows of a chunk, g groups, h heads of a group.
    steps, x = (in_chunks(each).unflatten(3, (groups, -1)) for each in (steps, x))
    b, c = in_chunks(b), in_chunks(c)
    scaled = x.float() * steps.unsqueeze(-1)
    sums = (steps * decay.view(groups, -1)).cumsum(2)  # nkigh

    rows = sums.permute(0, 1, 3, 4, 2)
    within = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).tril()
    scores = torch.einsum("nkigs,nkjgs->nkgij", c, b).unsqueeze(3) * decays_between(rows, rows, within)
    y = torch.einsum("nkghij,nkjghp->nkighp", scores.to(x.dtype), scaled.to(x.dtype)).float()

    to_end = (sums[:, :, -1:] - sums).exp()
    added = torch.einsum("nkjgs,nkjghp->nkghps", b, (scaled * to_end.unsqueeze(-1)).to(x.dtype)).float()
    ends = sums[:, :, -1].cumsum(1).permute(0, 2, 3, 1)  # nghk
    begins = F.pad(ends, (1, 0))[..., :-1]
    earlier = torch.ones(ends.shape[-1], ends.shape[-1], dtype=torch.bool, device=x.device).tril(-1)
    states = torch.einsum("nghkl,nlghps->nkghps", decays_between(begins, ends, earlier), added)
    y = y + torch.einsum("nkigs,nkghps->nkighp", c, states.to(x.dtype)) * sums.exp().unsqueeze(-1)
    return y.flatten(1, 2)[:, :tokens].flatten(2, 3)


class GatedNorm(nn.Module):
    """RMSNorm of y times SiLU(z), each group of channels alone."""

    def __init__(self, width, groups, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.groups, self.epsilon = groups, epsilon

    def forward(self, y, z):
        gated = (y.float() * F.silu(z.float())).unflatten(-1, (self.groups, -1))
        normed = gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + self.epsilon)
        return (normed.flatten(-2) * self.weight.float()).to(y.dtype)


class Mamba(nn.Module):
    """Names of parameters as in braid's checkpoints."""

    def __init__(self, shape):
        super().__init__()
        sizes = shape["states"]
        self.heads, self.groups, self.chunk = sizes["heads"], sizes["groups"], sizes["chunk"]
        self.limits = sizes["dt_min"], sizes["dt_max"] or math.inf
        inner, factor = self.heads * sizes["head_size"], self.groups * sizes["state"]
        self.widths = inner, inner + 2 * factor, self.heads
        self.parts = inner, factor, factor
        self.by_package = shape.get("scan") == "mamba-ssm"
        self.in_proj = nn.Linear(shape["width"], sum(self.widths), bias=False)
        self.conv = nn.Conv1d(self.widths[1], self.widths[1], sizes["taps"], groups=self.widths[1])  # its weights only
        self.dt_bias, self.a_log, self.skip = (nn.Parameter(torch.empty(self.heads)) for _ in range(3))
        self.norm = GatedNorm(inner, self.groups, shape["norm_epsilon"])
        self.out_proj = nn.Linear(inner, shape["width"], bias=False)

    def forward(self, u):
        z, xbc, dt = self.in_proj(u).split(self.widths, -1)
        x, b, c = convolve(xbc, self.conv.weight.squeeze(1), self.conv.bias).split(self.parts, -1)
        x, b, c = (part.unflatten(-1, (count, -1)) for part, count in ((x, self.heads), (b, self.groups), (c, self.groups)))
        mix = self.mix_by_mamba_ssm if self.by_package else self.mix_plainly
        return self.out_proj(mix(x, b, c, dt, z))

    @torch.compiler.disable
    def mix_by_mamba_ssm(self, x, b, c, dt, z):
        from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
        y = mamba_chunk_scan_combined(x, dt, -self.a_log.float().exp(), b, c, self.chunk, D=self.skip, dt_bias=self.dt_bias,
                                      dt_softplus=True, dt_limit=self.limits)
        return rmsnorm_fn(y.flatten(-2), self.norm.weight, None, z=z, eps=self.norm.epsilon, group_size=y[0, 0].numel() // self.groups,
                          norm_before_gate=False)

    def mix_plainly(self, x, b, c, dt, z):
        steps = F.softplus(dt.float() + self.dt_bias.float()).clamp(*self.limits)
        y = scan_in_chunks(x, steps, -self.a_log.float().exp(), b, c, self.chunk) + self.skip.float().unsqueeze(-1) * x
        return self.norm(y.to(x.dtype).flatten(-2), z)

    def initialise(self, generator):
        """Of what is neither a matrix nor a norm."""
        def uniform(parameter, low, high):
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            return local.uniform_(low, high, generator=generator)

        bound = self.conv.kernel_size[0] ** -0.5
        for parameter in self.conv.parameters():
            uniform(parameter, -bound, bound)
        uniform(self.a_log, *DECAYS).log_()
        steps = uniform(self.dt_bias, *map(math.log, STEPS)).exp_()
        steps.add_(torch.log(-torch.expm1(-steps)))  # whose softplus they are
        uniform(self.skip, 1, 1)
