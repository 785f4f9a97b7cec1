#!/usr/bin/env python3
"""Records slices of a training run's BF16 tensors for tests and benchmarks of the codec.

Trains a small Llama-shaped model on program text (BF16 forward and backward, FP32 master weights and Adam) and writes
a tar of raw little-endian .bf16 files and manifest.json. Needs PyTorch and a GPU; 300 steps take under a minute on
an H200.

    python3 test/recorded/record.py --out recorded.tar && tar -xf recorded.tar -C test/recorded
"""

import argparse
import hashlib
import io
import json
import pathlib
import platform
import sys
import tarfile
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "jobs"))
import llama  # noqa: E402
import text  # noqa: E402

# (kind, layer, which of the run's three steps): what is recorded, about a quarter of a megabyte each.
FIRST, EARLY, LATE = range(3)
WANTED = [
    *(("weights", layer, LATE) for layer in ("first", "middle", "last")),
    *(("weights", "middle", when) for when in (FIRST, EARLY)),
    *(("grad", layer, when) for layer in ("first", "middle", "last") for when in (FIRST, LATE)),
    ("grad", "middle", EARLY),
    *(("residual", "middle", when) for when in (FIRST, LATE)),
    ("residual", "last", LATE),
    *(("mlp-input", "middle", when) for when in (FIRST, LATE)),
    ("mlp-input", "last", LATE),
    *(("mlp-output", layer, LATE) for layer in ("middle", "last")),
    *(("mlp-input-grad", "middle", when) for when in (FIRST, LATE)),
    ("mlp-output-grad", "middle", LATE),
    *(("embedding-grad", None, when) for when in (FIRST, LATE)),
    *(("output-grad", None, when) for when in (EARLY, LATE)),
    ("output-weights", None, LATE),
]


def exponent_shares(values):
    bits = values.view(torch.int16).to(torch.int32)
    shares = torch.bincount((bits >> 7) & 0xFF, minlength=256).double()
    return shares / shares.sum()


def entropy(shares):
    present = shares[shares > 0]
    return abs(float((present * present.log2()).sum()))


