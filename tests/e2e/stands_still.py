"""A process that stops itself while its job runs in the JVM of the test run: `python -m … HOME`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from strandline.lake import open_lake

if __name__ == "__main__":
    with open_lake(sys.argv[1]) as lake:
        job = lake.spark.range(4).mapInArrow(lambda batches: (time.sleep(1), *batches)[1:], "id long")
        counted: list[int] = []
        thread = threading.Thread(target=lambda: counted.append(job.count()))
        thread.start()
        time.sleep(0.7)
        os.kill(os.getpid(), signal.SIGSTOP)
        thread.join()
        assert counted == [4]
