"""Layers with experts for torch_llm.py and torch_multi.py: torch._grouped_mm on rows that are sorted by expert, and the exchange of rows
between ranks with different experts by all_to_all_single, as torchtitan does it.

No row is dropped. Letters in shapes: T tokens, k experts of a token, R rows (one per token and expert: T * k on one rank), C width,
F hidden features of an expert, E experts, N ranks that exchange rows.
"""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class TakeRows(torch.autograd.Function):
    """Rows `index` [R] of a matrix. `places` [T, k]: where each of its rows went. So the backward gathers too, and adds nothing with
    atomics."""

    @staticmethod
    def forward(ctx, rows, index, places):
        ctx.save_for_backward(places)
        return rows[index]

    @staticmethod
    def backward(ctx, gradient):
        (places,) = ctx.saved_tensors
        return gradient[places].sum(1), None, None


class SumRows(torch.autograd.Function):
    """Of each token the sum [T, C] of its rows, which are at `places` [T, k], times `weights` [T, k]. `order` [R]: the pair of token
    and expert of each row, as token * k + slot."""

    @staticmethod
    def forward(ctx, rows, weights, order, places):
        ctx.save_for_backward(rows, weights, order, places)
        return (rows[places] * weights.unsqueeze(-1)).sum(1).to(rows.dtype)

    @staticmethod
    def backward(ctx, gradient):
        rows, weights, order, places = ctx.saved_tensors
        spread = gradient[order // weights.shape[1]]
        by_row = (rows.float() * spread.float()).sum(-1)
        return (spread * weights.flatten()[order].unsqueeze(-1)).to(rows.dtype), by_row[places].to(weights.dtype), None, None


class AddToGradient(torch.autograd.Function):
    """The first argument as it is; the backward goes through `loss` too, as if it were a part of the training loss."""

    @staticmethod
    def forward(ctx, tensor, loss):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, torch.ones((), device=gradient.device)


class ExchangeRows(torch.autograd.Function):
    """Sends `sent[r]` rows to rank r of the group, one rank's behind the other's, and receives `received[r]` from it."""

    @staticmethod
    def forward(ctx, rows, sent, received, group):
        ctx.splits = sent, received, group
        return exchange(rows, sent, received, group)

    @staticmethod
    def backward(ctx, gradient):
        sent, received, group = ctx.splits
        return exchange(gradient, received, sent, group), None, None, None


def exchange(rows, sent, received, group):
    result = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group)
    return result


def inverse_of(order):
    """Of a permutation."""
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


def grouped_product(rows, matrices, ends):
    """Rows [R, K] times the transposed matrix [., K] of their expert; those of expert e end before row ends[e]. Without a GPU, where
    PyTorch need not have such a product, by a loop."""
    if rows.is_cuda:
        return torch._grouped_mm(rows, matrices.transpose(-2, -1), offs=ends)
    bounds = [0, *ends.tolist()]
    return torch.cat([rows[begin:end] @ matrix.t() for begin, end, matrix in zip(bounds, bounds[1:], matrices)])


def expert_mlps(rows, counts, fc1, fc2):
    """SwiGLU of rows [R, C] by the experts whose they are: counts[0] of the first, then counts[1] of the second, ..."""
    ends = counts.cumsum(0).to(torch.int32)
    gate, up = grouped_product(rows, fc1, ends).chunk(2, -1)
    return grouped_product(F.silu(gate) * up, fc2, ends)


def arrived_mlps(rows, counts, fc1, fc2):
    """The same of rows that came from several ranks: counts [N, E / N] of rank 0 for each expert, then of rank 1, ..."""
    if counts.shape[1] == 1:
        return expert_mlps(rows, counts.sum(0), fc1, fc2)
    places = places_by_expert(counts, rows.shape[0])
    order = inverse_of(places)
    results = expert_mlps(TakeRows.apply(rows, order, places.unsqueeze(1)), counts.sum(0), fc1, fc2)
    return TakeRows.apply(results, places, order.unsqueeze(1))


def places_by_expert(counts, num_rows):
    """Where each row goes when rows that are ordered by rank and then by expert are ordered by expert and then by rank."""
    begins = counts.flatten().cumsum(0) - counts.flatten()
    across = counts.t().flatten()
    new_begins = (across.cumsum(0) - across).view(counts.t().shape).t().flatten()
    rows = torch.arange(num_rows, device=counts.device)
    run = torch.searchsorted(counts.flatten().cumsum(0), rows, right=True)
    return rows + (new_begins - begins)[run]


