"""The receiver's HTTP side: paths, admission, answers."""
