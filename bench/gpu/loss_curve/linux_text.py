#!/usr/bin/env python3
"""Writes a text of about 100 MB: documentation and C sources of Linux 6.1 from Debian's package linux-source-6.1, one document per file,
a line "%" before each. Enough for 2,000 steps of run.toml without reading anything twice.

usage: linux_text.py OUTPUT [ARCHIVE]      ARCHIVE: /usr/src/linux-source-6.1.tar.xz, which the package installs
"""
import pathlib
import sys
import tarfile

ARCHIVE = "/usr/src/linux-source-6.1.tar.xz"
FOLDERS = {"Documentation", "kernel", "mm", "fs", "lib", "block", "security", "crypto"}
ENDINGS = {".rst", ".txt", ".yaml", ".c", ".h"}


def is_wanted(member):
    path = pathlib.PurePosixPath(member.name)
    return (member.isfile() and path.suffix in ENDINGS and len(path.parts) > 2 and path.parts[1] in FOLDERS
            and "translations" not in path.parts)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    archive = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else ARCHIVE)
    if not archive.exists():
        sys.exit(f"linux_text.py: {archive} is missing: apt-get install linux-source-6.1")
    output = pathlib.Path(sys.argv[1])
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(output.name + ".tmp")
    with tarfile.open(archive, "r:xz") as tar, open(temporary, "w", encoding="utf-8") as file:
        for member in tar:
            if is_wanted(member):
                text = tar.extractfile(member).read().decode("utf-8", errors="replace").strip("\n")
                file.write(f"%\n{text}\n")
    temporary.replace(output)


if __name__ == "__main__":
    main()
