"""Keys of a run file as Python values, in the form that the loader of braid takes: "section.key=value"."""
import collections.abc
import json
import os


def toml_value(value):
    """The value as TOML. A string is one of JSON, which TOML reads alike."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        return json.dumps(os.fspath(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, collections.abc.Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml_value(member)}" for key, member in value.items()) + "}"
    if isinstance(value, collections.abc.Iterable):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if hasattr(value, "item"):  # a scalar of NumPy
        return toml_value(value.item())
    raise TypeError(f"a run file has no value of type {type(value).__name__}")


def overrides_of(keys):
    """Overrides as strings. `keys`: such strings, or a dict by "section.key" or by section and key."""
    if isinstance(keys, str):
        raise TypeError(f"overrides are a dict or a list of strings, not the string {keys!r}")
    if not isinstance(keys, collections.abc.Mapping):
        return [str(key) for key in keys]
    overrides = []
    for name, value in keys.items():
        members = value.items() if isinstance(value, collections.abc.Mapping) and "." not in name else [(None, value)]
        for key, member in members:
            full = name if key is None else f"{name}.{key}"
            try:
                overrides.append(f"{full}={toml_value(member)}")
            except TypeError as error:
                raise TypeError(f"{full}: {error}") from None
    return overrides
