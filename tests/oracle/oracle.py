#!/usr/bin/env python3
"""An independent GPT and Llama in PyTorch: what trireme must compute, written as plainly as PyTorch allows.

Prints the golden file that README.md in this folder describes. Weights and tokens are not stored anywhere: both sides
generate them from the counter-based random numbers of src/base/rng.h, of which this file holds its own copy.

    python3 oracle.py gpt > ../golden/oracle_gpt.txt
    python3 oracle.py llama > ../golden/oracle_llama.txt
    python3 oracle.py gelu > ../golden/oracle_gelu.txt
    python3 oracle.py llama3 > ../golden/oracle_llama3.txt
    python3 oracle.py limited_gpt > ../golden/oracle_limited_gpt.txt
    python3 oracle.py limited_llama > ../golden/oracle_limited_llama.txt
    python3 oracle.py muon > ../golden/oracle_muon.txt
    python3 oracle.py experts > ../golden/oracle_experts.txt
"""

import math
import sys
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Shape:
    layers: int = 4
    hidden: int = 32
    heads: int = 4
    groups: int = 4  # of heads that share keys and values
    ffn: int = 128
    sequence: int = 16
    vocabulary: int = 61
    micro_batch: int = 2
    microbatches: int = 4
    llama: int = 0  # RMS norms, rotary positions, SwiGLU, no biases, an output layer of its own
    exact: int = 0  # of a GPT: GELU by erf, not by tanh
    limited: int = 0  # documents, a window in two of three layers, sinks, a scale and a cap of scores, loss per token
    llama3: int = 0  # of a Llama: slowed rotations, and biases of the attention's two linear layers
    muon: int = 0  # Muon steps the matrices of the layers
    experts: int = 0  # of a Llama: so many in place of each MLP, `ffn` wide, beside a shared one


SHAPES = {
    "gpt": Shape(),
    "llama": Shape(heads=8, groups=4, ffn=96, llama=1),
    "gelu": Shape(exact=1),
    "limited_gpt": Shape(limited=1),
    "limited_llama": Shape(heads=8, groups=4, ffn=96, llama=1, limited=1),
    "llama3": Shape(heads=4, groups=4, ffn=96, llama=1, llama3=1),
    "experts": Shape(heads=8, groups=4, ffn=24, llama=1, experts=4),
    "muon": Shape(heads=8, groups=4, ffn=96, llama=1, muon=1),
}
FACTOR, LOW, HIGH, ORIGINAL = 8.0, 1.0, 4.0, 128  # of llama3
ROTARY_BASE = 10000.0
WINDOW, WINDOWED, SCALE, CAP_SCORES = 5, (True, False, True), 0.5, 1.5  # of limited; layers repeat after three
CHOSEN, SHARED, BALANCE, Z = 2, 16, 0.02, 0.001  # of experts: of a token; width; coefficients of losses of routers
SEED = 1234
PERTURBATION = 0.05  # of every parameter around its base value
STEPS, MUON_STEPS = 10, 20
LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
MOMENTUM, EXTRA_SCALE = 0.95, 0.2  # of Muon, with Nesterov's momentum
QUINTIC = [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
           (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)]
ELEMENTS = 8  # of each tensor, spread over its rows and columns
LOGITS_AT = [(0, 0), (0, 15), (3, 7), (7, 15)]  # (sample, position)

MASK32, MASK64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


# ---- Random numbers: Philox4x32-10 (Salmon et al., SC'11), keys by FNV-1a, normals by Box-Muller ---------


