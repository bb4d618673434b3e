#!/usr/bin/env python3
"""Compiles kernels for Hopper, written in NVIDIA's Python DSL, into objects that C++ links: usage: compile.py RESULT_FOLDER. Runs in an
environment with the packages of requirements.txt, needs no GPU and no PyTorch."""

import pathlib
import sys

import without_pytorch  # noqa: F401  before the rest
import attention
import products

if __name__ == "__main__":
    result = pathlib.Path(sys.argv[1])
    result.mkdir(parents=True, exist_ok=True)
    attention.compile_into(result)
    products.compile_into(result)
