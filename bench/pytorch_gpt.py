"""The training rate of the same GPT in PyTorch: what ./run bench compares trireme's with.

Usage: pytorch_gpt.py [--dtype fp32|bf16] [--compile] [--batch B] [--seq S] [--microbatches M] [--layers L]
                      [--hidden H] [--heads N] [--dropout P] [--threads T] [--steps K] [--device cpu|cuda]

GPT-2's architecture written with PyTorch's fastest parts: scaled_dot_product_attention (causal, no S x S matrix),
a tied head, cross_entropy, autocast for bf16, clip_grad_norm_ and AdamW(fused=True); optionally all of it through
torch.compile. One line of JSON: the median seconds of a step, tokens per second and the loss.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads, self.dropout = a.heads, a.dropout
        self.norm1, self.norm2 = nn.LayerNorm(a.hidden), nn.LayerNorm(a.hidden)
        self.qkv, self.proj = nn.Linear(a.hidden, 3 * a.hidden), nn.Linear(a.hidden, a.hidden)
        self.up, self.down = nn.Linear(a.hidden, 4 * a.hidden), nn.Linear(4 * a.hidden, a.hidden)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(h, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(b, s, h)), self.dropout)
        y = self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x + F.dropout(y, self.dropout)


class Gpt(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.word, self.position = nn.Embedding(a.vocabulary, a.hidden), nn.Embedding(a.seq, a.hidden)
        self.layers = nn.ModuleList(Layer(a) for _ in range(a.layers))
        self.norm, self.dropout = nn.LayerNorm(a.hidden), a.dropout
        self.apply(self.start)

    @staticmethod
    def start(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, labels):
        x = self.word(tokens) + self.position.weight[: tokens.shape[1]]
        x = F.dropout(x, self.dropout)
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.word.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--compile", action="store_true")
    for name, value in [("batch", 1), ("seq", 1024), ("microbatches", 2), ("layers", 12), ("hidden", 768),
                        ("heads", 12), ("vocabulary", 50304), ("threads", 2), ("steps", 3)]:
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--dropout", type=float, default=0.1)
    return p.parse_args()


def main():
    a = options()
    torch.manual_seed(1)
    torch.set_num_threads(a.threads)
    if a.device == "cuda":
        torch.set_float32_matmul_precision("high")
    model = Gpt(a).to(a.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)
    tokens, labels = (torch.randint(a.vocabulary, (a.microbatches, a.batch, a.seq)).to(a.device) for _ in range(2))
    forward = torch.compile(model) if a.compile else model
    seconds, loss = [], None
    for _ in range(a.steps + 1):
        start = time.perf_counter()
        for x, y in zip(tokens, labels):
            with torch.autocast(a.device, torch.bfloat16, enabled=a.dtype == "bf16"):
                loss = forward(x, y)
            (loss / a.microbatches).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if a.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    step = statistics.median(seconds[1:])
    print(json.dumps({"torch": torch.__version__, "dtype": a.dtype, "compile": a.compile, "dropout": a.dropout,
                      "batch": a.batch, "seq": a.seq, "step_s": round(step, 4), "loss": round(loss.item(), 4),
                      "tokens_per_s": round(a.microbatches * a.batch * a.seq / step, 1)}))


main()
