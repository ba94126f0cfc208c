"""A reconciler in a process of its own, to be killed: `HOME act`, `HOME give-up`, `HOME delete`, `HOME restore RUN`,
`HOME purge`."""

from __future__ import annotations

import sys

import strandline
from strandline.drift import Asked


def main(home: str, what: str, *arguments: str) -> None:
    with strandline.open(home) as lake:
        match what:
            case "act":
                lake.reconciler.run(Asked(act=True))
            case "give-up":
                lake.reconciler.run(Asked(act=True, accept_loss=True))
            case "delete":
                lake.reconciler.run(Asked(act=True, delete=True))
            case "restore":
                lake.reconciler.restore(int(arguments[0]))
            case "purge":
                lake.reconciler.purge()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
