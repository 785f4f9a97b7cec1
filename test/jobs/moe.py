#!/usr/bin/env python3
"""A deterministic mixture-of-experts training job on real text: Megatron core, expert parallelism over all ranks.

The geometry is that of current MoE models (many small experts, several a token), so most of a step on a slow link is the
all-to-all dispatcher: tokens go to their experts and come back, forward and backward, as uneven BF16 all-to-alls. Needs
megatron-core; neither Transformer Engine nor Apex. Run by torchrun or any launcher that sets RANK, WORLD_SIZE,
LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Prints a line a step, then a hash of all parameters of all ranks: two runs that
agree printed the same text but for the times.

    CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --standalone --nproc-per-node 2 test/jobs/moe.py --shape small-link
"""

import argparse
import hashlib
import os
import sys
import time
import warnings

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: deterministic matrix products
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # as Megatron-LM wants it
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # Megatron's small fusions are not worth a compiler and its time
warnings.filterwarnings("ignore", module="megatron")         # what it misses is left out on purpose

import torch
import torch.distributed as dist
import torch.nn.functional as F

import text

try:
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer.transformer_config import TransformerConfig
except ImportError as error:
    sys.exit(f"moe.py needs Megatron core ({error}): pip install megatron-core, or put it on PYTHONPATH")

HEAD_WIDTH = 128

# Names of shapes: all-to-all is most of a native step of the first on a link of 3 GB/s, of the second on one of 25 GB/s.
SHAPES = {
    "small-link": {"hidden": 2048, "layers": 4, "experts": 16, "topk": 8, "expert_width": 768, "vocabulary": 32000,
                   "batch": 8, "seq": 512, "microbatches": 2},
    "fast-link": {"hidden": 4096, "layers": 4, "experts": 16, "topk": 8, "expert_width": 256, "vocabulary": 8192,
                  "batch": 16, "seq": 512, "microbatches": 2},
    "tiny": {"hidden": 256, "layers": 2, "experts": 4, "topk": 2, "expert_width": 64, "vocabulary": 1024,
             "batch": 2, "seq": 64, "microbatches": 2},
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="small-link", help="defaults of the following (small-link)")
    for name, meaning in (("hidden", "width of the model"), ("layers", "layers"), ("experts", "experts of a layer"),
                          ("topk", "experts of a token"), ("expert_width", "inner width of an expert"),
                          ("vocabulary", "tokens of the tokenizer"), ("batch", "sequences of a rank's microbatch"),
                          ("seq", "tokens in a sequence"), ("microbatches", "microbatches of a step")):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=meaning)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--text-mib", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for name, value in SHAPES[args.shape].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def make_deterministic():
    torch.use_deterministic_algorithms(True)
    # Filling every new tensor with NaN, which the line above switches on, would distort the step times.
    torch.utils.deterministic.fill_uninitialized_memory = False


class AllToAllTimes:
    """Device time of the all-to-alls of a step, the wait for other ranks included: events around each call."""

    def __init__(self):
        self.spans = []
        self.call = dist.all_to_all_single
        dist.all_to_all_single = self._timed

    def _timed(self, *positional, **named):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        result = self.call(*positional, **named)
        end.record()
        self.spans.append((begin, end))
        return result

    def take(self):
        """Milliseconds since the last take; the device must be idle."""
        milliseconds = sum(begin.elapsed_time(end) for begin, end in self.spans)
        self.spans.clear()
        return milliseconds


