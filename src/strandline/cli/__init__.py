"""The command line: one module per group of commands, rendering apart, errors turned into exit codes in `main`."""