def representative_offset(flat, count, candidates=64):
    """Of evenly spread odd offsets, the one whose slice has the exponents most like the whole tensor's."""
    whole = exponent_shares(flat)
    room = flat.numel() - count
    offsets = [room * i // candidates | 1 for i in range(candidates)]
    return min(offsets, key=lambda o: float((exponent_shares(flat[o : o + count]) - whole).abs().sum()))


class Recorder:
    """Takes slices of the tensors that WANTED names, at the steps it names them for."""

    def __init__(self, model, steps, values):
        last = len(model.layers) - 1
        self.layers = {"first": 0, "middle": (last + 1) // 2, "last": last}
        self.model, self.steps, self.values = model, steps, values
        self.entries, self.files, self.hooks = [], {}, []

    def wanted(self, step, kinds):
        for kind, layer, when in WANTED:
            if self.steps[when] == step and kind in kinds:
                yield kind, self.layers.get(layer)

    def take(self, kind, layer, step, tensor):
        shape = list(tensor.shape)
        flat = tensor.detach().contiguous().view(-1)
        assert flat.dtype == torch.bfloat16
        offset = representative_offset(flat, self.values)
        piece = flat[offset : offset + self.values]
        data = piece.view(torch.int16).cpu().numpy().astype("<i2").tobytes()
        name = f"{kind}-l{layer}-s{step}" if layer is not None else f"{kind}-s{step}"
        self.files[f"{name}.bf16"] = data
        self.entries.append({
            "name": name, "file": f"{name}.bf16", "kind": kind, "layer": layer, "step": step, "dtype": "bfloat16",
            "shape": shape, "offset": offset, "values": self.values, "sha256": hashlib.sha256(data).hexdigest(),
            "exponent_entropy": round(entropy(exponent_shares(piece)), 3),
            "exponent_entropy_of_whole": round(entropy(exponent_shares(flat)), 3),
            "zeros": round(float((piece == 0).double().mean()), 5),
            "zeros_of_whole": round(float((flat == 0).double().mean()), 5),
        })

    def before_step(self, step):
        """Weights as the forward pass uses them; hooks for what only exists during the passes."""
        for kind, layer in self.wanted(step, {"weights", "output-weights"}):
            source = self.model.head if kind == "output-weights" else self.model.layers[layer]
            parameters = [parameter.view(-1) for parameter in source.parameters()]
            self.take(kind, layer, step, self.model.head.weight if layer is None else torch.cat(parameters))

        def keep(kind, layer, tensor):
            if (kind, layer) in set(self.wanted(step, {kind})):
                self.take(kind, layer, step, tensor)
            if (f"{kind}-grad", layer) in set(self.wanted(step, {f"{kind}-grad"})):
                tensor.register_hook(lambda gradient: self.take(f"{kind}-grad", layer, step, gradient))

        def on_mlp(layer):
            def hook(_, inputs, output):
                keep("mlp-input", layer, inputs[0])
                keep("mlp-output", layer, output)
            return hook

        def on_layer(layer):
            return lambda _, inputs, output: keep("residual", layer, output)

        for layer in set(self.layers.values()) if step in self.steps else ():
            self.hooks.append(self.model.layers[layer].mlp.register_forward_hook(on_mlp(layer)))
            self.hooks.append(self.model.layers[layer].register_forward_hook(on_layer(layer)))

    def after_backward(self, step):
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()
        for kind, layer in self.wanted(step, {"grad", "embedding-grad", "output-grad"}):
            if kind == "grad":
                gradient = torch.cat([p.grad.view(-1) for p in self.model.layers[layer].parameters()])
            else:
                gradient = (self.model.embedding if kind == "embedding-grad" else self.model.head).weight.grad
            self.take(kind, layer, step, gradient)


class MasterWeights:
    """AdamW on FP32 copies of BF16 parameters, with linear warm-up and gradient clipping."""

    def __init__(self, parameters, rate=3e-4, warm_up=50):
        self.parameters = list(parameters)
        self.masters = [parameter.detach().float() for parameter in self.parameters]
        self.optimizer = torch.optim.AdamW(self.masters, lr=rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.rate, self.warm_up = rate, warm_up

    def step(self, step):
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1.0, step / self.warm_up)
        for parameter, master in zip(self.parameters, self.masters):
            master.grad = parameter.grad.float()
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        torch._foreach_copy_([parameter.data for parameter in self.parameters], self.masters)
        for parameter, master in zip(self.parameters, self.masters):
            parameter.grad = master.grad = None


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="tar file to write")
    parser.add_argument("--steps", type=int, nargs=3, default=[1, 50, 300], metavar="N", help="steps to record")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--values", type=int, default=128 << 10, help="values in a slice")
    parser.add_argument("--text-mib", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def train(args, model, tokens, recorder):
    generator = torch.Generator().manual_seed(args.seed)
    optimizer = MasterWeights(model.parameters())
    for step in range(1, max(args.steps) + 1):
        starts = torch.randint(len(tokens) - args.length - 1, (args.batch,), generator=generator)
        batch = torch.stack([tokens[start : start + args.length + 1] for start in starts]).to(args.device).long()
        recorder.before_step(step)
        loss = llama.loss(model(batch[:, :-1]), batch[:, 1:])
        loss.backward()
        recorder.after_backward(step)
        optimizer.step(step)
        if step in args.steps or step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    return loss.item()


def main():
    args = arguments()
    started = time.monotonic()
    tokens, sources, text_sha256 = text.corpus(args.text_mib << 20)
    print(f"text: {len(tokens)} tokens after {time.monotonic() - started:.1f} s", flush=True)
    torch.manual_seed(args.seed)
    model = llama.Llama(args.hidden, args.layers).to(args.device, torch.bfloat16)
    for name, parameter in model.named_parameters():
        deviation = llama.initial_deviation(name, args.layers)
        if deviation is not None:
            torch.nn.init.normal_(parameter, std=deviation)
    recorder = Recorder(model, args.steps, args.values)
    final_loss = train(args, model, torch.tensor(tokens, dtype=torch.int32), recorder)
    manifest = {
        "about": "Slices of BF16 tensors of a training run, written by record.py: raw little-endian 16-bit values",
        "model": {"hidden": args.hidden, "layers": args.layers, "vocabulary": 32000, "seed": args.seed,
                  "parameters": sum(parameter.numel() for parameter in model.parameters()),
                  "tokens_per_step": args.batch * args.length, "loss_at_last_step": final_loss},
        "text": {"what": "program text and documents of the machine's Python installation, as input only",
                 "bytes": sum(source.bytes for source in sources), "sha256": text_sha256, "tokens": len(tokens),
                 "sources": [source.as_dict() for source in sources]},
        "versions": {"python": platform.python_version(), "torch": torch.__version__,
                     "device": torch.cuda.get_device_name() if args.device == "cuda" else args.device},
        "tensors": sorted(recorder.entries, key=lambda entry: entry["name"]),
    }
    recorder.files["manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    with tarfile.open(args.out, "w") as archive:
        for name, data in sorted(recorder.files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    print(f"{args.out}: {len(recorder.files)} files after {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