def philox(counter, key):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK32, (p0 >> 32) ^ c3 ^ k1, p0 & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def mix(x):
    x = ((x ^ (x >> 33)) * 0xFF51AFD7ED558CCD) & MASK64
    x = ((x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53) & MASK64
    return x ^ (x >> 33)


def rng_key(seed, purpose, number=0):
    h = 0xCBF29CE484222325
    for byte in purpose.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK64
    seed = mix((seed + 0x9E3779B97F4A7C15) & MASK64)
    number = mix((number + 0xD1B54A32D192ED03) & MASK64) * 3 & MASK64
    h = mix(h ^ seed ^ number)
    return h & MASK32, h >> 32


def rng_word(key, sample, index):
    block = index // 4
    return philox((block & MASK32, block >> 32, sample & MASK32, sample >> 32), key)[index % 4]


def box_muller(u, v):
    radius, angle = math.sqrt(-2.0 * math.log((u + 0.5) * 2.0**-32)), 2.0 * math.pi * v * 2.0**-32
    return radius * math.cos(angle), radius * math.sin(angle)


def rng_normals(key, count):
    values = []
    for block in range((count + 3) // 4):
        w = philox((block & MASK32, block >> 32, 0, 0), key)
        values += box_muller(w[0], w[1]) + box_muller(w[2], w[3])
    return np.array(values[:count], dtype=np.float32)


# ---- The model -------------------------------------------------------------------------------------------


def parameter_shapes(shape):
    """Names as in Megatron-LM's core models, in the order of the forward pass."""
    h, f = shape.hidden, shape.ffn
    qkv, inner = (shape.heads + 2 * shape.groups) * h // shape.heads, (2 if shape.llama else 1) * f
    shapes = {
        "embedding.word_embeddings.weight": (shape.vocabulary, h),
        "embedding.position_embeddings.weight": (shape.sequence, h),
    }
    for i in range(shape.layers):
        layer = f"decoder.layers.{i}."
        shapes[layer + "input_layernorm.weight"] = shapes[layer + "input_layernorm.bias"] = (h,)
        if shape.limited:
            shapes[layer + "self_attention.core_attention.softmax_offset"] = (shape.heads,)
        shapes[layer + "self_attention.linear_qkv.weight"] = (qkv, h)
        shapes[layer + "self_attention.linear_qkv.bias"] = (qkv,)
        shapes[layer + "self_attention.linear_proj.weight"] = (h, h)
        shapes[layer + "self_attention.linear_proj.bias"] = (h,)
        shapes[layer + "pre_mlp_layernorm.weight"] = shapes[layer + "pre_mlp_layernorm.bias"] = (h,)
        if shape.experts:
            e = shape.experts
            shapes[layer + "mlp.router.weight"] = (e, h)
            shapes[layer + "mlp.experts.linear_fc1.weight"] = (e * inner, h)
            shapes[layer + "mlp.experts.linear_fc2.weight"] = (e * h, f)
            shapes[layer + "mlp.shared_experts.linear_fc1.weight"] = (2 * SHARED, h)
            shapes[layer + "mlp.shared_experts.linear_fc2.weight"] = (h, SHARED)
            continue
        shapes[layer + "mlp.linear_fc1.weight"], shapes[layer + "mlp.linear_fc1.bias"] = (inner, h), (inner,)
        shapes[layer + "mlp.linear_fc2.weight"], shapes[layer + "mlp.linear_fc2.bias"] = (h, f), (h,)
    shapes["decoder.final_layernorm.weight"] = shapes["decoder.final_layernorm.bias"] = (h,)
    if not shape.llama:
        return shapes
    shapes["output_layer.weight"] = (shape.vocabulary, h)
    return {name: dims for name, dims in shapes.items()
            if "position" not in name
            and (not name.endswith("bias") or (shape.llama3 and "self_attention" in name))}


def initial_value(name, shape):
    """base + 0.05 * normal, rounded as C rounds it in float: no bias is 0 and no norm weight is 1."""
    base = np.float32(1.0 if name.endswith("layernorm.weight") else 0.0)
    normals = rng_normals(rng_key(SEED, "oracle:" + name), math.prod(shape))
    return (base + np.float32(PERTURBATION) * normals).reshape(shape)


def make_parameters(shape, dtype):
    return {
        name: torch.tensor(initial_value(name, dims), dtype=dtype).requires_grad_()
        for name, dims in parameter_shapes(shape).items()
    }


def norm(p, name, x):
    if name + ".bias" not in p:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * p[name + ".weight"]
    return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], eps=1e-5)


def linear(p, name, x):
    return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))


