#!/usr/bin/env python3
"""Runs a compiler and, if it made one of clang's precompiled headers, writes a checksum of what the compiler read beside it.

    scripts/checksum_pch.py compiler option...

Clang writes absolute paths into a precompiled header, so that its bytes differ from clone to clone. ccache takes the file
NAME.sum for the contents of NAME (its setting pch_external_checksum). The checksum is that of the options, without the path
of the source folder, and of the contents of all files that the compiler lists with -MF.
"""
import hashlib
import pathlib
import shlex
import subprocess
import sys


def files_listed(rule):
    """The files behind the colon of a rule of make."""
    return shlex.split(rule.replace("\\\n", " ").partition(": ")[2])


def checksum(options, dependencies, source_folder):
    digest = hashlib.sha256("\n".join(options).replace(source_folder, "").encode())
    for path in files_listed(dependencies.read_text()):
        digest.update(hashlib.sha256(pathlib.Path(path).read_bytes()).digest())
    return digest.hexdigest()


def main():
    command = sys.argv[1:]
    status = subprocess.run(command).returncode
    if status == 0 and "-emit-pch" in command:
        written, dependencies = (pathlib.Path(command[command.index(option) + 1]) for option in ("-o", "-MF"))
        source_folder = str(pathlib.Path(__file__).resolve().parent.parent)
        pathlib.Path(f"{written}.sum").write_text(checksum(command, dependencies, source_folder))
    sys.exit(status)


if __name__ == "__main__":
    main()
