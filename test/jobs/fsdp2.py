#!/usr/bin/env python3
"""A deterministic FSDP2 training job on real text: Llama shape, BF16 parameters, FP32 reduction.

Run by torchrun or any launcher that sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Prints a line a
step, then a hash of all parameters of all ranks: two runs that agree printed the same text but for the times.

    torchrun --standalone --nproc-per-node 2 test/jobs/fsdp2.py --hidden 2048 --layers 16
"""

import argparse
import hashlib
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: deterministic matrix products

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import llama
import text
import turns


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=2, help="sequences a rank")
    parser.add_argument("--seq", type=int, default=1024, help="tokens in a sequence")
    parser.add_argument("--text-mib", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def make_deterministic():
    torch.use_deterministic_algorithms(True)
    # Filling every new tensor with NaN, which the line above switches on, would distort the step times.
    torch.utils.deterministic.fill_uninitialized_memory = False


def sharded_model(args, device, rank):
    with torch.device("meta"):
        model = llama.Llama(args.hidden, args.layers)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(args.seed * 1000003 + rank)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            deviation = llama.initial_deviation(name, args.layers)
            shard = parameter.to_local()
            shard.fill_(1.0) if deviation is None else shard.normal_(std=deviation, generator=generator)
    return model, parameters


def batches(args, rank, device):
    tokens = torch.tensor(text.corpus(args.text_mib << 20)[0], dtype=torch.int32)
    generator = torch.Generator().manual_seed(args.seed * 7919 + rank)
    while True:
        starts = torch.randint(len(tokens) - args.seq - 1, (args.batch,), generator=generator)
        batch = torch.stack([tokens[start : start + args.seq + 1] for start in starts]).to(device).long()
        yield batch[:, :-1], batch[:, 1:]


def parameter_hash(model, world_size):
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.to_local().detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())
    digests = [None] * world_size
    dist.all_gather_object(digests, digest.hexdigest())
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def main():
    args = arguments()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    device = torch.device("cuda", torch.cuda.current_device())
    make_deterministic()
    dist.init_process_group("nccl")
    model, parameters = sharded_model(args, device, rank)
    if rank == 0:
        print(f"parameters {parameters} ranks {world_size} device {torch.cuda.get_device_name(device)}", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    data = batches(args, rank, device)
    in_turn = turns.Turns(world_size)
    for step in range(1, args.steps + 1):
        tokens, targets = next(data)
        with in_turn.turn():
            torch.cuda.synchronize()
            started = time.perf_counter()
            loss = llama.loss(model(tokens), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            milliseconds = (time.perf_counter() - started) * 1e3
            loss = loss.detach()
            dist.all_reduce(loss, dist.ReduceOp.AVG)
            if rank == 0:
                print(f"step {step} loss {loss.item():.17g} time_ms {milliseconds:.3f}", flush=True)
    combined = parameter_hash(model, world_size)
    if rank == 0:
        print(f"parameters sha256 {combined}", flush=True)
    print(f"rank {rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
