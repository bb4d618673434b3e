#!/usr/bin/env python3
"""The other side of peft_test.py: peft reads adapters.

    peft_side.py FOLDER NAME...

FOLDER/base is a model. For each NAME, FOLDER/NAME_adapters has adapters of it, and FOLDER/NAME_merged the model with these added.
Writes FOLDER/answer.json: how many matrices have adapters, by how much these change logits of random tokens, and by how much the logits
differ from the merged model's. Nothing of braid is used here.
"""
import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"  # everything is made here
import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def compare(folder, name, tokens):
    base = load(folder / "base")
    alone = base(tokens).logits.clone()
    model = peft.PeftModel.from_pretrained(base, folder / f"{name}_adapters")
    adapted = model(tokens).logits
    merged = load(folder / f"{name}_merged")(tokens).logits
    return {"adapted": sum("lora_A" in key for key, _ in model.named_parameters()), "change": (adapted - alone).abs().max().item(),
            "error": (adapted - merged).abs().max().item()}


def main():
    folder, names = pathlib.Path(sys.argv[1]), sys.argv[2:]
    torch.manual_seed(20261128)
    tokens = torch.randint(0, 250, (2, 48))
    with torch.no_grad():
        answer = {name: compare(folder, name, tokens) for name in names}
    (folder / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
