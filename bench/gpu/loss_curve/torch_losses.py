#!/usr/bin/env python3
"""Trains what a run file of braid trains, in PyTorch: from the same initial weights, on the same samples in the same order, by
the same schedule and optimizer. Writes one JSON line per step and evaluation.

usage: torch_losses.py --model JSON_OF_braid_bench_floor_--describe --initial model.safetensors --data PREFIX --output FILE
                       [--weights autocast|fsdp|float32] [--attention cudnn|flash|math] [--device cuda|cpu] [--eager]
"""
import argparse
import json
import math
import pathlib
import re
import sys
import time

import numpy
import torch
from torch.nn.attention import sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_llm  # noqa: E402

TOKEN_TYPES = {1: numpy.uint8, 2: numpy.int8, 3: numpy.int16, 4: numpy.int32, 5: numpy.int64, 8: numpy.uint16}


class TokenFile:
    """A .bin/.idx pair; its layout is in src/data/indexed_dataset.h."""

    def __init__(self, prefix):
        index = pathlib.Path(f"{prefix}.idx").read_bytes()
        if index[:9] != b"MMIDIDX\0\0":
            raise SystemExit(f"torch_losses.py: {prefix}.idx is no index of tokens")
        kind = TOKEN_TYPES[index[17]]
        count = int.from_bytes(index[18:26], "little")
        self.lengths = numpy.frombuffer(index, numpy.int32, count, 34)
        self.tokens = numpy.fromfile(f"{prefix}.bin", kind)
        self.begins = numpy.concatenate([[0], numpy.cumsum(self.lengths, dtype=numpy.int64)])

    def __getitem__(self, sequence):
        return self.tokens[self.begins[sequence]: self.begins[sequence + 1]]


def split_ranges(split, count):
    """Sequences of the training, validation and test part, by shares such as "97,3,0"."""
    shares = [float(share) for share in split.split(",")]
    ends = [round(sum(shares[: i + 1]) / sum(shares) * count) for i in range(len(shares))]
    return list(zip([0, *ends], ends))


