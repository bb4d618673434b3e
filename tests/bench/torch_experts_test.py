#!/usr/bin/env python3
"""Tests of the layers with experts of PyTorch's side (bench/gpu/torch_experts.py), and of its steps over ranks that exchange rows: these
have the losses of one rank.

usage: torch_experts_test.py    Exits 77 (ctest: skipped) without PyTorch: neither here nor by `scripts/setup.sh --reference`. Ranks need
2.11, as the benchmarks do: `PYTHON tests/bench/torch_experts_test.py` runs them with one that has it.
"""
import math
import os
import sys
import tempfile
import types
import unittest
import zlib

sys.dont_write_bytecode = True
from with_pytorch import ROOT  # noqa: E402

sys.path[:0] = [str(ROOT / "bench" / "gpu")]
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.tensor import DTensor, distribute_tensor  # noqa: E402

import torch_experts  # noqa: E402
import torch_llm  # noqa: E402
import torch_multi  # noqa: E402

EXPERTS = {"experts": 4, "experts_per_token": 3, "expert_ffn": 24, "router_normalize": True, "balance_loss": 0.1, "force_balance": False,
           "ranks": 1}
SHAPE = {"family": "qwen3", "layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "head_size": 8, "ffn": 0, "vocabulary": 96,
         "padded_vocabulary": 96, "max_positions": 64, "tied_embeddings": False, "qkv_bias": False,
         "rope_frequencies": [1.0, 0.1, 0.01, 0.001], "rope_amplitude": 1.0,
         "norm_epsilon": 1e-5, "init_std": 0.02, "sequence": 16, "microbatch": 2, "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95,
         "epsilon": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0, "dtype": "float32", "experts": EXPERTS,
         # Embedding and output, final norm; per layer attention, two norms, two norms of heads, router, experts.
         "parameters": 2 * 96 * 32 + 32 + 2 * (2 * 32 * 32 + 2 * 32 * 16 + 2 * 32 + 2 * 8 + 4 * 32 + 4 * 3 * 32 * 24)}
# Latent attention, a first layer with an MLP, and an expert for all tokens, as in DeepSeek-V2-Lite.
LATENTS = {"q_rank": 0, "kv_rank": 12, "plain": 6, "rotated": 4, "value": 5, "score_scale": 1.5}
DEEPSEEK = {**SHAPE, "family": "llama", "latents": LATENTS, "ffn": 40, "microbatches": 1,
            "experts": {**EXPERTS, "router_normalize": False, "shared_ffn": 20, "dense_layers": 1},
            "rope_frequencies": [1.0, 0.01],
            # Per layer queries, latents, keys and values, projection, norms; then the MLP of one, router, experts and shared one of the other.
            "parameters": 2 * 96 * 32 + 32 + 2 * (4 * 10 * 32 + 16 * 32 + 12 + 4 * 11 * 12 + 4 * 5 * 32 + 2 * 32) + 3 * 40 * 32
            + 4 * 32 + 4 * 3 * 32 * 24 + 3 * 20 * 32}
MICROBATCHES = 8  # of a step, over all ranks
STEPS = 4
# fp32, sums in other orders; ten times what was seen.
TOLERANCE = 1e-5


