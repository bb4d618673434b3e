#!/usr/bin/env python3
"""The other side of dcp_test.py: PyTorch reads and writes checkpoints of torch.distributed.checkpoint.

    dcp_side.py read FOLDER      loads FOLDER/dcp into a model of transformers; it must have the bits of FOLDER/exported
    dcp_side.py write FOLDER     changes that model, and two ranks write their shards of it to FOLDER/sharded, under names "app.model."
    dcp_side.py compare FOLDER   the changed model must have the bits of FOLDER/back

Nothing of braid is used here.
"""
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"  # everything is made here
import torch  # noqa: E402
import torch.distributed.checkpoint as checkpoint  # noqa: E402
import transformers  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
PREFIX = "app.model."
NUM_RANKS = 2


def pretrained(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def require_equal(state, expected):
    if state.keys() != expected.keys():
        sys.exit(f"other tensors: {sorted(state.keys() ^ expected.keys())}")
    for name, tensor in expected.items():
        if state[name].dtype != tensor.dtype or not torch.equal(state[name], tensor):
            sys.exit(f"{name} differs")


def read(folder):
    expected = pretrained(folder / "exported").state_dict()
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder / "dcp"))
    state = model.state_dict()
    for tensor in state.values():
        tensor.fill_(float("nan"))
    stored = checkpoint.FileSystemReader(folder / "dcp").read_metadata().state_dict_metadata
    if set(stored) != {f"model.{name}" for name in state}:
        sys.exit(f"the checkpoint has {sorted(stored)}")
    checkpoint.load({"model": state}, checkpoint_id=folder / "dcp")
    require_equal(state, expected)


def changed(folder):
    """The same numbers in every process."""
    state = pretrained(folder / "exported").state_dict()
    generator = torch.Generator().manual_seed(3)
    return {name: tensor + 0.01 * torch.randn(tensor.shape, generator=generator) for name, tensor in state.items()}


def write_shards(rank, folder):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK=str(rank), WORLD_SIZE=str(NUM_RANKS))
    store = torch.distributed.FileStore(str(folder / "store"), NUM_RANKS)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS)
    mesh = init_device_mesh("cpu", (NUM_RANKS,))
    # Rows, columns or copies; rows that two ranks cannot share equally, too.
    state = {}
    for number, (name, tensor) in enumerate(changed(folder).items()):
        place = Replicate() if number % 3 == 2 else Shard(number % 3 if tensor.dim() > 1 else 0)
        state[PREFIX + name] = distribute_tensor(tensor, mesh, [place])
    checkpoint.save({**state, "app.step": 7}, checkpoint_id=folder / "sharded")
    torch.distributed.destroy_process_group()


def write(folder):
    torch.multiprocessing.spawn(write_shards, args=(folder,), nprocs=NUM_RANKS)


def compare(folder):
    state = pretrained(folder / "back").state_dict()
    expected = changed(folder)
    require_equal(state, expected)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"read": read, "write": write, "compare": compare}[sys.argv[1]](pathlib.Path(sys.argv[2]))
