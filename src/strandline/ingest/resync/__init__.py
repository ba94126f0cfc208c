"""What a ledger does when it finds that it was restored: it learns from the tables what happened since."""
