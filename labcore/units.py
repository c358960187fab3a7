"""Numbers with their units, in words short enough for a figure."""


def in_bytes(size: float) -> str:
    """A size in the unit that suits it, decimal as for links: 6.25 MB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.3g} B"


def in_seconds(seconds: float) -> str:
    """A duration in the unit that suits it: 15.2 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
