"""`strandline demo`, part by part."""
