#!/usr/bin/env python3
"""The other side of multi.py: a training step of the same model on several GPUs in PyTorch, with what PyTorch ships and as its own
large examples use it. One process per rank; multi.py starts them and sets RANK and WORLD_SIZE.

data ranks:      FSDP2 per block, fp32 main weights and reduction; weights are dropped after their use where the case shards weights
expert ranks:    data ranks that share experts and exchange rows by all_to_all_single, as torchtitan does it (torch_experts.py);
                 FSDP2 for experts over the data ranks that have the same ones
tensor ranks:    DTensor, sequence parallel between matrices, one gather per norm, loss without gathering the logits
pipeline ranks:  torch.distributed.pipelining, interleaved 1F1B
everywhere:      bf16, torch.compile per block, cuDNN's or flash attention, fused AdamW, clipping to norm 1 over all ranks
--fp8:           matrices of layers in FP8 with one scale each, by torchao: FSDP2 gathers FP8 weights, whose scales are computed for all
                 of them after the optimizer's step, and tensor ranks gather FP8 inputs, both as torchtitan does it

usage: torch_multi.py --model JSON_OF_braid_bench_floor_--describe --store FILE [--warmup N] [--device cuda|cpu] [--eager]
                      [--time-limit S] [--async-tp] [--fp8]
Rank 0 prints one JSON line.
"""
import argparse
import datetime
import faulthandler
import json
import os
import time
import types

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel,
                                               parallelize_module)
from torch.nn.attention import sdpa_kernel

import torch_llm
from torch_experts import check_parameters, is_of_experts
from torch_llm import ATTENTIONS, Block, Clock, make_norm, random_microbatch


class Stage(nn.Module):
    """One stage of a pipeline; the first begins with the embedding, the last ends with the logits, which may be all that they have.
    Sizes are those of the whole model."""

    def __init__(self, shape, index):
        super().__init__()
        rows, width = shape["padded_vocabulary"], shape["width"]
        layers = shape["layout"]["stage_layers"]
        begins, ends = index == 0, index == len(layers) - 1
        self.embedding = nn.Embedding(rows, width) if begins else None
        self.layers = nn.ModuleList(Block(shape) for _ in range(layers[index]))
        self.norm = make_norm(shape) if ends else None
        self.output = nn.Linear(width, rows, bias=False) if ends and not shape["tied_embeddings"] else None
        self.angles = None

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, self.angles)
        if self.norm is None:
            return x
        x = self.norm(x)
        return F.linear(x, self.embedding.weight) if self.output is None else self.output(x)

    def initialise(self, shape, seed):
        """Normal matrices, ones and zeros elsewhere; other numbers on each rank, which measures the same."""
        generator = torch.Generator(next(self.parameters()).device).manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                if parameter.dim() > 1:
                    local.normal_(0, shape["init_std"], generator=generator)
                else:
                    local.fill_(1 if "norm.weight" in name else 0)
        self.angles = torch_llm.Model.angles(types.SimpleNamespace(shape=shape), shape["sequence"], generator.device)


def token_loss(logits, labels):
    """Mean over the labels. Padding of the vocabulary takes part: aligned rows are faster, and padding is learned away."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def convert_to_fp8(stage, arguments, shares_weights):
    """Matrices of layers, not the head. On a CPU, which has no FP8 products, they are emulated."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    config = Float8LinearConfig(enable_fsdp_float8_all_gather=shares_weights, emulate=arguments.device == "cpu")
    convert_to_float8_training(stage.layers, config=config)


def tensor_styles(fp8):
    """How a layer's modules are shared by tensor ranks: what prepares the input of a block, first and second matrices."""
    if not fp8:
        return PrepareModuleInput, ColwiseParallel, RowwiseParallel
    from torchao.float8.float8_tensor_parallel import Float8ColwiseParallel, Float8RowwiseParallel, PrepareFloat8ModuleInput
    return PrepareFloat8ModuleInput, Float8ColwiseParallel, Float8RowwiseParallel


