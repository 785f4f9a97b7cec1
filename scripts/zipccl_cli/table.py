"""Plain text tables and numbers with units."""


def format_table(header, rows):
    """Right-aligned columns but for the first; cells are strings."""
    cells = [header, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        first = row[0].ljust(widths[0])
        lines.append("  ".join([first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]).rstrip())
    return "\n".join(lines)


def size_text(count):
    """Bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" or count == int(count) else f"{count:.2f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