def make_config(args, ranks):
    return TransformerConfig(
        num_layers=args.layers, hidden_size=args.hidden, num_attention_heads=max(1, args.hidden // HEAD_WIDTH),
        num_query_groups=max(1, args.hidden // HEAD_WIDTH // 4), ffn_hidden_size=args.expert_width,
        normalization="RMSNorm", activation_func=F.silu, gated_linear_unit=True, add_bias_linear=False,
        hidden_dropout=0.0, attention_dropout=0.0, bf16=True, params_dtype=torch.bfloat16,
        num_moe_experts=args.experts, moe_router_topk=args.topk, moe_ffn_hidden_size=args.expert_width,
        moe_token_dispatcher_type="alltoall", moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=1e-2,
        moe_router_dtype="fp32", expert_model_parallel_size=ranks, deterministic_mode=True,
        gradient_accumulation_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False,
        bias_activation_fusion=False, bias_dropout_fusion=False, apply_rope_fusion=False)


def make_model(args, config, device):
    layer = get_gpt_layer_local_spec(num_experts=args.experts, moe_grouped_gemm=False, normalization="RMSNorm")
    model = GPTModel(config=config, transformer_layer_spec=layer, vocab_size=args.vocabulary,
                     max_sequence_length=args.seq, position_embedding_type="rope",
                     share_embeddings_and_output_weights=False).to(device).bfloat16()
    settings = DistributedDataParallelConfig(grad_reduce_in_fp32=False, overlap_grad_reduce=False,
                                             use_distributed_optimizer=False)
    parallel = DistributedDataParallel(config=config, ddp_config=settings, module=model)
    parallel.broadcast_params()
    config.no_sync_func = parallel.no_sync
    config.finalize_model_grads_func = finalize_model_grads
    return parallel


def batches(args, rank, device):
    tokens = torch.tensor(text.corpus(args.text_mib << 20, args.vocabulary)[0], dtype=torch.int32)
    generator = torch.Generator().manual_seed(args.seed * 7919 + rank)
    while True:
        starts = torch.randint(len(tokens) - args.seq - 1, (args.batch,), generator=generator)
        batch = torch.stack([tokens[start : start + args.seq + 1] for start in starts]).to(device).long()
        yield batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def make_forward_step(args, device):
    positions = torch.arange(args.seq, device=device).expand(args.batch, args.seq)
    # True where a token must not look; the same for every sequence.
    mask = torch.ones(1, 1, args.seq, args.seq, dtype=torch.bool, device=device).triu(1)

    def mean_loss(output):
        loss = output.float().mean()
        return loss, {"lm loss": loss.detach().clone()}  # the schedule divides the loss itself by the microbatches

    def forward_step(data, model):
        tokens, targets = next(data)
        return model(tokens, positions, mask, labels=targets), mean_loss

    return forward_step


def parameter_hash(model, world_size):
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())
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
    parallel_state.initialize_model_parallel(expert_model_parallel_size=world_size,
                                             create_gloo_process_groups=False)
    tensor_parallel.model_parallel_cuda_manual_seed(args.seed)
    torch.manual_seed(args.seed)
    times = AllToAllTimes()
    config = make_config(args, world_size)
    model = make_model(args, config, device)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=3e-4, bf16=True, params_dtype=torch.bfloat16, weight_decay=0.1,
                        adam_beta1=0.9, adam_beta2=0.95, clip_grad=1.0), [model], use_gloo_process_groups=False)
    if rank == 0:
        count = sum(parameter.numel() for parameter in model.parameters())
        sent = 2 * args.batch * args.seq * args.topk * args.hidden
        print(f"parameters {count} a rank, ranks {world_size}, device {torch.cuda.get_device_name(device)}, "
              f"{4 * args.layers * args.microbatches} all-to-alls of {sent} bytes a step", flush=True)
    data, forward_step = batches(args, rank, device), make_forward_step(args, device)
    forward_backward = get_forward_backward_func()
    for step in range(1, args.steps + 1):
        microbatches = iter([next(data) for _ in range(args.microbatches)])
        torch.cuda.synchronize()
        started = time.perf_counter()
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward_step, data_iterator=microbatches, model=[model],
            num_microbatches=args.microbatches, seq_length=args.seq, micro_batch_size=args.batch, forward_only=False)
        optimizer.step()
        torch.cuda.synchronize()
        milliseconds = (time.perf_counter() - started) * 1e3
        loss = torch.stack([each["lm loss"] for each in losses]).mean()
        dist.all_reduce(loss, dist.ReduceOp.AVG)
        all_to_all = times.take()
        if rank == 0:
            print(f"step {step} loss {loss.item():.17g} time_ms {milliseconds:.3f} all_to_all_ms {all_to_all:.3f}",
                  flush=True)
    combined = parameter_hash(model, world_size)
    if rank == 0:
        print(f"parameters sha256 {combined}", flush=True)
    print(f"rank {rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
