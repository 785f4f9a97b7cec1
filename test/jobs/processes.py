"""What tests ask of processes that others started."""

import pathlib


def is_running(process):
    """False for zombies too: in a container nobody may reap orphans."""
    try:
        status = pathlib.Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"
