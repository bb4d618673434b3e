#!/usr/bin/env python3
"""The other side of preference_test.py: learns from pairs of answers with Hugging Face transformers and PyTorch on the CPU.

    preference_side.py make|train FOLDER

Nothing of braid is used here. The model is that of transformers; the losses are those of TRL's DPOTrainer, written out: two forwards,
of the model and of a copy that stays as it was, and autograd. FOLDER/request.json has the settings. `make` writes FOLDER/start, the
model, and FOLDER/pairs.jsonl. `train` writes FOLDER/answer.json: what each step had, in float32 and in float64.
"""
import copy
import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"  # everything is made here
import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.manual_seed(20261129)
torch.set_num_threads(1)  # the same sums on every machine

END = 256  # of a document, behind the bytes


def make(folder, request):
    model_class = getattr(transformers, request["architecture"])
    model = model_class(model_class.config_class(**request["config"]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder / "start")
    random = numpy.random.RandomState(5)

    def word(letters):
        return "".join(random.choice(list(letters)) for _ in range(random.randint(1, 12)))

    pairs = [{"prompt": word("abxyz"), "chosen": word("aeiou"), "rejected": word("bcdfg")} for _ in range(request["pairs"])]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))


def padded(pairs, length):
    """Tokens [2 * pairs, length + 1] and whether they are of answers: the preferred answer of each pair, then the rejected one."""
    tokens = torch.full((2 * len(pairs), length + 1), END)
    answers = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, (pair, side) in enumerate((pair, side) for pair in pairs for side in ("chosen", "rejected")):
        prompt, answer = list(pair["prompt"].encode()), list(pair[side].encode()) + [END]
        tokens[row, :len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        answers[row, len(prompt):len(prompt) + len(answer)] = True
    return tokens, answers


def logps_of(model, tokens, answers, average):
    """trl.trainer.dpo_trainer: sums of the log-probabilities of answers; with ipo, means."""
    logits = model(input_ids=tokens[:, :-1]).logits
    per_token = torch.gather(logits.log_softmax(-1), 2, tokens[:, 1:].unsqueeze(2)).squeeze(2)
    mask = answers[:, 1:]
    sums = (per_token * mask).sum(-1)
    sums = sums / mask.sum(-1) if average else sums
    return sums[0::2], sums[1::2]


def loss_of(ratios, settings):
    beta, smoothing = settings["beta"], settings.get("label_smoothing", 0.0)
    log_sigmoid = torch.nn.functional.logsigmoid
    return {"dpo": lambda: -log_sigmoid(beta * ratios) * (1 - smoothing) - log_sigmoid(-beta * ratios) * smoothing,
            "hinge": lambda: torch.relu(1 - beta * ratios),
            "ipo": lambda: (ratios - 1 / (2 * beta)) ** 2}[settings["loss"]]()


def order_of(count, steps, pairs_per_step, seed):
    """The pairs of each step: each epoch in an order of its own."""
    random = numpy.random.RandomState(seed)
    order = []
    while len(order) < steps * pairs_per_step:
        epoch = numpy.arange(count, dtype=numpy.uint32)
        random.shuffle(epoch)
        order += epoch.tolist()
    return [order[step * pairs_per_step:(step + 1) * pairs_per_step] for step in range(steps)]


def train(folder, request, settings, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "start", dtype=dtype).train()
    reference = copy.deepcopy(model).eval()
    pairs = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    optimizer = torch.optim.SGD(model.parameters(), lr=request["learning_rate"])
    average = settings["loss"] == "ipo"
    steps = []
    for chosen_pairs in order_of(len(pairs), request["steps"], request["global_batch"] // 2, request["seed"]):
        tokens, answers = padded([pairs[i] for i in chosen_pairs], request["sequence"])
        optimizer.zero_grad()
        chosen, rejected = logps_of(model, tokens, answers, average)
        with torch.no_grad():
            reference_chosen, reference_rejected = logps_of(reference, tokens, answers, average)
        loss = loss_of((chosen - reference_chosen) - (rejected - reference_rejected), settings).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rewards = [settings["beta"] * (a - b).detach() for a, b in ((chosen, reference_chosen), (rejected, reference_rejected))]
        steps.append({"loss": loss.item(), "grad_norm": norm.item(), "rewards/chosen": rewards[0].mean().item(),
                      "rewards/rejected": rewards[1].mean().item(), "rewards/margins": (rewards[0] - rewards[1]).mean().item(),
                      "rewards/accuracies": (rewards[0] > rewards[1]).double().mean().item(),
                      "logps/chosen": chosen.mean().item(), "logps/rejected": rejected.mean().item()})
        optimizer.step()
    return steps


def train_all(folder, request):
    answer = {name: {dtype: train(folder, request, settings, getattr(torch, dtype)) for dtype in ("float32", "float64")}
              for name, settings in request["runs"].items()}
    (folder / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    work = pathlib.Path(sys.argv[2])
    {"make": make, "train": train_all}[sys.argv[1]](work, json.loads((work / "request.json").read_text()))
