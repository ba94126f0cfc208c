"""The retries of a commit to a table that lost against another one, or whose answer was lost."""

from __future__ import annotations

from strandline.core.retry import RetryPolicy

# Blocks are published while others commit: losing a few times in a row is normal.
COMMIT_LOST = RetryPolicy(0.03, 2.0, attempts_max=20)
