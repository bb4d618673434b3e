#!/usr/bin/env python3
"""The other side of transformers_test.py: trains with Hugging Face transformers and PyTorch on the CPU.

    transformers_side.py make|train FOLDER

Nothing of braid is used here. The model is that of transformers. The optimizer, its schedule, clipping and cross-entropy are PyTorch's.
The samples are put in the order of Megatron-LM's GPTDataset (core/datasets/gpt_dataset.py) with NumPy's random numbers.

FOLDER/request.json has the models and the settings of the run. Each model has a folder FOLDER/NAME. `make` writes what a run starts
from: the data, and the model as transformers saves it, in several forms. `train` trains from there, in float32 and in float64, then
loads what the other side exported. Both write FOLDER/answer.json.
"""
import json
import os
import pathlib
import struct
import sys

os.environ["HF_HUB_OFFLINE"] = "1"  # everything is made here
import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.manual_seed(20261126)
torch.set_num_threads(1)  # the same sums on every machine


def make_model(architecture, config):
    """A model with random weights. Those that start as zeros or ones (biases, norms) are random, too: a wrong one must show."""
    model_class = getattr(transformers, architecture)
    model = model_class(model_class.config_class(**config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn_like(buffer) * 0.05)
    return model


def make_documents(count, vocabulary):
    """Documents in which a token mostly decides the next one, so that there is something to learn."""
    random = numpy.random.RandomState(7)
    follower = random.permutation(vocabulary)
    documents = []
    for _ in range(count):
        tokens = [random.randint(vocabulary)]
        for _ in range(random.randint(5, 120)):
            tokens.append(follower[tokens[-1]] if random.rand() < 0.7 else random.randint(vocabulary))
        documents.append(numpy.array(tokens, numpy.uint16))
    return documents


def write_indexed_dataset(prefix, documents):
    """Megatron-LM's .bin and .idx (core/datasets/indexed_dataset.py), one sequence per document, tokens in 16 bits."""
    pathlib.Path(f"{prefix}.bin").write_bytes(b"".join(document.tobytes() for document in documents))
    lengths = numpy.array([len(document) for document in documents], numpy.int32)
    offsets = numpy.concatenate([[0], numpy.cumsum(lengths[:-1], dtype=numpy.int64) * 2]).astype(numpy.int64)
    boundaries = numpy.arange(len(documents) + 1, dtype=numpy.int64)
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(documents), len(boundaries))
    pathlib.Path(f"{prefix}.idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + boundaries.tobytes())


def samples_in_order(documents, tokens, count, seed):
    """[count, tokens + 1]: the first samples of Megatron-LM's GPTDataset. Documents of enough epochs in random order, end to end, are
    cut every `tokens` tokens; the cuts are shuffled. The last epoch is shuffled apart if less than 80% of it is needed."""
    per_epoch = sum(map(len, documents))
    epochs = -(-(count * tokens + 1) // per_epoch)
    cuts_of = lambda n: (n * per_epoch - 1) // tokens  # noqa: E731
    apart = epochs > 1 and count - cuts_of(epochs - 1) < int(0.80 * cuts_of(1))
    random = numpy.random.RandomState(seed)

    def shuffled(values, head):
        random.shuffle(values[:head])
        random.shuffle(values[head:])
        return values

    order = numpy.tile(numpy.arange(len(documents), dtype=numpy.int32), epochs)
    order = shuffled(order, len(documents) * (epochs - 1) if apart else len(order))
    stream = numpy.concatenate([documents[i] for i in order]).astype(numpy.int64)
    cuts = numpy.arange(cuts_of(epochs), dtype=numpy.uint32)
    cuts = shuffled(cuts, cuts_of(epochs - 1) if apart else len(cuts))
    return torch.from_numpy(numpy.stack([stream[cut * tokens: (cut + 1) * tokens + 1] for cut in cuts[:count].astype(numpy.int64)]))


def make_optimizer(model, settings):
    """AdamW that decays matrices and embeddings, not biases and norms; linear warmup, then half a cosine."""
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": settings["weight_decay"]},
              {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings["learning_rate"], betas=(settings["beta1"], settings["beta2"]), eps=settings["epsilon"])
    warmup, steps = settings["warmup_steps"], settings["steps"]
    schedulers = torch.optim.lr_scheduler
    rise = schedulers.LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)
    fall = schedulers.CosineAnnealingLR(optimizer, steps - warmup, eta_min=settings["min_learning_rate"])
    return optimizer, schedulers.SequentialLR(optimizer, [rise, fall], [warmup - 1])


def make_all(folder, request):
    """The initial models and the data. `start` is in float32; other forms are the same in several files and in other types."""
    for name, model in request["models"].items():
        made = make_model(model["architecture"], model["config"])
        made.save_pretrained(folder / name / "start")
        made.save_pretrained(folder / name / "start_in_files", max_shard_size="40KB")
        # Experts in one tensor, as in memory. Without experts this form is that of `start`, or, of Nemotron-H, of no published file.
        has_experts = any(".experts." in key for key in made.state_dict())
        made.save_pretrained(folder / name / "start_fused", save_original_format=not has_experts)
        made.to(torch.bfloat16).save_pretrained(folder / name / "start_bfloat16")
        write_indexed_dataset(folder / name / "data", make_documents(request["documents"], model["config"]["vocab_size"]))
    return {module.__name__: module.__version__ for module in (transformers, torch, numpy)}


def train(start, end, dtype, settings, documents):
    """Trains the model in folder `start`, saves it to `end`. Loss, gradient norm and learning rate of each step."""
    model = transformers.AutoModelForCausalLM.from_pretrained(start, dtype=dtype).train()
    samples = samples_in_order(documents, settings["sequence"], settings["steps"] * settings["global_batch"], settings["seed"])
    optimizer, scheduler = make_optimizer(model, settings)
    steps = []
    for rows in samples.split(settings["global_batch"]):
        optimizer.zero_grad()
        logits = model(input_ids=rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip_norm"])
        steps.append({"loss": loss.item(), "grad_norm": norm.item(), "learning_rate": scheduler.get_last_lr()[0]})
        optimizer.step()
        scheduler.step()
    model.save_pretrained(end)
    return steps


def load_strictly(folder):
    """The model in a folder, which has every tensor that transformers wants, and no other."""
    model, findings = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype="auto")
    assert not any(findings.values()), f"{folder}: {findings}"
    return model.eval()


def parameters_of(model):
    """Parameters by name; GPT-2's biases of query, key and value, one tensor in transformers, one by one."""
    found = dict(model.named_parameters())
    for name in [name for name in found if name.endswith("c_attn.bias")]:
        for part, bias in zip("qkv", found.pop(name).chunk(3)):
            found[name.replace("c_attn", f"{part}_attn")] = bias
    return found


def compare(first, second):
    """Largest differences of two saved models: of their logits for some tokens, and by parameter."""
    models = [load_strictly(folder) for folder in (first, second)]
    types = [str(model.dtype) for model in models]
    tokens = torch.from_numpy(numpy.random.RandomState(3).randint(models[0].config.vocab_size, size=(2, 24)))
    with torch.no_grad():
        logits = [model.double()(input_ids=tokens).logits for model in models]
    weights = [parameters_of(model) for model in models]
    assert weights[0].keys() == weights[1].keys()
    return {"classes": [type(model).__name__ for model in models], "types": types,
            "logits": (logits[0] - logits[1]).abs().max().item(),
            "weights": {name: (weights[0][name] - weights[1][name]).abs().max().item() for name in weights[0]}}


def train_all(folder, request):
    answer = {}
    for name, model in request["models"].items():
        documents = make_documents(request["documents"], model["config"]["vocab_size"])
        inside = folder / name
        answer[name] = {dtype: train(inside / "start", inside / f"end_{dtype}", getattr(torch, dtype), request["settings"], documents)
                        for dtype in ("float32", "float64")}
        for label, (first, second) in request["pairs"].items():
            answer[name][label] = compare(inside / first, inside / second)
    return answer


if __name__ == "__main__":
    work = pathlib.Path(sys.argv[2])
    act = {"make": make_all, "train": train_all}[sys.argv[1]]
    (work / "answer.json").write_text(json.dumps(act(work, json.loads((work / "request.json").read_text()))))