def seeded(name, *shape):
    """The same numbers in every process."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))


def shape_of(ranks, expert_ranks):
    layout = {"ranks": ranks, "data": ranks, "tensor": 1, "pipeline": 1, "virtual_stages": 1, "stage_layers": [SHAPE["layers"]],
              "shard": "optimizer", "recompute": "none"}
    return {**SHAPE, "microbatches": MICROBATCHES // ranks, "global_batch": MICROBATCHES * SHAPE["microbatch"], "layout": layout,
            "experts": {**EXPERTS, "ranks": expert_ranks}}


def set_weights(trainer):
    """Those of one rank, of which each has its part."""
    (stage,) = trainer.stages.values()
    for name, parameter in stage.named_parameters():
        first = 0
        whole = list(parameter.shape)
        if torch_experts.is_of_experts(name):
            first = trainer.expert_mesh["exchange"].get_local_rank() * whole[0]
            whole[0] = EXPERTS["experts"]
        values = torch.ones(whole) if "norm.weight" in name else 0.05 * seeded(name, *whole)
        part = values[first:first + parameter.shape[0]]
        local = distribute_tensor(part, parameter.device_mesh, parameter.placements) if isinstance(parameter, DTensor) else part
        with torch.no_grad():
            parameter.copy_(local)


def train(rank, shape, folder):
    """Losses and gradient norms of one rank's steps, as a mean over the ranks, which the first one writes down."""
    ranks = shape["layout"]["ranks"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    trainer = torch_multi.Trainer(shape, types.SimpleNamespace(device="cpu", eager=True, async_tp=False, fp8=None))
    set_weights(trainer)
    clip, norms = trainer.clip, []
    trainer.clip = lambda: norms.append(clip().item())
    losses = []
    data = (1e4 * seeded("ids", MICROBATCHES, shape["microbatch"], shape["sequence"] + 1)).long() % shape["vocabulary"]
    own = data[rank * MICROBATCHES // ranks:(rank + 1) * MICROBATCHES // ranks]
    for _ in range(STEPS):
        loss = trainer.step([(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()) for ids in own])
        dist.all_reduce(loss)
        losses.append(loss.item() / ranks)
    if rank == 0:
        torch.save((losses, norms), f"{folder}/results")
    dist.barrier()
    os._exit(0)


def results_of(shape):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (shape, folder), shape["layout"]["ranks"])
        return torch.load(f"{folder}/results")


class LayerTest(unittest.TestCase):
    def by_token(self, mlp, x):
        """The same layer one token and one expert after the other, and its losses of balance."""
        experts, results = mlp.settings, []
        scores = torch.softmax(mlp.router(x.flatten(0, 1)), -1)
        counts = torch.zeros(experts["experts"], dtype=x.dtype)
        for row, score in zip(x.flatten(0, 1), scores):
            weights, chosen = score.topk(experts["experts_per_token"])
            counts[chosen] += 1
            weights = weights / weights.sum() if experts["router_normalize"] else weights
            hidden = [mlp.experts.fc1[e] @ row for e in chosen]
            features = experts["expert_ffn"]
            results.append(sum(w * (mlp.experts.fc2[e] @ (torch.nn.functional.silu(h[:features]) * h[features:]))
                               for w, e, h in zip(weights, chosen, hidden)))
        loss = experts["experts"] * (counts / counts.sum() * scores.mean(0)).sum()
        return torch.stack(results).view(x.shape), loss

    def test_a_layer_is_its_experts_one_after_the_other(self):
        for normalize in (True, False):
            mlp = torch_experts.ExpertMlp({**shape_of(1, 1), "experts": {**EXPERTS, "router_normalize": normalize}}).double()
            for name, parameter in mlp.named_parameters():
                parameter.data = seeded(name, *parameter.shape).double() * 0.3
            x = seeded("x", 2, 16, 32).double().requires_grad_()
            plain, loss = self.by_token(mlp, x)
            scale = seeded("scale", *x.shape)
            inputs = [x, *mlp.parameters()]
            expected = torch.autograd.grad((plain * scale).sum() + EXPERTS["balance_loss"] / MICROBATCHES * loss, inputs)
            result = mlp(x)
            # Router and its softmax are in fp32 here.
            torch.testing.assert_close(result, plain, rtol=1e-5, atol=1e-5)
            for gradient, wanted in zip(torch.autograd.grad((result * scale).sum(), inputs), expected):
                torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-4)

    def test_forced_balance_gives_all_experts_as_much(self):
        mlp = torch_experts.ExpertMlp({**shape_of(1, 1), "experts": {**EXPERTS, "force_balance": True}})
        for parameter in mlp.parameters():
            parameter.data = seeded("p", *parameter.shape)
        weights, chosen, counts = mlp.route(seeded("rows", 32, 32))
        self.assertEqual(counts.tolist(), [24] * 4)
        torch.testing.assert_close(weights.sum(-1), torch.ones(32))
        self.assertEqual(chosen[2].tolist(), [2, 3, 0])

    def test_counts_are_exact(self):
        for experts in (3, 60, 128, 511):
            chosen = torch.arange(experts).repeat_interleave(torch.arange(experts))
            self.assertEqual(torch.histc(chosen.float(), experts, 0, experts - 1).tolist(), list(range(experts)))

    def test_rows_of_several_ranks_are_ordered_by_expert(self):
        counts = torch.tensor([[2, 0, 1], [0, 3, 1]])  # of 2 ranks for 3 experts
        experts = torch.arange(3).repeat(2).repeat_interleave(counts.flatten())
        places = torch_experts.places_by_expert(counts, len(experts))
        self.assertEqual(places.tolist(), torch_experts.inverse_of(experts.argsort(stable=True)).tolist())

    def test_another_model_than_braids_is_refused(self):
        shape = {**shape_of(1, 1), "padded_vocabulary": 128}
        torch_experts.check_parameters(torch_llm.Model(shape), shape)
        with self.assertRaisesRegex(SystemExit, "parameters here, and 1 in braid"):
            torch_experts.check_parameters(torch_llm.Model(shape), {**shape, "parameters": 1})

    def test_deepseeks_layers_have_their_parts(self):
        model = torch_llm.Model(DEEPSEEK)
        torch_experts.check_parameters(model, DEEPSEEK)
        self.assertIsInstance(model.layers[0].mlp, torch_llm.Mlp)
        self.assertIsInstance(model.layers[1].mlp, torch_experts.ExpertMlp)
        with_latent_queries = torch_llm.LatentAttention({**DEEPSEEK, "latents": {**LATENTS, "q_rank": 7}})
        self.assertEqual([tuple(each.weight.shape) for each in (with_latent_queries.q_a, with_latent_queries.q_norm, with_latent_queries.q)],
                         [(7, 32), (7,), (40, 7)])

    def test_the_shared_expert_is_added(self):
        mlp = torch_experts.ExpertMlp({**shape_of(1, 1), "experts": {**EXPERTS, "shared_ffn": 20}})
        for name, parameter in mlp.named_parameters():
            parameter.data = 0.3 * seeded(name, *parameter.shape)
        x = seeded("x", 2, 16, 32)
        chosen = mlp(x) - mlp.shared(x)
        shared, mlp.shared = mlp.shared, None
        torch.testing.assert_close(chosen, mlp(x))
        hidden = x @ shared.fc1.weight.t()
        expected = (torch.nn.functional.silu(hidden[..., :20]) * hidden[..., 20:]) @ shared.fc2.weight.t()
        torch.testing.assert_close(shared(x), expected)

    def by_head(self, attention, x, angles):
        """Latent attention one head and one query after the other."""
        cos, sin = angles
        def turned(pairs, position):
            first, second = pairs[0::2], pairs[1::2]
            c, s = cos[position], sin[position]
            return torch.stack((first * c - second * s, second * c + first * s), 1).flatten()
        latents = x @ attention.kv_a.weight.t()
        normed = torch.stack([row * (row.square().mean() + 1e-5) ** -0.5 * attention.kv_norm.weight for row in latents[:, :12]])
        kv = (normed @ attention.kv_b.weight.t()).view(-1, 4, 11)
        q = (x @ attention.q.weight.t()).view(-1, 4, 10)
        results = []
        for t in range(len(x)):
            heads = []
            for h in range(4):
                query = torch.cat((q[t, h, :6], turned(q[t, h, 6:], t)))
                keys = torch.stack([torch.cat((kv[i, h, :6], turned(latents[i, 12:], i))) for i in range(t + 1)])
                heads.append(torch.softmax(keys @ query * 1.5 * 10 ** -0.5, 0) @ kv[: t + 1, h, 6:])
            results.append(torch.cat(heads) @ attention.proj.weight.t())
        return torch.stack(results)

    def test_latent_attention_is_its_heads_one_after_the_other(self):
        attention = torch_llm.LatentAttention(DEEPSEEK)
        for name, parameter in attention.named_parameters():
            parameter.data = seeded(name, *parameter.shape)
        x = seeded("x", 1, 7, 32)
        angles = torch_llm.Model.angles(types.SimpleNamespace(shape=DEEPSEEK), 7, "cpu")
        torch.testing.assert_close(attention(x, angles)[0], self.by_head(attention, x[0], angles), rtol=1e-4, atol=1e-4)

    def test_olmoe_norms_all_heads_together(self):
        attention = torch_llm.Attention({**shape_of(1, 1), "family": "olmoe"})
        self.assertEqual([attention.q_norm.weight.shape[0], attention.k_norm.weight.shape[0]], [32, 16])
        x = seeded("x", 1, 2, 4, 8)
        torch.testing.assert_close(attention.q_norm(x), torch.nn.functional.rms_norm(x.flatten(-2), (32,), eps=1e-5).view(x.shape))


@unittest.skipIf(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11), "FSDP2 of older versions does not run on a CPU")
class RanksTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.losses, cls.norms = results_of(shape_of(1, 1))

    def test_the_first_loss_is_that_of_a_guess(self):
        self.assertAlmostEqual(self.losses[0], math.log(SHAPE["vocabulary"]), delta=0.2)
        self.assertLess(self.losses[-1], self.losses[0])

    def check(self, ranks, expert_ranks):
        losses, norms = results_of(shape_of(ranks, expert_ranks))
        for seen, expected in zip([*losses, *norms], [*self.losses, *self.norms]):
            self.assertLess(abs(seen / expected - 1), TOLERANCE, f"{losses} {norms} instead of {self.losses} {self.norms}")

    def test_ranks_with_different_experts_have_the_losses_of_one(self):
        self.check(2, 2)

    def test_also_with_one_expert_each(self):
        self.check(4, 4)

    def test_also_where_some_have_the_same(self):
        self.check(4, 2)


if __name__ == "__main__":
    unittest.main()
