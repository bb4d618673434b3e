#!/usr/bin/env python3
"""Tests of the layers with states of PyTorch's side (bench/gpu/torch_hybrids.py), and that its models have the losses of braid's.

usage: torch_hybrids_test.py BUILD_FOLDER    Exits 77 (ctest: skipped) without PyTorch: neither here nor by
`scripts/setup.sh --reference`. The Triton kernels of mamba-ssm need a GPU and are compared there, if the package is installed; models need
braid_bench_floor.
"""
import json
import pathlib
import sys
import tempfile
import unittest
import zlib

sys.dont_write_bytecode = True
from with_pytorch import ROOT  # noqa: E402

sys.path[:0] = [str(ROOT / "bench" / "gpu"), str(ROOT / "bench" / "gpu" / "loss_curve")]
import torch  # noqa: E402

import gpu_bench  # noqa: E402
import torch_hybrids  # noqa: E402
import torch_llm  # noqa: E402
import torch_losses  # noqa: E402

SHAPE = {"width": 20, "norm_epsilon": 1e-5, "states": {"heads": 6, "head_size": 5, "state": 7, "groups": 2, "taps": 3, "chunk": 8,
                                                       "dt_min": 0.02, "dt_max": 1.5}}
STEPS = 4
# fp32, sums in other orders; ten times what was seen.
LOSS_TOLERANCE, NORM_TOLERANCE = 2e-6, 5e-5


def seeded(name, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))


def layer_of(chunk=8, **changes):
    layer = torch_hybrids.Mamba({**SHAPE, "states": {**SHAPE["states"], "chunk": chunk}, **changes})
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(seeded(name, *parameter.shape))
    return layer


def token_by_token(layer, u):
    """The layer in float64, one sequence, one token and one head after the other."""
    weights = {name: parameter.double() for name, parameter in layer.named_parameters()}
    sizes = SHAPE["states"]
    heads, size, state, groups, taps = (sizes[key] for key in ("heads", "head_size", "state", "groups", "taps"))
    inner = heads * size
    results = []
    for rows in u.double():
        zxbcdt = rows @ weights["in_proj.weight"].t()
        states = torch.zeros(heads, size, state, dtype=torch.float64)
        for t in range(len(rows)):
            xbc = weights["conv.bias"].clone()
            for k in range(taps):
                if t + k >= taps - 1:
                    xbc = xbc + weights["conv.weight"][:, 0, k] * zxbcdt[t + k - taps + 1, inner:-heads]
            x, b, c = (xbc * torch.sigmoid(xbc)).split((inner, groups * state, groups * state))
            raw = zxbcdt[t, -heads:] + weights["dt_bias"]
            steps = torch.log1p(raw.exp()).clamp(sizes["dt_min"], sizes["dt_max"])
            ys, new_states = [], []
            for h in range(heads):
                group = slice(h * groups // heads * state, (h * groups // heads + 1) * state)
                head = x[h * size:(h + 1) * size]
                new_states.append(torch.exp(-steps[h] * weights["a_log"][h].exp()) * states[h] + steps[h] * torch.outer(head, b[group]))
                ys.append(new_states[h] @ c[group] + weights["skip"][h] * head)
            states = torch.stack(new_states)
            z = zxbcdt[t, :inner]
            gated = torch.cat(ys) * z * torch.sigmoid(z)
            normed = [each / (each.square().mean() + 1e-5).sqrt() for each in gated.chunk(groups)]
            results.append(weights["out_proj.weight"] @ (torch.cat(normed) * weights["norm.weight"]))
    return torch.stack(results).view(u.shape)


class LayerTest(unittest.TestCase):
    def test_a_layer_is_its_tokens_one_after_the_other(self):
        u = seeded("u", 2, 21, 20).requires_grad_()
        for chunk in (1, 8, 21, 64):
            layer = layer_of(chunk)
            inputs = [u, *layer.parameters()]
            scale = seeded("scale", *u.shape)
            expected = token_by_token(layer, u)
            result = layer(u)
            torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)
            gradients = torch.autograd.grad((result * scale).sum(), inputs)
            for seen, wanted in zip(gradients, torch.autograd.grad((expected * scale).sum(), inputs)):
                self.assertLess((seen - wanted).norm() / wanted.norm(), 1e-4)

    def test_long_decays_become_zero(self):
        steps, decay = torch.full((1, 96, 2), 50.0), torch.tensor([-16.0, -1.0])
        x, b, c = (seeded(name, 1, 96, 2, 3).requires_grad_() for name in "xbc")
        y = torch_hybrids.scan_in_chunks(x, steps, decay, b, c, 32)
        torch.testing.assert_close(y, (b * c).sum(-1, keepdim=True) * 50 * x)
        self.assertTrue(all(gradient.isfinite().all() for gradient in torch.autograd.grad(y.sum(), [x, b, c])))

    def test_initial_steps_and_decays_are_those_of_the_published_code(self):
        layer = layer_of()
        with torch.no_grad():
            layer.initialise(torch.Generator().manual_seed(1))
        steps = torch.nn.functional.softplus(layer.dt_bias)
        self.assertTrue((steps > 0.99e-3).all() and (steps < 0.101).all())
        self.assertTrue((layer.a_log >= 0).all() and (layer.a_log.exp() <= 16.01).all() and (layer.a_log > 0.5).any())
        self.assertLessEqual(layer.conv.weight.abs().max().item(), 3 ** -0.5)
        self.assertEqual(layer.skip.tolist(), [1.0] * 6)

    def test_other_layers_beside_states_are_refused(self):
        with self.assertRaisesRegex(SystemExit, "a layer moe beside layers with states"):
            torch_llm.HybridBlock({**SHAPE, "family": "nemotron_h"}, "moe")

    @unittest.skipUnless(torch_hybrids.fastest_scan("cuda") == "mamba-ssm" and torch.cuda.is_available(), "no GPU with mamba-ssm")
    def test_the_packages_kernels_do_the_same(self):
        sizes = {**SHAPE["states"], "head_size": 64, "state": 64, "taps": 4}
        layers = [layer_of(64, states={**sizes, "chunk": 64}, scan=scan).cuda().bfloat16() for scan in torch_hybrids.SCANS]
        u = seeded("u", 2, 128, 20).cuda().bfloat16()
        results = [layer(u) for layer in layers]
        gradients = [torch.autograd.grad(result.float().square().sum(), list(layer.parameters())) for result, layer in zip(results, layers)]
        for seen, wanted in zip([results[0], *gradients[0]], [results[1], *gradients[1]]):
            self.assertLess((seen.float() - wanted.float()).norm() / wanted.float().norm(), 0.03)


