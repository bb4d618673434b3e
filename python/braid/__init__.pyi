import os
from collections.abc import Iterable, Mapping
from typing import Any

from ._braid import CommunicationTime as CommunicationTime
from ._braid import MemoryClass as MemoryClass
from ._braid import PassRecord as PassRecord
from ._braid import Plan as Plan
from ._braid import RankPlan as RankPlan
from ._braid import Run as Run
from ._braid import Simulation as Simulation
from ._braid import TrainResult as TrainResult
from ._braid import Verification as Verification

class Error(RuntimeError):
    kind: str

def load(run: str | os.PathLike[str] | Mapping[str, Any],
         overrides: Mapping[str, Any] | Iterable[str] = ..., *, name: str = ...) -> Run: ...
def metrics(run_folder: str | os.PathLike[str]) -> dict[str, Any]: ...
