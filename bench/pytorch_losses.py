#!/usr/bin/env python3
"""A GPT in PyTorch on the samples and from the weights of a run of trireme: what bf16 does to its losses.

Prints one JSON line a step, as --metrics does. In fp32 the losses are those of trireme to rounding. `auto` is
torch.autocast: fp32 weights and residuals, products in bf16. `pure` is bf16 throughout, as Megatron-LM and trireme have
it: weights rounded for each step, activations, residuals; fp32 master weights, gradients and logits in the loss.

    build/trireme train --data-path text --data-cache-path cache --num-layers 4 --hidden-size 128 ... --seed 1
    python3 bench/pytorch_losses.py --data text --cache cache --layers 4 --hidden 128 ... --seed 1 --dtype auto
"""

import argparse
import glob
import json
import math

import numpy as np
import torch
import torch.nn.functional as F

MASK32, MASK64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
STD = 0.02


# ---- random numbers: base/rng.h, with numpy ----------------------------------------------------------------


def mix(x):
    x = ((x ^ (x >> 33)) * 0xFF51AFD7ED558CCD) & MASK64
    x = ((x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53) & MASK64
    return x ^ (x >> 33)


def rng_key(seed, purpose):
    h = 0xCBF29CE484222325
    for byte in purpose.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK64
    h = mix(h ^ mix((seed + 0x9E3779B97F4A7C15) & MASK64) ^ (mix(0xD1B54A32D192ED03) * 3 & MASK64))
    return h & MASK32, h >> 32


def normals(key, count):
    blocks, low, high = (count + 3) // 4, np.uint64(MASK32), np.uint64(32)
    i = np.arange(blocks, dtype=np.uint64)
    c, k = [i & low, i >> high, np.zeros_like(i), np.zeros_like(i)], list(key)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> high) ^ c[1] ^ np.uint64(k[0]), p1 & low, (p0 >> high) ^ c[3] ^ np.uint64(k[1]), p0 & low]
        k = [(k[0] + 0x9E3779B9) & MASK32, (k[1] + 0xBB67AE85) & MASK32]
    u = [x.astype(np.float64) for x in c]
    radii = [np.sqrt(-2 * np.log((x + 0.5) * 2.0**-32)) for x in u[::2]]
    angles = [2 * math.pi * x * 2.0**-32 for x in u[1::2]]
    pairs = [f(a) * r for r, a in zip(radii, angles) for f in (np.cos, np.sin)]
    return np.stack(pairs, 1).reshape(-1)[:count].astype(np.float32)


# ---- the run's weights and samples -------------------------------------------------------------------------


def make_parameters(a):
    def drawn(name, rows, columns, std=STD):
        values = np.float32(std) * normals(rng_key(a.seed, name), rows * columns)
        return torch.tensor(values.reshape(rows, columns)).requires_grad_()

    h, last = a.hidden, np.float32(STD) / np.sqrt(np.float32(2 * a.layers))
    shapes = {"self_attention.linear_qkv": (3 * h, h, STD), "self_attention.linear_proj": (h, h, last),
              "mlp.linear_fc1": (4 * h, h, STD), "mlp.linear_fc2": (h, 4 * h, last)}
    p = {"word": drawn("embedding.word_embeddings.weight", a.vocabulary, h),
         "position": drawn("embedding.position_embeddings.weight", a.seq, h)}
    norms = ["final"]
    for i in range(a.layers):
        norms += [f"{i}.norm1", f"{i}.norm2"]
        for name, (rows, columns, std) in shapes.items():
            p[f"{i}.{name}.weight"] = drawn(f"decoder.layers.{i}.{name}.weight", rows, columns, std)
            p[f"{i}.{name}.bias"] = torch.zeros(rows, requires_grad=True)
    for name in norms:
        p[name + ".weight"], p[name + ".bias"] = torch.ones(h, requires_grad=True), torch.zeros(h, requires_grad=True)
    return p


