"""The other end of `environment.PeerProcess`; runs where the peers are, and Strandline is not."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Answer = Callable[..., Any]


def answer_questions(**known: Answer) -> None:
    """Until the other side closes the pipe. Each answer has the seconds that the work took, and what it gave."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    for line in sys.stdin:
        question = json.loads(line)
        work = known[question.pop("do")]
        began = time.perf_counter()
        found = work(**question)
        took = time.perf_counter() - began
        print(json.dumps({"seconds": took, "found": found}), file=output, flush=True)
