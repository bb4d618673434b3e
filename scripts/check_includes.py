#!/usr/bin/env python3
"""Checks that includes point one way.

    scripts/check_includes.py [root]

Prints one line per violation and exits 1 if there is any. MAY_SEE is the layer order of the source folders; what else
is checked stands beside each function.
"""
import pathlib
import re
import sys

# Folder -> folders whose headers it may include (its own always). A folder below another, such as "backends/cpu", is one of its
# own where it has an entry. An entry "folder/file.h" allows that one header.
MAY_SEE = {
    "base": [],
    "ir": ["base"],
    "ops": ["base", "ir"],
    "model": ["base", "ir", "ops"],
    "parallel": ["base", "ir", "ops", "model"],
    "memory": ["base", "ir", "ops"],
    "comm": ["base", "ir", "ops"],
    "trace": ["base", "ir", "ops"],
    "sim": ["base", "ir", "ops", "parallel", "comm", "trace"],
    # A pass says itself which keys of the run file it reads and what a search may set. Passes over all ranks simulate them.
    "passes": ["base", "ir", "ops", "model", "parallel", "memory", "comm", "sim", "config/run_config.h",
               "config/choices.h", "config/sm_budget.h", "config/tensor_sites.h", "config/validate.h"],
    # Executors allocate what the plan says; they do not plan.
    "backends": ["base", "ir", "ops", "comm", "trace", "memory/memory_plan.h"],
    "backends/cpu": ["base", "ir", "ops", "comm", "trace", "memory/memory_plan.h", "backends"],
    "backends/cuda": ["base", "ir", "ops", "comm", "trace", "memory/memory_plan.h", "backends"],
    # What all others see of these two.
    "backends/registry": ["base", "backends", "backends/cpu/cpu_backend.h", "backends/cuda/cuda_backend.h"],
    "data": ["base"],
    "checkpoint": ["base", "ir"],
    "hugging_face": ["base", "model", "checkpoint"],
    # Types that keys of names stand for.
    "config": ["base", "model", "parallel/optimizer_options.h", "parallel/parallel_options.h", "parallel/schedule.h"],
    "report": ["base", "ir", "memory", "trace", "passes", "parallel/schedule_stats.h"],
    "plan": ["base", "ir", "ops", "model", "parallel", "memory", "comm", "trace", "sim", "passes", "config",
             "report", "backends/backend.h", "backends/registry"],
    "tune": ["base", "ir", "ops", "model", "parallel", "memory", "comm", "trace", "sim", "passes", "config",
             "report", "plan"],
    "state": ["base", "ir", "model", "parallel", "comm", "backends", "data", "checkpoint", "hugging_face", "config", "plan"],
    "runtime": ["base", "ir", "ops", "model", "parallel", "memory", "comm", "trace", "sim", "passes", "backends",
                "backends/registry", "data", "checkpoint", "hugging_face", "config", "report", "plan", "tune", "state"],
    "launch": ["base", "parallel", "comm", "config", "plan", "runtime"],
    "calibrate": ["base", "ir", "ops", "memory", "comm", "trace", "sim", "config", "backends", "backends/registry", "plan", "runtime"],
    "emulate": ["base", "ir", "ops", "model", "parallel", "memory", "comm", "trace", "sim", "passes", "backends",
                "backends/registry", "config", "report", "plan", "state", "runtime"],
    "generate": ["base", "model", "parallel", "backends", "backends/registry", "data", "config", "plan", "state", "runtime"],
    "verify": ["base", "ir", "ops", "model", "parallel", "comm", "backends", "backends/registry", "data", "config", "plan", "state"],
    "train": ["base", "ir", "ops", "model", "parallel", "memory", "comm", "trace", "sim", "backends", "data", "checkpoint",
              "hugging_face", "config", "report", "plan", "state", "runtime", "launch"],
    "evaluate": ["base", "model", "comm", "config", "data", "state", "runtime", "launch", "generate", "train/training_setup.h"],
    # The facade, include/braid: what it shows is of the standard library.
    "api": ["base", "ir", "memory", "comm", "config", "data", "plan", "report", "runtime", "sim", "launch", "train", "verify"],
    "cli": ["base", "ir", "ops", "model", "parallel", "memory", "comm", "trace", "sim", "passes", "backends", "backends/registry",
            "data", "checkpoint", "hugging_face", "config", "report", "plan", "tune", "state", "runtime", "launch",
            "calibrate", "emulate", "generate", "evaluate", "verify", "train"],
}

