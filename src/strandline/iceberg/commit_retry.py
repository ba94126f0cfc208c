"""How a commit to a table is retried if it lost against another one, or if its answer was lost."""

from __future__ import annotations

from strandline.core.retry import RetryPolicy

# Blocks are published while others commit, so a commit may lose a few times in a row.
COMMIT_RETRY = RetryPolicy(0.03, 2.0, attempts_max=20)
