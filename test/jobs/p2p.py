#!/usr/bin/env python3
"""All that PyTorch sends through all-to-all and point-to-point calls, in every way it offers, checked byte by byte.

Run by torchrun or any launcher that sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Every rank knows what
it must receive; a wrong byte ends the job with status 1. Prints a line a case, then a hash of all that was received, so
that runs can be compared as well. Without a GPU it runs on gloo, which shows that the script itself is right.

    torchrun --standalone --nproc-per-node 4 test/jobs/p2p.py
"""

import argparse
import contextlib
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist

KINDS = ("normal", "random", "float", "integer")
SIZES = (1, 1000, 300007)  # values for a peer
POISON = 0x5A


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="values for a peer")
    parser.add_argument("--rounds", type=int, default=2, help="times that everything is done")
    return parser.parse_args()


class Traffic:
    """Inputs, outputs and what the outputs must be. Values follow from kind, size, round, case, sender and receiver
    alone, so every rank can make everybody's."""

    def __init__(self, rank, ranks, device):
        self.rank, self.ranks, self.device = rank, ranks, device
        self.digest = hashlib.sha256()
        self.wrong = 0
        self.kind, self.size, self.seed = KINDS[0], 1, 0
        self.case = ""

    def begin(self, case, kind, size, seed):
        self.case, self.kind, self.size, self.seed = case, kind, size, seed

    def values(self, count, sender, receiver, number=0):
        """`count` values from sender to receiver; `number` tells several messages between them apart."""
        generator = torch.Generator(self.device).manual_seed(
            (((self.seed * 131 + sender) * 131 + receiver) * 131 + number) % (1 << 31))
        # One value too many, so that half of the senders' views begin in the middle of a word.
        skip = (sender + number) % 2
        count += skip
        if self.kind == "integer":
            made = torch.randint(-(1 << 40), 1 << 40, (count,), generator=generator, device=self.device)
        elif self.kind == "random":
            bits = torch.randint(-(1 << 15), 1 << 15, (count,), generator=generator, device=self.device)
            made = bits.to(torch.int16).view(torch.bfloat16)
        else:
            made = torch.randn(count, generator=generator, device=self.device) * 0.02
            made = made if self.kind == "float" else made.bfloat16()
        return made[skip:]

    def empty(self, count):
        dtype = {"integer": torch.int64, "float": torch.float32}.get(self.kind, torch.bfloat16)
        made = torch.empty(count, dtype=dtype, device=self.device)
        made.view(torch.uint8).fill_(POISON)
        return made

    def share(self, sender, receiver):
        """Values of an uneven exchange; some are none."""
        return self.size * ((sender * 3 + receiver * 5 + self.seed) % 4) // 2

    def check(self, received, expected):
        # As bytes: NaNs equal themselves.
        received, expected = received.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)
        self.digest.update(received.cpu().numpy().tobytes())
        if not torch.equal(received, expected):
            self.wrong += 1
            print(f"rank {self.rank}: {self.case}, {self.kind}, {self.size} values: WRONG", flush=True)


def finish(work):
    """Makes the current stream wait for asynchronous work."""
    for each in work if isinstance(work, list) else [work]:
        if each is not None:
            each.wait()



def even_all_to_all(traffic, asynchronous):
    everyone = range(traffic.ranks)
    sent = torch.cat([traffic.values(traffic.size, traffic.rank, peer) for peer in everyone])
    received = traffic.empty(traffic.size * traffic.ranks)
    finish(dist.all_to_all_single(received, sent, async_op=asynchronous))
    traffic.check(received, torch.cat([traffic.values(traffic.size, peer, traffic.rank) for peer in everyone]))


def uneven_all_to_all(traffic, asynchronous):
    rank, everyone = traffic.rank, range(traffic.ranks)
    to, by = [traffic.share(rank, peer) for peer in everyone], [traffic.share(peer, rank) for peer in everyone]
    sent = torch.cat([traffic.values(to[peer], rank, peer) for peer in everyone])
    received = traffic.empty(sum(by))
    finish(dist.all_to_all_single(received, sent, by, to, async_op=asynchronous))
    traffic.check(received, torch.cat([traffic.values(by[peer], peer, rank) for peer in everyone]))


def listed_all_to_all(traffic, asynchronous):
    rank, everyone = traffic.rank, range(traffic.ranks)
    sent = [traffic.values(traffic.size + peer, rank, peer) for peer in everyone]
    received = [traffic.empty(traffic.size + rank) for _ in everyone]
    finish(dist.all_to_all(received, sent, async_op=asynchronous))
    for peer in everyone:
        traffic.check(received[peer], traffic.values(traffic.size + rank, peer, rank))


def batched(traffic, asynchronous):
    """A ring in both directions, two messages each way, in one batch."""
    del asynchronous  # always
    rank, ranks = traffic.rank, traffic.ranks
    operations, arrivals = [], []
    for step in (1, -1):
        for number in range(2):
            to, by = (rank + step) % ranks, (rank - step) % ranks
            tag = 2 * number + (step > 0)
            count = traffic.size + number
            arrived = traffic.empty(count)
            operations += [dist.P2POp(dist.isend, traffic.values(count, rank, to, tag), to),
                           dist.P2POp(dist.irecv, arrived, by)]
            arrivals.append((arrived, traffic.values(count, by, rank, tag)))
    finish(dist.batch_isend_irecv(operations))
    for arrived, expected in arrivals:
        traffic.check(arrived, expected)