def slowed(speeds):
    """Llama 3.1's: waves of more than ORIGINAL / LOW positions by FACTOR, of less than ORIGINAL / HIGH not at all."""
    waves = 2 * math.pi / speeds
    share = ((ORIGINAL / waves - LOW) / (HIGH - LOW)).clamp(0, 1)
    return speeds * (share + (1 - share) / FACTOR)


def documents(tokens):
    """The first position of the document of each token [b, S]: a document ends with a token that five divides."""
    starts = torch.zeros_like(tokens)
    for s in range(1, tokens.shape[1]):
        starts[:, s] = torch.where(tokens[:, s - 1] % 5 == 0, s, starts[:, s - 1])
    return starts


def positions(tokens, shape):
    here = torch.arange(tokens.shape[1]).expand_as(tokens)
    return here - documents(tokens) if shape.limited else here


def limited_attention(p, name, query, key, value, tokens):
    """Probabilities of the visible keys, with the exponential of the head's sink in the denominator."""
    layer, here = int(name.split(".")[2]), torch.arange(tokens.shape[1])
    scores = CAP_SCORES * torch.tanh(SCALE * query @ key.transpose(-1, -2) / CAP_SCORES)
    seen = (here <= here[:, None]) & (here >= documents(tokens)[:, :, None])
    if WINDOWED[layer % len(WINDOWED)]:
        seen = seen & (here > here[:, None] - WINDOW)
    scores = scores.masked_fill(~seen[:, None], -math.inf)
    sinks = p[name + ".core_attention.softmax_offset"].view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1] @ value


