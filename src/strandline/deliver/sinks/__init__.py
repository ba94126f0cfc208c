"""The kinds of sinks, one folder each."""