def pairs(traffic, asynchronous):
    """Ranks 0 and 1, 2 and 3 and so on; the lower one sends first."""
    rank, peer = traffic.rank, traffic.rank ^ 1
    if peer >= traffic.ranks:
        return
    sent, received = traffic.values(traffic.size, rank, peer), traffic.empty(traffic.size)
    send, receive = (dist.isend, dist.irecv) if asynchronous else (dist.send, dist.recv)
    calls = [lambda: send(sent, peer), lambda: receive(received, peer)]
    work = [call() for call in (calls if rank < peer else reversed(calls))]
    if asynchronous:
        finish(work)
    traffic.check(received, traffic.values(traffic.size, peer, rank))


def pipeline(traffic, asynchronous):
    """Every rank passes on to the next what it got: activations of pipeline stages."""
    rank, ranks = traffic.rank, traffic.ranks
    expected = traffic.values(traffic.size, 0, ranks)
    held = expected.clone() if rank == 0 else traffic.empty(traffic.size)
    if rank > 0:
        finish(dist.irecv(held, rank - 1)) if asynchronous else dist.recv(held, rank - 1)
    if rank + 1 < ranks:
        finish(dist.isend(held, rank + 1)) if asynchronous else dist.send(held, rank + 1)
    traffic.check(held, expected)


def coalesced_gathers(traffic, asynchronous):
    rank, everyone = traffic.rank, range(traffic.ranks)
    sent = [traffic.values(traffic.size + number, rank, 0, number) for number in range(3)]
    received = [traffic.empty((traffic.size + number) * traffic.ranks) for number in range(3)]
    with dist._coalescing_manager(async_ops=asynchronous) as manager:
        for number in range(3):
            dist.all_gather_into_tensor(received[number], sent[number])
    if asynchronous:
        manager.wait()
    for number in range(3):
        traffic.check(received[number],
                      torch.cat([traffic.values(traffic.size + number, peer, 0, number) for peer in everyone]))


def coalesced_messages(traffic, asynchronous):
    rank, to, by = traffic.rank, (traffic.rank + 1) % traffic.ranks, (traffic.rank - 1) % traffic.ranks
    sent = [traffic.values(traffic.size + number, rank, to, number) for number in range(3)]
    received = [traffic.empty(traffic.size + number) for number in range(3)]
    with dist._coalescing_manager(device=traffic.device, async_ops=asynchronous) as manager:
        for number in range(3):
            dist.isend(sent[number], to)
            dist.irecv(received[number], by)
    if asynchronous:
        manager.wait()
    for number in range(3):
        traffic.check(received[number], traffic.values(traffic.size + number, by, rank, number))


CASES = (even_all_to_all, uneven_all_to_all, listed_all_to_all, batched, pairs, pipeline, coalesced_gathers,
         coalesced_messages)
ONLY_NCCL = (listed_all_to_all, coalesced_messages)


@contextlib.contextmanager
def stream_of(where, device):
    """The current stream or one beside it, which starts behind the current one and is waited for by it."""
    if where == "current" or device.type != "cuda":
        yield
        return
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream().wait_stream(side)


def main():
    args = arguments()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    dist.all_reduce(torch.ones(1, device=device))  # all ranks meet before some talk in pairs
    traffic = Traffic(rank, ranks, device)
    step = 0
    for round_number in range(args.rounds):
        for case in CASES:
            if device.type != "cuda" and case in ONLY_NCCL:
                continue
            started = time.perf_counter()
            seed = 0
            for where in ("current", "side"):
                for asynchronous in (False, True):
                    for kind in KINDS:
                        for size in args.sizes:
                            seed += 1
                            traffic.begin(f"{case.__name__} on the {where} stream"
                                          f"{', asynchronous' if asynchronous else ''}", kind, size,
                                          seed + 1000 * round_number)
                            with stream_of(where, device):
                                case(traffic, asynchronous)
            if device.type == "cuda":
                torch.cuda.synchronize()
            step += 1
            milliseconds = (time.perf_counter() - started) * 1e3
            # A number between 0 and 16 that stands for all bytes so far, where other jobs have a loss.
            so_far = int(traffic.digest.hexdigest()[:8], 16) / (1 << 28)
            print(f"step {step} loss {so_far:.17g} time_ms {milliseconds:.3f} rank {rank} {case.__name__}", flush=True)
    print(f"rank {rank} received sha256 {traffic.digest.hexdigest()}", flush=True)
    wrong = torch.tensor([traffic.wrong], device=device)
    dist.all_reduce(wrong)
    if rank == 0:
        print(f"{step} cases, {wrong.item()} wrong", flush=True)
    dist.destroy_process_group()
    return 1 if wrong.item() else 0


if __name__ == "__main__":
    sys.exit(main())