class Experts(nn.Module):
    """The experts that this rank has: all, or after `share` an equal run of them."""

    def __init__(self, shape):
        super().__init__()
        experts = shape["experts"]
        here = experts["experts"] // experts["ranks"]
        self.fc1 = nn.Parameter(torch.empty(here, 2 * experts["expert_ffn"], shape["width"]))  # gate above up
        self.fc2 = nn.Parameter(torch.empty(here, shape["width"], experts["expert_ffn"]))
        self.group = None

    def share(self, group, compiled):
        """Exchanges rows with the ranks of `group`, the first of which have the first experts."""
        self.group = group
        self.mlps = torch.compile(arrived_mlps) if compiled else arrived_mlps

    def forward(self, rows, counts):
        """`rows` of this rank's tokens, sorted by expert, counts [E] of each; the result has the same order."""
        if self.group is None:
            return expert_mlps(rows, counts, self.fc1, self.fc2)
        return self.forward_elsewhere(rows, counts)

    @torch.compiler.disable  # the host needs sizes, so a graph would end here anyway
    def forward_elsewhere(self, rows, counts):
        ranks = self.group.size()
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        arriving = arriving.view(ranks, -1)
        sent, received = torch.stack((counts.view(ranks, -1).sum(1), arriving.sum(1))).tolist()  # waits for the device, once
        arrived = ExchangeRows.apply(rows, sent, received, self.group)
        torch._dynamo.maybe_mark_dynamic(arrived, 0)
        results = self.mlps(arrived, arriving, self.fc1, self.fc2)
        return ExchangeRows.apply(results, received, sent, self.group)


class SharedExpert(nn.Module):
    """An expert for all tokens, whose result is added to that of the chosen ones."""

    def __init__(self, width, features):
        super().__init__()
        self.fc1 = nn.Linear(width, 2 * features, bias=False)  # gate above up
        self.fc2 = nn.Linear(features, width, bias=False)

    def forward(self, x):
        gate, up = self.fc1(x).chunk(2, -1)
        return self.fc2(F.silu(gate) * up)


class ExpertMlp(nn.Module):
    """A router and its experts in place of an MLP."""

    def __init__(self, shape):
        super().__init__()
        self.settings = shape["experts"]
        self.router = nn.Linear(shape["width"], self.settings["experts"], bias=False)
        self.experts = Experts(shape)
        shared = self.settings.get("shared_ffn")
        self.shared = SharedExpert(shape["width"], shared) if shared else None
        self.loss_scale = self.settings["balance_loss"] / shape["microbatches"]  # the loss of a step is the mean of its microbatches'
        self.register_buffer("counts", torch.zeros(self.settings["experts"], dtype=torch.int64), persistent=False)  # rows, last microbatch

    def route(self, rows):
        """Weights (fp32) and experts of each token [T, k], and how many rows each expert has [E]."""
        experts, per_token = self.settings["experts"], self.settings["experts_per_token"]
        scores = F.softmax(self.router(rows).float(), -1)
        weights, chosen = scores.topk(per_token, -1)
        if self.settings["force_balance"]:
            chosen = (torch.arange(chosen.numel(), device=rows.device) % experts).view(chosen.shape)
            weights = scores.gather(-1, chosen)
        if self.settings["router_normalize"]:
            weights = weights / weights.sum(-1, keepdim=True)
        counts = torch.histc(chosen.flatten().float(), experts, 0, experts - 1)  # unlike bincount, without waiting for the device
        if self.loss_scale:
            loss = experts * (counts / chosen.numel() * scores.mean(0)).sum()
            weights = AddToGradient.apply(weights, self.loss_scale * loss)
        return weights, chosen, counts.long()

    def forward(self, x):
        rows = x.flatten(0, 1)
        weights, chosen, counts = self.route(rows)
        if self.training:
            self.counts.copy_(counts)
        order = chosen.flatten().short().argsort(stable=True)
        places = inverse_of(order).view(chosen.shape)
        results = self.experts(TakeRows.apply(rows, order // chosen.shape[1], places), counts)
        y = SumRows.apply(results, weights, order, places).view_as(x)
        return y if self.shared is None else y + self.shared(x)


def count_parameters(module, shape):
    """Of the whole model, of which this rank may have a part of the experts."""
    ranks = shape["experts"]["ranks"] if shape.get("experts") else 1
    return sum(parameter.numel() * (ranks if is_of_experts(name) else 1) for name, parameter in module.named_parameters())


def is_of_experts(name):
    """Whether a parameter of that name belongs to single experts."""
    return ".experts." in name


def check_parameters(module, shape):
    """That this is braid's model. A padded vocabulary is counted without its padding there."""
    padding = (shape["padded_vocabulary"] - shape["vocabulary"]) * shape["width"] * (1 if shape["tied_embeddings"] else 2)
    count = count_parameters(module, shape) - padding
    if count != shape["parameters"]:
        raise SystemExit(f"the model has {count:,} parameters here, and {shape['parameters']:,} in braid")
