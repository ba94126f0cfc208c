"""The receiver's HTTP side: server, paths, admission, answers."""
