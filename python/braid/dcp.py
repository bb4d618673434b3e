"""Model weights to and from checkpoints of PyTorch's torch.distributed.checkpoint (DCP).

    python -m braid.dcp to-torch MODEL OUT      MODEL: a run folder, a checkpoint or a Hugging Face folder
    python -m braid.dcp from-torch FOLDER OUT   OUT: a Hugging Face folder, which `braid import` reads

The tensors of a DCP folder have the names of the Hugging Face model, behind --prefix if it is given. Beside them are
the small files of the Hugging Face folder (config.json, the tokenizer), which torch does not look at. docs/python.md
says more. Only this module needs PyTorch, and not the rest of braid, so it also runs as a script.
"""
import argparse
import json
import mmap
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

# Of safetensors, by the names that torch has for them.
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32"}
MAX_FILE_BYTES = 5_000_000_000
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Failure(Exception):
    """What the user can put right, in one line."""


def import_torch():
    try:
        import torch
        import torch.distributed.checkpoint  # noqa: F401
        # Without a process group it works in this process, and says so each time.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
    except ImportError as error:
        raise Failure(f"{error}: this needs PyTorch; pip install torch") from None
    return torch


def read_header(path):
    """The tensors of a safetensors file as (name, dtype, shape, begin, end), and the byte where they begin."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return [(name, it["dtype"], it["shape"], *it["data_offsets"]) for name, it in header.items()], 8 + size


def weight_files(folder):
    if (folder / INDEX).exists():
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        return sorted({folder / name for name in index["weight_map"].values()})
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    raise Failure(f"{folder} has neither {WEIGHTS} nor {INDEX}")


def read_tensors(torch, folder):
    """All tensors of a Hugging Face folder by name. They are views of the files, which are read as they are used."""
    tensors = {}
    for path in weight_files(folder):
        entries, begin = read_header(path)
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        for name, dtype, shape, first, last in entries:
            if dtype not in DTYPES:
                raise Failure(f"{path}: {name} is {dtype}; it must be one of {', '.join(DTYPES)}")
            kind = getattr(torch, DTYPES[dtype])
            flat = torch.frombuffer(data, dtype=torch.uint8, count=last - first, offset=begin + first) if last > first \
                else torch.empty(0, dtype=torch.uint8)
            tensors[name] = flat.clone().view(kind).reshape(shape) if (begin + first) % 8 else flat.view(kind).reshape(shape)
    return tensors


def write_tensors(torch, tensors, folder):
    """In files of up to MAX_FILE_BYTES, as transformers writes them."""
    names = {str(getattr(torch, name)): key for key, name in DTYPES.items()}
    files = [[]]
    room = MAX_FILE_BYTES
    for name, tensor in tensors.items():
        if str(tensor.dtype) not in names:
            raise Failure(f"{name} is {tensor.dtype}; it must be one of {', '.join(DTYPES.values())}")
        size = tensor.numel() * tensor.element_size()
        if size > room and files[-1]:
            files.append([])
            room = MAX_FILE_BYTES
        files[-1].append((name, tensor, size))
        room -= size
    weight_map = {}
    for number, content in enumerate(files, 1):
        file_name = WEIGHTS if len(files) == 1 else f"model-{number:05}-of-{len(files):05}.safetensors"
        write_file(torch, folder / file_name, content, names)
        weight_map.update({name: file_name for name, _, _ in content})
    if len(files) > 1:
        total = sum(size for content in files for _, _, size in content)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def write_file(torch, path, content, names):
    header = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, tensor, size in content:
        header[name] = {"dtype": names[str(tensor.dtype)], "shape": list(tensor.shape), "data_offsets": [begin, begin + size]}
        begin += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor, size in content:
            if size > 0:
                file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
        file.flush()
        os.fsync(file.fileno())


def copy_small_files(source, target):
    """What a Hugging Face folder has beside its weights."""
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.startswith(".") and path.suffix in (".json", ".jinja", ".model", ".txt") and path.name != INDEX:
            shutil.copyfile(path, target / path.name)


def is_hugging_face(folder):
    return (folder / "config.json").exists() and ((folder / INDEX).exists() or (folder / WEIGHTS).exists())


def export(braid, model, folder):
    """Lets braid write `model` as a Hugging Face folder."""
    try:
        done = subprocess.run([braid, "export", str(model), str(folder)], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Failure(f"{braid}: {error.strerror}; give the program with --braid") from None
    if done.returncode != 0:
        raise Failure((done.stderr or done.stdout).strip())


def to_torch(arguments, work):
    torch = import_torch()
    from torch.distributed import checkpoint
    source = arguments.source
    if not is_hugging_face(source):
        source = work / "hugging_face"
        export(arguments.braid, arguments.source, source)
    state = {arguments.prefix + name: tensor for name, tensor in read_tensors(torch, source).items()}
    target = work / "dcp"
    target.mkdir()
    copy_small_files(source, target)
    checkpoint.save(state, storage_writer=checkpoint.FileSystemWriter(target, single_file_per_rank=True))
    return target, state


def read_state(torch, folder, prefix):
    """The tensors of a DCP folder whose names begin so, whole, whatever layout wrote them."""
    from torch.distributed import checkpoint
    if not (folder / ".metadata").exists():
        raise Failure(f"{folder} is no folder of torch.distributed.checkpoint: it has no .metadata")
    reader = checkpoint.FileSystemReader(folder)
    entries = reader.read_metadata().state_dict_metadata
    state = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in entries.items()
             if name.startswith(prefix) and isinstance(entry, checkpoint.metadata.TensorStorageMetadata)}
    if not state:
        some = ", ".join(list(entries)[:3]) or "nothing"
        raise Failure(f"{folder} has no tensor whose name begins with {prefix!r}; it has {some}; set --prefix")
    checkpoint.load(state, storage_reader=reader)
    return {name[len(prefix):]: tensor for name, tensor in state.items()}


def from_torch(arguments, work):
    torch = import_torch()
    config = arguments.config or arguments.source
    if not (config / "config.json").exists():
        raise Failure(f"{config} has no config.json, which says what model it is; name a folder that has one with --config")
    state = read_state(torch, arguments.source, arguments.prefix)
    target = work / "hugging_face"
    target.mkdir()
    copy_small_files(config, target)
    write_tensors(torch, state, target)
    return target, state


def convert(arguments):
    if arguments.out.exists():
        raise Failure(f"{arguments.out} exists; name another folder or remove it")
    if not arguments.source.exists():
        raise Failure(f"{arguments.source} does not exist")
    parent = arguments.out.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    # Beside the result, so that it appears complete or not at all.
    with tempfile.TemporaryDirectory(prefix=f".{arguments.out.name}.tmp-", dir=parent) as work:
        folder, state = arguments.run(arguments, pathlib.Path(work))
        size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
        folder.chmod(0o755)
        folder.rename(arguments.out)
    print(f"wrote {arguments.out}: {len(state)} tensors, {size / 2**20:.4g} MiB")


def parse(words):
    parser = argparse.ArgumentParser(prog="python -m braid.dcp", description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(required=True)
    for name, run, source, out in [("to-torch", to_torch, "MODEL", "OUT"), ("from-torch", from_torch, "FOLDER", "OUT")]:
        action = actions.add_parser(name)
        action.add_argument("source", metavar=source, type=pathlib.Path)
        action.add_argument("out", metavar=out, type=pathlib.Path)
        action.add_argument("--prefix", default="", help="in front of all names of tensors in the DCP folder, such as 'model.'")
        action.set_defaults(run=run)
        if name == "to-torch":
            action.add_argument("--braid", default=shutil.which("braid") or "braid", help="the program braid")
        else:
            action.add_argument("--config", type=pathlib.Path, help="the folder that has config.json (default: FOLDER)")
    return parser.parse_args(words)


def main(words=None):
    try:
        convert(parse(words))
    except Failure as failure:
        print(f"braid.dcp: {failure}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
