"""Storage as the reconciler uses it: listing, checking, moving to the quarantine and back."""
