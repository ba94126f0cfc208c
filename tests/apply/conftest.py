"""What all tests of `strandline apply` share."""

from tests.quick_ledger import quick

__all__ = ["quick"]
