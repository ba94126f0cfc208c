"""What the sites of a lake share: the arbiter's record, terms, items and cuts."""
