"""Low-rank adapters for torch_llm.py by the package peft, which must be installed: as somebody fine-tunes a Hugging Face model, whose
query, key, value, gate and up are matrices of their own.
"""
import torch
from torch import nn

TARGETS = ["q", "k", "v", "proj", "gate", "up", "fc2"]


class SplitLinear(nn.Module):
    """Matrices side by side, each with adapters of its own; the result is that of one matrix."""

    def __init__(self, width, features, bias):
        super().__init__()
        self.names = list(features)
        for name, count in features.items():
            setattr(self, name, nn.Linear(width, count, bias=bias))

    def forward(self, x):
        return torch.cat([getattr(self, name)(x) for name in self.names], -1)


def add_adapters(model, lora):
    """In place: all matrices of layers get adapters, everything else is frozen. The model is in bf16 and without weights yet."""
    from peft import LoraConfig, inject_adapter_in_model
    shape = model.shape
    heads = {"q": shape["heads"], "k": shape["kv_heads"], "v": shape["kv_heads"]}
    for layer in model.layers:
        layer.attention.qkv = SplitLinear(shape["width"], {name: count * shape["head_size"] for name, count in heads.items()},
                                          shape["qkv_bias"])
        layer.mlp.fc1 = SplitLinear(shape["width"], {"gate": shape["ffn"], "up": shape["ffn"]}, False)
    model.to(torch.bfloat16)
    inject_adapter_in_model(LoraConfig(r=lora["rank"], lora_alpha=lora["alpha"], target_modules=TARGETS), model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)


def initialise_adapters(model):
    """As peft does: A random, B zero."""
    for name, parameter in model.named_parameters():
        if "lora_A" in name:
            nn.init.kaiming_uniform_(parameter, a=5 ** 0.5)
        elif "lora_B" in name:
            nn.init.zeros_(parameter)
