"""What compiles a host function into objects that C++ links."""

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass.cute.runtime import make_ptr
from cutlass.cute.typing import AddressSpace


def pointer(dtype, alignment=16):
    return make_ptr(dtype, 0, AddressSpace.gmem, assumed_align=alignment)


def export(folder, name, function, *arguments):
    """NAME.o and NAME.h: a launcher that takes these arguments and the stream."""
    cute.compile(function, *arguments, cuda.CUstream(0)).export_to_c(str(folder), name)