class ModelTest(unittest.TestCase):
    """Four steps in fp32 from the weights of braid's checkpoint, on the same samples."""

    @classmethod
    def setUpClass(cls):
        try:
            cls.braid, cls.floor = (gpu_bench.find_program(BUILD, name) for name in ("braid", "braid_bench_floor"))
        except gpu_bench.Failure as missing:
            raise unittest.SkipTest(str(missing)) from missing

    def run_braid(self, case, folder, *more):
        changes = {**gpu_bench.settings(case, small=True, device="cpu"), "train.dtype": "float32", "train.steps": STEPS,
                   "data.train": folder / "ids", "optimizer.learning_rate": 1e-2, "logging.run_folder": folder / "run",
                   "checkpoint.folder": folder / "checkpoints"}
        arguments = [*gpu_bench.as_arguments(changes), *(word for change in more for word in ("--set", change))]
        gpu_bench.run([self.braid, "train", gpu_bench.run_file(case), *arguments], 60)
        return gpu_bench.last_json(gpu_bench.run([self.floor, gpu_bench.run_file(case), *arguments, "--describe"], 60))

    def losses_of_both(self, case):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            gpu_bench.write_random_tokens(folder / "ids", 1000, count=4096)
            self.run_braid(case, folder, "train.steps=1", "optimizer.learning_rate=0", "checkpoint.at_end=true")
            (folder / "run" / "metrics.jsonl").unlink()
            shape = self.run_braid(case, folder)
            lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
            braids = [(line["loss"], line["grad_norm"]) for line in lines if "grad_norm" in line]
            trainer = torch_llm.Trainer(shape, "cpu", "float32", compiled=False)
            torch_losses.load_weights(trainer.model, folder / "checkpoints" / "step_00000001" / "model.safetensors")
            tokens = torch_losses.TokenFile(folder / "ids")
            batch, size = shape["global_batch"], shape["microbatch"]
            samples = torch_losses.Samples(tokens, (0, 1), shape["sequence"], STEPS * batch, shape["data_seed"])
            torches = []
            for step in range(STEPS):
                loss, norm = trainer.step([samples.batch(step * batch + i, size, "cpu") for i in range(0, batch, size)])
                torches.append((loss.item(), norm.item()))
            return braids, torches

    def check(self, case):
        braids, torches = self.losses_of_both(case)
        self.assertEqual(len(braids), STEPS)
        self.assertNotAlmostEqual(braids[0][0], braids[-1][0], places=2)  # something was learned
        for seen, wanted in zip(torches, braids):
            self.assertLess(abs(seen[0] / wanted[0] - 1), LOSS_TOLERANCE, f"{torches} instead of {braids}")
            self.assertLess(abs(seen[1] / wanted[1] - 1), NORM_TOLERANCE, f"{torches} instead of {braids}")

    def test_mamba2_has_braids_losses(self):
        self.check("mamba2-2.7b")

    def test_nemotron_h_has_braids_losses(self):
        self.check("nemotron-h-4b")


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1))
    unittest.main()
