"""Settings: one TOML file, frozen values, one module per large section."""
