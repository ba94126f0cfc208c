"""The command line: one module per group of commands, rendering apart; `main` turns errors into exit codes."""
