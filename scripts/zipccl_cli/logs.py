"""Losses, step times and hashes from what training jobs print."""

import re
import statistics

ANSI = re.compile(r"\x1b\[[0-9;]*m")
HASH = re.compile(r"(\w[\w ]*?) (?:sha256|hash):? ([0-9a-f]{16,64})\b")

# Named groups: step, loss, and time_ms or tps (tokens per second).
FORMATS = {
    "job": r"\bstep (?P<step>\d+) loss (?P<loss>\S+) time_ms (?P<time_ms>[\d.]+)"
           r"(?: all_to_all_ms (?P<all_to_all_ms>[\d.]+))?",
    "torchtitan": r"step:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>[-\d.naif]+)\s+grad_norm:\s*(?P<norm>[-\d.naif]+)"
                  r".*?tps:\s*(?P<tps>[\d,]+)",
    "megatron": r"iteration\s+(?P<step>\d+)/\s*\d+ \|.*?elapsed time per iteration \(ms\):\s*(?P<time_ms>[\d.]+)"
                r".*?lm loss:\s*(?P<loss>[-+\d.Enaif]+)(?:.*?grad norm:\s*(?P<norm>[-+\d.Enaif]+))?",
}


class Parsed:
    """What one run printed. `results` holds, per step, the loss (and gradient norm) as text: compared literally."""

    def __init__(self):
        self.results, self.times, self.hashes = {}, {}, {}
        self.all_to_all = {}  # milliseconds of a step's all-to-alls, where the job prints them
        self.unit = "step"  # what a time is for

    def median_time(self, skip):
        """Median time of a unit in milliseconds, without the first `skip` steps."""
        steps = sorted(self.times)[skip:]
        return statistics.median(self.times[step] for step in steps) if steps else None

    def all_to_all_share(self, skip):
        """Median share of all-to-alls in a step's time, without the first `skip` steps."""
        steps = sorted(self.all_to_all)[skip:]
        return statistics.median(self.all_to_all[step] / self.times[step] for step in steps) if steps else None

    def same_results(self, other):
        return self.results == other.results and self.hashes == other.hashes


def pattern(name):
    """A name of FORMATS, or a regular expression of the user's."""
    try:
        expression = re.compile(FORMATS.get(name, name))
    except re.error as error:
        raise ValueError(f"'{name}' is no regular expression: {error}") from error
    if not {"step", "loss"} <= set(expression.groupindex):
        raise ValueError(f"'{name}' is none of {', '.join(FORMATS)}, auto, and no regular expression with the named "
                         "groups step and loss (and time_ms)")
    return expression


def parse(lines, name="auto"):
    names = list(FORMATS) if name == "auto" else [name]
    expressions = [pattern(each) for each in names]
    parsed = Parsed()
    for line in lines:
        line = ANSI.sub("", line)
        for expression in expressions:
            match = expression.search(line)
            if match:
                _add_step(parsed, match.groupdict())
                break
        else:
            match = HASH.search(line)
            if match:
                parsed.hashes[match.group(1)] = match.group(2)
    return parsed


def _add_step(parsed, groups):
    step = int(groups["step"])
    result = groups["loss"] if groups.get("norm") is None else f"{groups['loss']} norm {groups['norm']}"
    # Several ranks may print a step: they count as one result, whatever their order.
    seen = parsed.results.setdefault(step, [])
    if result not in seen:
        seen.append(result)
        seen.sort()
    if groups.get("time_ms") and float(groups["time_ms"]) > 0:
        parsed.times[step] = float(groups["time_ms"])
        if groups.get("all_to_all_ms"):
            parsed.all_to_all[step] = float(groups["all_to_all_ms"])
    elif groups.get("tps") and float(groups["tps"].replace(",", "")) > 0:
        parsed.times[step] = 1e6 / float(groups["tps"].replace(",", ""))
        parsed.unit = "1,000 tokens"
