"""The reader of TOML: Python's own, which 3.11 was the first to have."""
try:
    from tomllib import loads as loads
except ModuleNotFoundError:
    from tomli import loads as loads