# Headers that cost every file that includes them most of a second.
HEAVY = re.compile(r"^(nlohmann/json\.hpp|toml\+\+/|CLI/|gtest/|gmock/|sentencepiece_|fmt/(format|ranges|chrono)\.h|spdlog/|regex$)")

# The library's ways to read JSON, by whatever name a file gives its type.
JSON_PARSER = re.compile(r"(?i:json)::(parse|sax_parse|accept|from_\w+)\(|\"_json\b")

SOURCES = (".h", ".cpp", ".cu", ".cuh")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def includes(path):
    """(line number, quoted?, path) of each include directive."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = INCLUDE.match(line)
        if found:
            yield number, found.group(1) == '"', found.group(2)


def layer_of(path):
    """The entry of MAY_SEE for a path below src/: the deepest of its folders that has one, or None."""
    return next((folder for folder in map(str, pathlib.PurePosixPath(path).parents) if folder in MAY_SEE), None)


def check_layer(src, path):
    """Quoted includes start at src/, exist, and lie in this folder or in one below it in the order."""
    folder = layer_of(path.relative_to(src).as_posix())
    if folder is None:
        yield 1, f"{path.relative_to(src.parent)} is in no folder of the layer order of scripts/check_includes.py"
        return
    for number, quoted, target in includes(path):
        if not quoted:
            continue
        if not (src / target).is_file():
            yield number, f'"{target}" is not a file of src/: include own headers by their path from src/'
        elif layer_of(target) not in [folder, *MAY_SEE[folder]] and target not in MAY_SEE[folder]:
            yield number, f'src/{folder} may not include "{target}" (allowed: {", ".join(MAY_SEE[folder]) or "nothing"})'


def is_in_header(src, header):
    """Whether any header of src/ includes this one."""
    return any(target == header.relative_to(src).as_posix()
               for path in src.rglob("*.h") for _, _, target in includes(path))


def check_header(src, path):
    """Headers are guarded, and light: a slow one may stand in a header only if nothing but sources includes that."""
    if path.suffix not in (".h", ".cuh"):
        return
    if "#pragma once" not in path.read_text():
        yield 1, "no #pragma once"
    for number, quoted, target in includes(path):
        if not quoted and HEAVY.match(target) and is_in_header(src, path):
            yield number, f"<{target}> is slow to compile: include it in sources only"


def check_reach(src, path):
    """CUDA stays in backends/cuda; the environment is read in base/env only, JSON in base/json only; cli/app prints."""
    relative = path.relative_to(src).as_posix()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        code = line.split("//")[0]
        if not relative.startswith("backends/cuda/"):
            if "<<<" in code:
                yield number, "kernel launch outside backends/cuda"
            if re.search(r"include\s*<(cuda|cublas|cudnn|cupti|nccl|nvtx)", code):
                yield number, "CUDA header outside backends/cuda"
        if re.search(r"\bgetenv\s*\(", code) and not relative.startswith("base/env"):
            yield number, "environment read outside base/env"
        if re.search(r"\b(stdout|stderr|cout|cerr)\b", code) and relative != "cli/app.cpp":
            yield number, "output outside cli/app, which shows control characters of names: use Console or print_error"
        if JSON_PARSER.search(code) and not relative.startswith("base/json"):
            yield number, "JSON read outside base/json, which limits depth and size: use parse_json"


def check_table(src):
    """Each folder and header that MAY_SEE names exists: what is gone needs no permission."""
    for folder, seen in MAY_SEE.items():
        for name in [folder, *seen]:
            if not (src / name).exists():
                yield f'scripts/check_includes.py: MAY_SEE["{folder}"]: src/{name} does not exist'
            elif name.endswith(".h") and not any(name == target for path in src.rglob("*.*") if path.suffix in SOURCES
                                                 and layer_of(path.relative_to(src).as_posix()) == folder
                                                 for _, _, target in includes(path)):
                yield f'scripts/check_includes.py: MAY_SEE["{folder}"]: no file there includes "{name}"'


def violations(root):
    """'path:line: reason' for each broken rule under root/src."""
    src = root / "src"
    yield from check_table(src)
    for path in sorted(src.rglob("*")):
        if path.suffix not in SOURCES:
            continue
        for check in (check_layer, check_header, check_reach):
            for number, reason in check(src, path):
                yield f"{path.relative_to(root)}:{number}: {reason}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"includes: {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
