"""What all tests of parts by themselves, and of the command line in this process share."""

from tests.quick_ledger import quick

__all__ = ["quick"]
