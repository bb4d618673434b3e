#!/usr/bin/env python3
"""Inputs that the fuzzers found, which each run starts from: tests/fuzz/kept/NAME.tar.xz.

    kept_corpus.py unpack NAME FOLDER                 write them to FOLDER, as files
    kept_corpus.py renew NAME PROGRAM FOLDER...       keep of the old ones, and of those in FOLDERs, what PROGRAM needs
                                                      to reach what it reaches with all of them, beside the seeds

The program is the fuzzer with its sanitizers (build/fuzz/tests/fuzz/fuzz_NAME). scripts/fuzz.sh runs both forms.
"""
import io
import lzma
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent
MAX_BYTES = 4096  # of an input that is kept


def archive(name):
    return HERE / f"kept/{name}.tar.xz"


def seeds(name):
    """Files that are kept as they are, beside the archive."""
    folders = [HERE / "corpus" / name] + ([TESTS / "programs", TESTS / "reject"] if name == "program" else [])
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())


def unpack(name, folder):
    """Returns the files that it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    if not archive(name).exists():
        return []
    with tarfile.open(archive(name)) as tar:
        for member in tar.getmembers():
            (folder / member.name).write_bytes(tar.extractfile(member).read())
    return sorted(folder.iterdir())


def pack(name, contents):
    """The same inputs give the same bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for i, content in enumerate(sorted(contents, key=lambda one: (len(one), one))):
            member = tarfile.TarInfo(f"{i:04}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    archive(name).parent.mkdir(exist_ok=True)
    archive(name).write_bytes(lzma.compress(out.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def renew(name, program, folders):
    with tempfile.TemporaryDirectory() as temporary:
        old, merged = pathlib.Path(temporary) / "old", pathlib.Path(temporary) / "merged"
        unpack(name, old)
        merged.mkdir()
        known = {seed.read_bytes() for seed in seeds(name)}
        for i, seed in enumerate(seeds(name)):
            shutil.copy(seed, merged / f"seed{i}")
        subprocess.run([program, "-set_cover_merge=1", f"-max_len={MAX_BYTES}", "-timeout=10", merged, old, *folders],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        contents = {path.read_bytes() for path in merged.iterdir()} - known
    pack(name, contents)
    print(f"{name}: kept {len(contents)} inputs, {archive(name).stat().st_size} bytes")


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "unpack":
        unpack(sys.argv[2], pathlib.Path(sys.argv[3]))
    elif len(sys.argv) > 3 and sys.argv[1] == "renew":
        renew(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
