"""Real text and a simple tokenizer for the jobs here: deterministic, offline, no dependency.

The text is what every machine with Python has: the standard library's sources and the sources and documents of the
installed packages. Equal machines give equal tokens."""

import collections
import hashlib
import importlib.metadata
import pathlib
import re
import sys
import sysconfig

SUFFIXES = (".py", ".rst", ".txt", ".md")
BYTE_TOKENS = 256  # ids 0 to 255 are bytes: what is not a frequent word is spelled with them
PIECE = re.compile(r"[A-Za-z]+|[0-9]|[ \t]+|\n+|[^A-Za-z0-9\s]")


class Source:
    """Text of one package: its name, version, licence, files read and their bytes."""

    def __init__(self, name, version, licence):
        self.name, self.version, self.licence = name, version, licence
        self.files = 0
        self.bytes = 0

    def as_dict(self):
        return dict(vars(self))


def _standard_library():
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    files = (path for path in root.rglob("*") if not {"site-packages", "dist-packages"} & set(path.parts))
    version = ".".join(map(str, sys.version_info[:3]))
    return Source("Python standard library", version, "Python-2.0"), files


def _licence(metadata):
    expression = metadata.get("License-Expression") or metadata.get("License") or ""
    if 0 < len(expression) < 80 and "\n" not in expression:
        return expression
    classifiers = [c for c in metadata.get_all("Classifier") or () if c.startswith("License ::")]
    return classifiers[0].split(" :: ")[-1] if classifiers else "see the package"


def _packages():
    distributions = {d.metadata["Name"] or "": d for d in importlib.metadata.distributions()}
    for name in sorted(distributions, key=str.lower):
        metadata = distributions[name].metadata
        files = (pathlib.Path(file.locate()) for file in distributions[name].files or ())
        yield Source(name, metadata.get("Version", ""), _licence(metadata)), files


def read(limit, limit_per_package=4 << 20):
    """Reads about `limit` bytes, the standard library first. Returns (text, sources)."""
    texts, sources, total = [], [], 0
    for source, files in [_standard_library(), *_packages()]:
        room = limit - total if not sources else min(limit - total, limit_per_package)
        for path in sorted({file for file in files if file.suffix in SUFFIXES}):
            if source.bytes >= room:
                break
            try:
                data = path.read_bytes()
            except OSError:
                continue
            texts.append(data.decode("utf-8", errors="replace"))
            source.files += 1
            source.bytes += len(data)
        if source.files:
            sources.append(source)
            total += source.bytes
        if total >= limit:
            break
    return "\n".join(texts), sources


class Tokenizer:
    """The most frequent pieces of a text as words, everything else as UTF-8 bytes."""

    def __init__(self, text, vocabulary=32000):
        counts = collections.Counter(PIECE.findall(text))
        ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
        self.ids = {piece: BYTE_TOKENS + i for i, piece in enumerate(ranked[: vocabulary - BYTE_TOKENS])}
        self.vocabulary = vocabulary

    def encode(self, text):
        tokens = []
        for piece in PIECE.findall(text):
            token = self.ids.get(piece)
            if token is None:
                tokens.extend(piece.encode("utf-8", errors="replace"))
            else:
                tokens.append(token)
        return tokens


def corpus(limit, vocabulary=32000):
    """Returns (tokens, sources, sha256 of the text)."""
    text, sources = read(limit)
    tokens = Tokenizer(text, vocabulary).encode(text)
    return tokens, sources, hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()