class Samples:
    """The data set as --data-cache-path keeps its order: documents one after the other in PREFIX.bin."""

    def __init__(self, a):
        def index(name):
            return np.load(glob.glob(f"{a.cache}/*-train-{name}_index.npy")[0])

        with open(a.data + ".idx", "rb") as file:
            header = file.read()
        count = int(np.frombuffer(header, np.uint64, 1, 18)[0])
        self.lengths = np.frombuffer(header, np.int32, count, 34)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.tokens, self.size = np.fromfile(a.data + ".bin", np.uint16), a.seq + 1
        self.documents, self.samples, self.order = index("document"), index("sample"), index("shuffle")

    def take(self, number):
        at = int(self.order[number])
        (first, begin), (last, end) = self.samples[at], self.samples[at + 1]
        parts = []
        for d in range(first, last + 1):
            document = self.documents[d]
            start, stop = begin if d == first else 0, end + 1 if d == last else self.lengths[document]
            parts.append(self.tokens[self.starts[document] + start: self.starts[document] + stop])
        return np.concatenate(parts)[: self.size].astype(np.int64)


# ---- the model and its training ----------------------------------------------------------------------------


def loss_of(w, a, tokens, labels):
    def norm(name, x):
        return F.layer_norm(x, (a.hidden,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def linear(name, x):
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    rows, size = tokens.shape[0], a.hidden // a.heads
    future = torch.ones(a.seq, a.seq, dtype=torch.bool).triu(1)
    x = F.embedding(tokens, w["word"]) + w["position"]
    for i in range(a.layers):
        qkv = linear(f"{i}.self_attention.linear_qkv", norm(f"{i}.norm1", x))
        # Head by head: its query, key and value.
        q, k, v = qkv.view(rows, a.seq, a.heads, 3, size).permute(3, 0, 2, 1, 4)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(size)).masked_fill(future, float("-inf"))
        y = scores.float().softmax(-1).to(v.dtype) @ v
        x = x + linear(f"{i}.self_attention.linear_proj", y.transpose(1, 2).reshape(rows, a.seq, a.hidden))
        y = F.gelu(linear(f"{i}.mlp.linear_fc1", norm(f"{i}.norm2", x)), approximate="tanh")
        x = x + linear(f"{i}.mlp.linear_fc2", y)
    logits = F.linear(norm("final", x), w["word"])
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def add_gradients(p, a, tokens):
    """Of one microbatch, to every .grad; returns its share of the step's loss."""
    x, y, share = tokens[:, :-1], tokens[:, 1:], tokens.shape[0] / a.batch
    if a.dtype != "pure":
        with torch.autocast("cpu", torch.bfloat16, enabled=a.dtype == "auto"):
            loss = loss_of(p, a, x, y) * share
        loss.backward()
        return loss.item()
    rounded = {name: value.detach().bfloat16().requires_grad_() for name, value in p.items()}
    loss = loss_of(rounded, a, x, y) * share
    loss.backward()
    for name, value in p.items():
        more = rounded[name].grad.float()
        value.grad = more if value.grad is None else value.grad + more
    return loss.item()


def rate(a, step):
    """After `step` steps; the first is taken with none, as Megatron-LM's warm-up has it."""
    if step <= a.warmup:
        return a.lr * step / a.warmup
    return a.min_lr + (a.lr - a.min_lr) * 0.5 * (1 + math.cos(math.pi * (step - a.warmup) / (a.decay - a.warmup)))


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True)
    p.add_argument("--cache", required=True)
    p.add_argument("--dtype", choices=["fp32", "auto", "pure"], default="fp32")
    for name, value in [("seed", 1), ("steps", 1000), ("layers", 4), ("hidden", 128), ("heads", 8), ("seq", 64),
                        ("vocabulary", 1024), ("batch", 8), ("microbatch", 2), ("warmup", 10), ("decay", 1000)]:
        p.add_argument("--" + name, type=int, default=value)
    for name, value in [("lr", 2e-3), ("min-lr", 2e-4)]:
        p.add_argument("--" + name, type=float, default=value)
    return p.parse_args()


def main():
    a = options()
    torch.set_num_threads(1)
    p, samples = make_parameters(a), Samples(a)
    groups = [{"params": [x for x in p.values() if x.ndim == n], "weight_decay": d} for n, d in ((2, 0.1), (1, 0.0))]
    optimizer = torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.95), eps=1e-8)
    for step in range(a.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(a, step)
        for value in p.values():
            value.grad = None
        tokens = torch.tensor(np.stack([samples.take(step * a.batch + i) for i in range(a.batch)]))
        loss = sum(add_gradients(p, a, part) for part in tokens.split(a.microbatch))
        norm = torch.nn.utils.clip_grad_norm_(p.values(), 1.0).item()
        optimizer.step()
        print(json.dumps({"iteration": step + 1, "lm_loss": loss, "grad_norm": norm}), flush=True)


main()