class Samples:
    """The samples of Megatron-LM's GPTDataset, in its order, written here from its description (src/data/sample_order.h) with
    NumPy's own shuffles: sequences of enough epochs in random order, end to end, cut every `tokens` tokens, cuts in random
    order."""

    def __init__(self, file, part, tokens, count, seed):
        begin, end = part
        per_epoch = int(file.lengths[begin:end].sum())
        epochs = max(1, -(-(count * tokens + 1) // per_epoch))
        total = (epochs * per_epoch - 1) // tokens
        before_last = ((epochs - 1) * per_epoch - 1) // tokens
        last_apart = epochs > 1 and count - before_last < int(0.80 * ((per_epoch - 1) // tokens))
        random = numpy.random.RandomState(seed)
        order = numpy.tile(numpy.arange(end - begin, dtype=numpy.int32), epochs)
        head = len(order) - (end - begin) if last_apart else len(order)
        random.shuffle(order[:head])
        random.shuffle(order[head:])
        self.stream = numpy.concatenate([file[begin + sequence] for sequence in order])
        self.cuts = numpy.arange(total, dtype=numpy.uint32)
        head = before_last if last_apart else total
        random.shuffle(self.cuts[:head])
        random.shuffle(self.cuts[head:])
        self.tokens = tokens

    def batch(self, first, count, device):
        """Tokens and labels [count, T] of `count` samples."""
        begins = self.cuts[first: first + count].astype(numpy.int64) * self.tokens
        rows = numpy.stack([self.stream[begin: begin + self.tokens + 1] for begin in begins]).astype(numpy.int64)
        rows = torch.from_numpy(rows).to(device, non_blocking=True)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def read_safetensors(path):
    """fp32 tensors by name."""
    content = pathlib.Path(path).read_bytes()
    size = int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8: 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            if entry["dtype"] != "F32":
                raise SystemExit(f"torch_losses.py: {path}: {name} is {entry['dtype']}, not F32")
            tensors[name] = torch.from_numpy(numpy.frombuffer(content[begin:end], numpy.float32).reshape(entry["shape"]).copy())
    return tensors


def name_in_braid(name, shape):
    """Of a parameter of torch_llm.Model."""
    name = torch_llm.NAMES.get(name, name)
    name = name.replace(".attention.q_norm.", ".attention.query_norm.").replace(".attention.k_norm.", ".attention.key_norm.")
    if shape.get("experts"):
        name = re.sub(r"\.mlp\.experts\.(fc[12])$", r".moe.\1.weight", name)
        name = name.replace(".mlp.router.", ".moe.router.").replace(".mlp_norm.", ".moe_norm.")
    return name


def gate_above_up(weight):
    """braid has the rows of gate and up in turns."""
    return torch.cat((weight[..., 0::2, :], weight[..., 1::2, :]), -2)


def load_weights(model, path):
    """braid's weights; rows of the padding, which a checkpoint does not have, are zero."""
    tensors = read_safetensors(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weight = tensors.pop(name_in_braid(name, model.shape))
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            if local.dim() == 3:  # one matrix below the other there
                weight = weight.view(local.shape)
            if ".fc1" in name and model.shape["family"] not in ("gpt2", "nemotron_h"):  # which have no gate
                weight = gate_above_up(weight)
            local.zero_()
            local[: weight.shape[0]].copy_(weight)
    if tensors:
        raise SystemExit(f"torch_losses.py: {path} has weights that the model has not: {sorted(tensors)}")


def learning_rate(shape, step):
    """Linear warmup, then cosine decay, steps counted from 1."""
    peak, least, warmup = shape["learning_rate"], shape["min_learning_rate"], shape["warmup_steps"]
    if step <= warmup:
        return peak * step / warmup
    progress = min(1.0, (step - warmup) / max(1, shape["decay_steps"] - warmup))
    return least + (peak - least) * 0.5 * (1 + math.cos(math.pi * progress))


class Training:
    def __init__(self, shape, arguments):
        self.shape, self.device = shape, arguments.device
        self.trainer = torch_llm.Trainer(shape, arguments.device, arguments.weights, not arguments.eager)
        load_weights(self.trainer.model, arguments.initial)
        file = TokenFile(arguments.data)
        training, held_out, _ = split_ranges(shape["split"], len(file.lengths))
        batch = shape["global_batch"]
        self.samples = Samples(file, training, shape["sequence"], shape["steps"] * batch, shape["data_seed"])
        self.held_out = Samples(file, held_out, shape["sequence"], shape["eval_batches"] * batch, shape["data_seed"])

    def microbatches(self, samples, step):
        size = self.shape["microbatch"]
        first = step * self.shape["global_batch"]
        return [samples.batch(first + i * size, size, self.device) for i in range(self.shape["microbatches"])]

    def evaluate(self):
        with torch.no_grad():
            losses = [self.trainer.microbatch_loss(*microbatch) for step in range(self.shape["eval_batches"])
                      for microbatch in self.microbatches(self.held_out, step)]
        return torch.stack(losses).mean()

    def loads(self):
        """The busiest expert of each layer in the microbatch that ran last, rows over the mean; None without experts."""
        counts = [layer.mlp.counts for layer in self.trainer.model.layers if hasattr(layer.mlp, "counts")]
        return torch.stack([rows.max() / rows.float().mean() for rows in counts]) if counts else None

    def records(self):
        """One record per step and evaluation; numbers may still be on the device."""
        yield {"step": 0, "valid_loss": self.evaluate()}
        for step in range(1, self.shape["steps"] + 1):
            rate = learning_rate(self.shape, step)
            loss, norm = self.trainer.step(self.microbatches(self.samples, step - 1), rate)
            yield {"step": step, "loss": loss, "grad_norm": norm, "learning_rate": rate, "busiest": self.loads()}
            if step == self.shape["steps"] or step % self.shape["eval_interval"] == 0:
                yield {"step": step, "valid_loss": self.evaluate()}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="JSON file of braid_bench_floor --describe")
    parser.add_argument("--initial", required=True, help="weights to start from: model.safetensors of a checkpoint of braid")
    parser.add_argument("--data", required=True, help="prefix of a .bin/.idx pair")
    parser.add_argument("--output", required=True)
    parser.add_argument("--weights", choices=["fsdp", "autocast", "float32"], default="autocast")
    parser.add_argument("--attention", choices=sorted(torch_llm.ATTENTIONS), default="cudnn")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    shape = json.loads(pathlib.Path(arguments.model).read_text(encoding="utf-8"))
    if shape["schedule"] != "cosine":
        raise SystemExit(f"torch_losses.py: schedule {shape['schedule']} is not written here, cosine is")
    begin = time.perf_counter()
    with sdpa_kernel(torch_llm.ATTENTIONS[arguments.attention]):
        records = list(Training(shape, arguments).records())  # numbers stay on the device until the end: nothing waits
    numbers = [{key: value.tolist() if torch.is_tensor(value) else value for key, value in record.items()} for record in records]
    pathlib.Path(arguments.output).write_text("".join(json.dumps(record) + "\n" for record in numbers), encoding="utf-8")
    print(json.dumps({"version": torch.__version__, "weights": arguments.weights, "attention": arguments.attention,
                      "compiled": not arguments.eager, "seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main()