def shard_over_tensor_ranks(stage, mesh, fp8):
    """Each rank's rows of the fused first matrices are its own whole heads, and gate and up columns. This orders the rows of the whole
    matrix in another way, which makes no difference for random weights."""
    prepare, first, second = tensor_styles(fp8)
    for layer in stage.layers:
        parallelize_module(layer, mesh, {
            "attention_norm": SequenceParallel(),
            "attention": prepare(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
            "attention.qkv": first(), "attention.proj": second(output_layouts=Shard(1)),
            "mlp_norm": SequenceParallel(),
            "mlp": prepare(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "mlp.fc1": first(), "mlp.fc2": second(output_layouts=Shard(1))})
        layer.attention.heads //= mesh.size()
        layer.attention.kv_heads //= mesh.size()
    parallelize_module(stage, mesh, {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})


def use_async_tp(mesh):
    """Products in pieces with copies between GPUs under them, of the compiler."""
    torch._inductor.config._micro_pipeline_tp = True
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group
    enable_symm_mem_for_group(mesh.get_group().group_name)


class Trainer:
    """One training step of this rank; loss and gradient norm stay on the device."""

    def __init__(self, shape, arguments):
        self.shape = shape
        self.device = torch.device("cuda", torch.cuda.current_device()) if arguments.device == "cuda" else torch.device("cpu")
        layout = shape["layout"]
        self.mesh = init_device_mesh(arguments.device, (layout["pipeline"], layout["data"], layout["tensor"]),
                                     mesh_dim_names=("pp", "dp", "tp"))
        self.tensor, self.pipeline = layout["tensor"], layout["pipeline"]
        self.expert = shape["experts"]["ranks"] if shape.get("experts") else 1
        self.gathers_fp8 = arguments.fp8 and layout["data"] > 1
        self.expert_mesh = self.make_expert_mesh(arguments)
        self.stages = {index: self.make_stage(index, arguments) for index in self.stage_indices()}
        if arguments.async_tp:
            use_async_tp(self.mesh["tp"])
        self.loss = token_loss if arguments.eager or self.tensor > 1 else torch.compile(token_loss)
        self.schedule = self.make_schedule() if self.pipeline > 1 else None
        self.optimizer = self.make_optimizer()

    def make_expert_mesh(self, arguments):
        """Neighbours exchange rows; the ranks of the other dimension have the same experts. None for models without."""
        if not self.shape.get("experts"):
            return None
        if self.tensor > 1 or self.pipeline > 1:
            raise SystemExit("torch_multi.py: experts are for layouts without tensor and pipeline ranks")
        return init_device_mesh(arguments.device, (self.shape["layout"]["data"] // self.expert, self.expert),
                                mesh_dim_names=("same_experts", "exchange"))

    def num_stages(self):
        return self.pipeline * self.shape["layout"]["virtual_stages"]

    def stage_indices(self):
        return range(self.mesh["pp"].get_local_rank(), self.num_stages(), self.pipeline)

    def make_stage(self, index, arguments):
        with torch.device("meta"):
            stage = Stage(self.shape, index)
        if self.num_stages() == 1:
            check_parameters(stage, self.shape)
        if self.expert > 1:
            for layer in stage.layers:
                layer.mlp.experts.share(self.expert_mesh["exchange"].get_group(), compiled=not arguments.eager)
        if arguments.fp8:
            convert_to_fp8(stage, arguments, self.gathers_fp8)
        if self.tensor > 1:
            shard_over_tensor_ranks(stage, self.mesh["tp"], arguments.fp8)
        if self.shape["layout"]["recompute"] == "full":
            for i, layer in enumerate(stage.layers):
                stage.layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False)
        if not arguments.eager:
            for layer in stage.layers:
                layer.compile()
        self.shard_over_data_ranks(stage)
        stage.to_empty(device=self.device)
        stage.initialise(self.shape, seed=1 + dist.get_rank())
        return stage

    def shard_over_data_ranks(self, stage):
        """With one data rank too: FSDP2 keeps the fp32 weights beside the bf16 ones, and fp32 gradients."""
        policy = MixedPrecisionPolicy(param_dtype=getattr(torch, self.shape["dtype"]), reduce_dtype=torch.float32,
                                      cast_forward_inputs=False)
        common = {"mesh": self.mesh["dp"], "mp_policy": policy}
        reshard = self.shape["layout"]["shard"] == "parameters"
        for layer in stage.layers:
            if self.expert_mesh:
                fully_shard(layer.mlp.experts, **common | {"mesh": self.expert_mesh["same_experts"]}, reshard_after_forward=reshard)
            fully_shard(layer, **common, reshard_after_forward=reshard)
        if stage.output is not None:
            fully_shard([stage.norm, stage.output], **common, reshard_after_forward=False)
        if stage.embedding is not None and not self.shape["tied_embeddings"]:
            fully_shard(stage.embedding, **common, reshard_after_forward=reshard)
        fully_shard(stage, **common, reshard_after_forward=False)

    def make_schedule(self):
        stages = [PipelineStage(stage, index, self.num_stages(), self.device, group=self.mesh["pp"].get_group())
                  for index, stage in self.stages.items()]
        return ScheduleInterleaved1F1B(stages, self.shape["microbatches"], loss_fn=self.loss)

    def parameters(self):
        return [parameter for stage in self.stages.values() for parameter in stage.parameters()]

    def dense_and_expert_parameters(self):
        """Two lists: their shards are on different meshes, which PyTorch does not take together."""
        named = [each for stage in self.stages.values() for each in stage.named_parameters()]
        return [[parameter for name, parameter in named if is_of_experts(name) == experts] for experts in (False, True)]

    def make_optimizer(self):
        shape = self.shape
        dense, experts = self.dense_and_expert_parameters()
        decayed = [p for p in dense if p.dim() > 1]
        others = [p for p in dense if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": shape["weight_decay"]}, {"params": experts, "weight_decay": shape["weight_decay"]},
                  {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW([group for group in groups if group["params"]], lr=shape["learning_rate"],
                                 betas=(shape["beta1"], shape["beta2"]), eps=shape["epsilon"], fused=True)

    def accumulate(self, microbatches):
        """Gradients of all microbatches; data ranks reduce them once, after the last."""
        (model,) = self.stages.values()
        total = torch.zeros((), device=self.device)
        for i, (tokens, labels) in enumerate(microbatches):
            last = i == len(microbatches) - 1
            model.set_requires_gradient_sync(last)
            model.set_is_last_backward(last)
            if self.shape["layout"]["shard"] != "parameters":
                model.set_reshard_after_backward(last)
            total += self.backward(model, tokens, labels) / len(microbatches)
        return total

    def backward(self, model, tokens, labels):
        count = self.shape["microbatches"]
        if self.tensor == 1:
            loss = self.loss(model(tokens), labels)
            (loss / count).backward()
            return loss.detach()
        with loss_parallel():
            loss = self.loss(model(tokens), labels)
            (loss / count).backward()
        return loss.detach().full_tensor() if hasattr(loss, "full_tensor") else loss.detach()

    def run_pipeline(self, microbatches):
        tokens, labels = (torch.cat(parts) for parts in zip(*microbatches))
        losses = []
        arguments = [tokens] if 0 in self.stages else []
        targets = {"target": labels, "losses": losses} if self.num_stages() - 1 in self.stages else {}
        self.schedule.step(*arguments, **targets, return_outputs=False)  # nobody wants the logits of all microbatches at once
        return torch.stack(losses).mean().detach() if losses else torch.zeros((), device=self.device)

    def clip(self):
        """By the norm over all ranks."""
        if self.expert_mesh:
            return self.clip_with_experts()
        parameters = self.parameters()
        if self.pipeline == 1:
            return torch.nn.utils.clip_grad_norm_(parameters, self.shape["clip_norm"], foreach=True)
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=True)
        square = (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).square()
        dist.all_reduce(square, group=self.mesh["pp"].get_group())
        torch.nn.utils.clip_grads_with_norm_(parameters, self.shape["clip_norm"], square.sqrt(), foreach=True)
        return square.sqrt()

    def clip_with_experts(self):
        """Gradients of experts are sums over the ranks that exchange rows, and dense ones are means over all data ranks. Clipping
        multiplies all of them anyway, so it makes them alike."""
        dense, experts = ([p.grad.to_local() for p in part if p.grad is not None] for part in self.dense_and_expert_parameters())
        dense_norm, expert_norm = (torch.nn.utils.get_total_norm(part, foreach=True) for part in (dense, experts))
        square = dense_norm.square() + (expert_norm / self.expert).square()
        dist.all_reduce(square, group=self.mesh["dp"].get_group())
        norm = square.sqrt()
        factor = (self.shape["clip_norm"] / (norm + 1e-6)).clamp(max=1)
        torch._foreach_mul_(dense, factor)
        torch._foreach_mul_(experts, factor / self.expert)
        return norm

    def step(self, microbatches):
        loss = self.run_pipeline(microbatches) if self.schedule else self.accumulate(microbatches)
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.gathers_fp8:
            self.compute_scales_of_weights()
        return loss

    def compute_scales_of_weights(self):
        """All at once, by one exchange between the data ranks."""
        from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp
        for stage in self.stages.values():
            precompute_float8_dynamic_scale_for_fsdp(stage)


def measure(trainer, shape, arguments):
    """Times the steps after `warmup` ones, on the clock of rank 0 between two barriers."""
    data_rank = trainer.mesh["dp"].get_local_rank()
    generator = torch.Generator(arguments.device).manual_seed(1 + data_rank)  # the same tokens on the ranks that share them

    def step():
        return trainer.step([random_microbatch(shape, generator, arguments.device) for _ in range(shape["microbatches"])])

    losses = [step() for _ in range(arguments.warmup)]
    clock = Clock(arguments.device)
    clock.wait()
    dist.barrier()
    begin = time.perf_counter()
    clock.mark()
    for _ in range(shape["steps"] - arguments.warmup):
        losses.append(step())
        clock.mark()
    clock.wait()
    dist.barrier()
    seconds = time.perf_counter() - begin
    tokens = shape["global_batch"] * shape["sequence"] * (shape["steps"] - arguments.warmup)
    return {"tokens_per_s": tokens / seconds, "step_ms": clock.step_ms(), "loss": largest(losses[-1].item(), arguments.device)}


def largest(value, device):
    """Over all ranks: only some have a loss, and memory differs."""
    everywhere = torch.tensor(float(value), dtype=torch.float64, device=device)
    dist.all_reduce(everywhere, op=dist.ReduceOp.MAX)
    return everywhere.item()


def chosen_attention(shape, arguments):
    """Rank 0 measures, all do the same."""
    heads = {key: shape[key] // shape["layout"]["tensor"] for key in ("heads", "kv_heads")}
    choice = [None, None]
    if dist.get_rank() == 0:
        choice = list(torch_llm.choose_attention("fastest", {**shape, **heads}, shape["microbatch"], arguments.device))
    dist.broadcast_object_list(choice, src=0)
    return choice


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="JSON file of braid_bench_floor --describe")
    parser.add_argument("--store", required=True, help="a new file by which the ranks meet")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the timed ones")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--async-tp", action="store_true", help="tensor ranks: products in pieces, made by the compiler")
    parser.add_argument("--fp8", action="store_true", help="matrices of layers in FP8 with one scale each, by torchao")
    parser.add_argument("--time-limit", type=int, default=420, help="seconds after which a rank says where it is and ends")
    return parser.parse_args()


def join_ranks(arguments):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    options = {"init_method": f"file://{arguments.store}", "rank": rank, "world_size": ranks,
               "timeout": datetime.timedelta(seconds=arguments.time_limit)}
    if arguments.device == "cuda":
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank), **options)
    else:
        dist.init_process_group("gloo", **options)


