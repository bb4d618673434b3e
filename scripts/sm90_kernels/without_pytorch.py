"""Imports of kernels written for PyTorch where there is none: for its names there are stand-ins, and packages are imported by their
parts. Import this before any of their modules."""

import importlib
import importlib.util
import os
import sys
import types

os.environ["CUTE_DSL_ARCH"] = "sm_90a"

import cutlass.cute  # noqa: F401  asks for what PyTorch can do when first imported, so before there is a stand-in for it
import tvm_ffi  # noqa: F401  the same


class Name:
    """A name of PyTorch that a module mentions; may be looked into and used in type hints, not called."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, Name(f"{self._name}.{name}"))
        return getattr(self, name)

    def __call__(self, *arguments, **options):
        raise RuntimeError(f"{self._name}: there is no PyTorch")

    def __or__(self, other):
        return self

    def __ror__(self, other):
        return self


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, Name(f"{self.__name__}.{name}"))
        return getattr(self, name)


def stand_in_for_torch():
    for name in ("torch", "torch._subclasses", "torch._subclasses.fake_tensor", "torch.library"):
        sys.modules[name] = Module(name)
        sys.modules[name].__path__ = []
    for name in ("Tensor", "device", "dtype"):
        setattr(sys.modules["torch"], name, type(name, (), {}))
    sys.modules["torch._subclasses.fake_tensor"].FakeTensor = type("FakeTensor", (), {})


def without_init(name):
    """Makes a package importable by its parts: its __init__ would import all of them, and call PyTorch."""
    spec = importlib.util.find_spec(name)
    module = types.ModuleType(name)
    module.__path__ = list(spec.submodule_search_locations)
    sys.modules[name] = module


stand_in_for_torch()
for package in ("flash_attn", "flash_attn.cute", "quack", "quack.dsl"):
    without_init(package)
for part in ("cute_tensor_indexing", "cute_tensor", "mixed_constexpr_if"):  # what quack.dsl adds to the language
    importlib.import_module(f"quack.dsl.{part}")