def rotate(x, places, shape):
    """Rotary positions of x [batch, heads, sequence, size]: (i, i + size/2) turns by s/base^(2i/size)."""
    size = x.shape[-1]
    speeds = ROTARY_BASE ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    if shape.llama3:
        speeds = slowed(speeds)
    angles = (places[..., None] * speeds)[:, None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, last = x.chunk(2, dim=-1)
    return torch.cat((first * cos - last * sin, last * cos + first * sin), dim=-1)


def attention(p, name, x, tokens, shape):
    """The rows of linear_qkv lie group by group, within a group its queries, then key, then value."""
    batch, sequence, hidden = x.shape
    each = shape.heads // shape.groups
    qkv = linear(p, name + ".linear_qkv", x)
    qkv = qkv.view(batch, sequence, shape.groups, each + 2, hidden // shape.heads)
    qkv = qkv.permute(0, 2, 3, 1, 4)  # batch, group, head within it, position, column
    query = qkv[:, :, :each].flatten(1, 2)
    key, value = (qkv[:, :, each + i].repeat_interleave(each, dim=1) for i in range(2))
    if shape.llama:
        places = positions(tokens, shape)
        query, key = rotate(query, places, shape), rotate(key, places, shape)
    if shape.limited:
        context = limited_attention(p, name, query, key, value, tokens)
    else:
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return linear(p, name + ".linear_proj", context.transpose(1, 2).reshape(batch, sequence, hidden))


def mlp(p, name, x, shape):
    y = linear(p, name + ".linear_fc1", x)
    if shape.llama:
        gate, up = y.chunk(2, dim=-1)
        return linear(p, name + ".linear_fc2", F.silu(gate) * up)
    return linear(p, name + ".linear_fc2", F.gelu(y, approximate="none" if shape.exact else "tanh"))


def gated(x, fc1, fc2):
    gate, up = F.linear(x, fc1).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, fc2)


def router_loss(scores, chosen, shape):
    """Of the tokens of a microbatch: of the experts' loads and probabilities, and of the size of the scores."""
    tokens = scores.shape[0]
    counts = F.one_hot(chosen, shape.experts).sum((0, 1)).to(scores.dtype)
    balance = shape.experts / (CHOSEN * tokens**2) * (counts * scores.softmax(-1).sum(0)).sum()
    return BALANCE * balance + Z * scores.logsumexp(-1).pow(2).mean()


def experts(p, name, x, shape, losses):
    """Each token's two experts with the largest scores, weighed by their softmax, and the shared expert."""
    rows = x.flatten(0, 1)
    scores = F.linear(rows, p[name + ".router.weight"])
    best, chosen = scores.topk(CHOSEN)
    losses.append(router_loss(scores, chosen, shape))
    fc1 = p[name + ".experts.linear_fc1.weight"].chunk(shape.experts)
    fc2 = p[name + ".experts.linear_fc2.weight"].chunk(shape.experts)
    weights = torch.zeros_like(scores).scatter(1, chosen, best.softmax(-1))
    y = sum(weights[:, e : e + 1] * gated(rows, fc1[e], fc2[e]) for e in range(shape.experts))
    shared = name + ".shared_experts.linear_"
    return (y + gated(rows, p[shared + "fc1.weight"], p[shared + "fc2.weight"])).view_as(x)


def logits(p, tokens, shape, losses=None):
    """tokens [b, S] -> [b, S, V], without dropout; GPT's output layer is the word embedding."""
    words = p["embedding.word_embeddings.weight"]
    x = F.embedding(tokens, words)
    if not shape.llama:
        x = x + F.embedding(positions(tokens, shape), p["embedding.position_embeddings.weight"])
    for i in range(shape.layers):
        layer = f"decoder.layers.{i}"
        x = x + attention(p, layer + ".self_attention", norm(p, layer + ".input_layernorm", x), tokens, shape)
        y = norm(p, layer + ".pre_mlp_layernorm", x)
        if shape.experts:
            x = x + experts(p, layer + ".mlp", y, shape, [] if losses is None else losses)
        else:
            x = x + mlp(p, layer + ".mlp", y, shape)
    return F.linear(norm(p, "decoder.final_layernorm", x), p.get("output_layer.weight", words))


# ---- Training --------------------------------------------------------------------------------------------


def sample_tokens(sample, shape):
    """S + 1 tokens: inputs are the first S, labels the last S."""
    key = rng_key(SEED, "tokens")
    return [rng_word(key, sample, i) % shape.vocabulary for i in range(shape.sequence + 1)]


def microbatch(step, index, shape):
    first = (step * shape.microbatches + index) * shape.micro_batch
    rows = torch.tensor([sample_tokens(first + i, shape) for i in range(shape.micro_batch)])
    return rows[:, :-1], rows[:, 1:]


def step_loss(p, tokens, labels, counted, shape, router_losses):
    """A microbatch's share of the loss of a step: a mean; per token a sum over tokens that do not end a document."""
    losses = F.cross_entropy(logits(p, tokens, shape, router_losses).flatten(0, 1), labels.flatten(), reduction="none")
    if not shape.limited:
        return losses.mean() / shape.microbatches
    return (losses * (tokens.flatten() % 5 != 0)).sum() / counted


def accumulate_gradients(p, step, shape):
    """The loss of one step: the mean over tokens, then over microbatches. Adds to every .grad."""
    total = 0.0
    counted = sum((microbatch(step, i, shape)[0] % 5 != 0).sum() for i in range(shape.microbatches))
    for index in range(shape.microbatches):
        tokens, labels = microbatch(step, index, shape)
        losses = []  # of the routers of all layers: of the gradient, not of the loss that is told
        loss = step_loss(p, tokens, labels, counted, shape, losses)
        (loss + sum(losses) / shape.microbatches).backward()
        total += loss.item()
    return total


def is_hidden_matrix(name):
    return name.startswith("decoder.layers.") and "linear" in name and name.endswith("weight")


def orthogonal(update):
    """Newton-Schulz from the side that has fewer rows; then the scale of a spectral norm."""
    x = update.T if update.shape[0] > update.shape[1] else update
    x = x / x.norm().clamp(min=1e-7)
    for a, b, c in QUINTIC:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    scale = EXTRA_SCALE * math.sqrt(max(update.shape))
    return scale * (x.T if update.shape[0] > update.shape[1] else x)


class Muon:
    """Muon for the matrices of the layers; queries, keys and values of linear_qkv are matrices of their own."""

    def __init__(self, p, shape):
        self.shape = shape
        self.matrices = {name: x for name, x in p.items() if is_hidden_matrix(name)}
        self.momenta = {name: torch.zeros_like(x) for name, x in self.matrices.items()}
        self.others = make_adamw({name: x for name, x in p.items() if name not in self.matrices})

    def update(self, name, u):
        if "linear_qkv" not in name:
            return orthogonal(u)
        each, size = self.shape.heads // self.shape.groups, self.shape.hidden // self.shape.heads
        groups = u.view(self.shape.groups, each + 2, size, u.shape[1])
        parts = groups.split([each, 1, 1], dim=1)
        parts = [orthogonal(part.reshape(-1, u.shape[1])).view_as(part) for part in parts]
        return torch.cat(parts, dim=1).view_as(u)

    @torch.no_grad()
    def step(self):
        for name, x in self.matrices.items():
            m = self.momenta[name]
            m.lerp_(x.grad, 1 - MOMENTUM)
            u = self.update(name, x.grad.lerp(m, MOMENTUM))
            x.mul_(1 - LEARNING_RATE * WEIGHT_DECAY).sub_(u, alpha=LEARNING_RATE)
        self.others.step()


def make_adamw(p):
    groups = [
        {"params": [x for x in p.values() if x.ndim == 2], "weight_decay": WEIGHT_DECAY},
        {"params": [x for x in p.values() if x.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)


def num_steps(shape):
    return MUON_STEPS if shape.muon else STEPS


def train(dtype, shape):
    """[(loss, gradient norm before clipping)] of every step, and the trained parameters."""
    p = make_parameters(shape, dtype)
    optimizer = Muon(p, shape) if shape.muon else make_adamw(p)
    history = []
    for step in range(num_steps(shape)):
        for x in p.values():
            x.grad = None
        loss = accumulate_gradients(p, step, shape)
        history.append((loss, torch.nn.utils.clip_grad_norm_(p.values(), CLIP).item()))
        optimizer.step()
    return history, p


# ---- The golden file -------------------------------------------------------------------------------------


def number(value):
    return f"{value:.12e}"


def print_tensor(key, name, tensor):
    """key, name, count, sum, sum of squares, then eight pairs of index and value."""
    flat = tensor.detach().flatten()
    indices = [(k * flat.numel() // ELEMENTS + 5 * k) % flat.numel() for k in range(ELEMENTS)]
    pairs = [f"{i} {number(flat[i].item())}" for i in indices]
    print(key, name, flat.numel(), number(flat.sum().item()), number((flat * flat).sum().item()), *pairs)


def print_settings(shape):
    print("oracle_gpt 2")
    for key, value in vars(shape).items():
        if value or key == "llama":
            print(key, value)
    print("seed", SEED)
    print("perturbation", PERTURBATION)
    print("adamw", LEARNING_RATE, *BETAS, EPSILON, WEIGHT_DECAY, CLIP)
    if shape.muon:
        print("momentum", MOMENTUM, EXTRA_SCALE)
    if shape.experts:
        print("router", CHOSEN, SHARED, BALANCE, Z)
    print("tokens", shape.sequence + 1, *sample_tokens(0, shape))


def print_first_step(shape):
    p = make_parameters(shape, torch.float64)
    print("loss", number(accumulate_gradients(p, 0, shape)))
    for sample, position in LOGITS_AT:
        tokens = torch.tensor([sample_tokens(sample, shape)[:-1]])
        row = logits(p, tokens, shape)[0, position]
        print("logits", sample, position, row.numel(), *(number(x.item()) for x in row))
    print("parameters", len(p))
    for name, tensor in p.items():
        print_tensor("initial", name, tensor)
        print_tensor("gradient", name, tensor.grad)


def print_training(shape):
    (precise, trained), (single, _) = train(torch.float64, shape), train(torch.float32, shape)
    print("steps", num_steps(shape))
    for step, ((loss, grad_norm), (loss32, _)) in enumerate(zip(precise, single)):
        print("step", step, number(loss), number(grad_norm), number(loss32))
    for name, tensor in trained.items():
        print_tensor("final", name, tensor)


def main():
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    shape = SHAPES[sys.argv[1]]
    print_settings(shape)
    print_first_step(shape)
    print_training(shape)


if __name__ == "__main__":
    main()
