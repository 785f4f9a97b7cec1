"""A Llama-shaped decoder in plain PyTorch: RMSNorm, rotary positions, grouped-query causal attention, SwiGLU."""

import torch
import torch.nn.functional as F
from torch import nn

HEAD_WIDTH = 128


class Attention(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.heads = hidden // HEAD_WIDTH
        self.kv_heads = max(1, self.heads // 4)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, self.kv_heads * HEAD_WIDTH, bias=False)
        self.value = nn.Linear(hidden, self.kv_heads * HEAD_WIDTH, bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x, cosine, sine):
        batch, length, hidden = x.shape
        query = self.query(x).view(batch, length, self.heads, HEAD_WIDTH).transpose(1, 2)
        key = self.key(x).view(batch, length, self.kv_heads, HEAD_WIDTH).transpose(1, 2)
        value = self.value(x).view(batch, length, self.kv_heads, HEAD_WIDTH).transpose(1, 2)
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        key, value = self._repeat(key), self._repeat(value)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(attended.transpose(1, 2).reshape(batch, length, hidden))

    def _repeat(self, x):
        batch, kv_heads, length, width = x.shape
        repeats = self.heads // kv_heads
        return x[:, :, None].expand(batch, kv_heads, repeats, length, width).reshape(batch, self.heads, length, width)


class Mlp(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.gate = nn.Linear(hidden, width, bias=False)
        self.up = nn.Linear(hidden, width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.attention_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.attention = Attention(hidden)
        self.mlp_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.mlp = Mlp(hidden, width)

    def forward(self, x, cosine, sine):
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self, hidden, layers, vocabulary=32000):
        super().__init__()
        width = (8 * hidden // 3 + 255) // 256 * 256
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Layer(hidden, width) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden, eps=1e-5)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        cosine, sine = rotary(tokens.shape[1], x.device, x.dtype)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return self.head(self.norm(x))


def rotary(length, device, dtype, base=10000.0):
    frequency = base ** (-torch.arange(0, HEAD_WIDTH, 2, device=device, dtype=torch.float32) / HEAD_WIDTH)
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x, cosine, sine):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def initial_deviation(name, layers):
    """Standard deviation of a parameter's initial values; None for norms, which start at one."""
    if "norm" in name:
        return None
    scaled = name.endswith(("attention.output.weight", "mlp.down.weight"))
    return 0.02 / (2 * layers) ** 0.5 if scaled else 0.02


def loss(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