def main():
    arguments = parse_arguments()
    begin = time.perf_counter()
    faulthandler.dump_traceback_later(arguments.time_limit, exit=True)
    with open(arguments.model, encoding="utf-8") as file:
        shape = json.load(file)
    join_ranks(arguments)
    torch.set_float32_matmul_precision("high")
    attention, attention_times = chosen_attention(shape, arguments)
    with sdpa_kernel(ATTENTIONS[attention]):
        trainer = Trainer(shape, arguments)
        result = measure(trainer, shape, arguments)
    cuda = arguments.device == "cuda"
    result |= {"allocated_bytes": largest(torch.cuda.max_memory_allocated(), "cuda") if cuda else None,
               "reserved_bytes": largest(torch.cuda.max_memory_reserved(), "cuda") if cuda else None}
    if dist.get_rank() == 0:
        print(json.dumps({"version": torch.__version__, "attention": attention, "attention_ms": attention_times,
                          "compiled": not arguments.eager, "async_tp": arguments.async_tp, "fp8": arguments.fp8,
                          "warmup": arguments.warmup,
                          "total_s": time.perf_counter() - begin, **result}), flush=True)
    dist.barrier()
    os._exit(0)  # everything is said, and taking libraries down in order can hang or abort


if __name__ == "__main__":
    main()
