"""Adapters (LoRA): ten steps of AdamW with PyTorch and PEFT's library have the losses of `trireme train --lora-rank`.

Models with random weights, written by transformers, are trained by both on the same samples from the same initial A: those of a
checkpoint of trireme of which the learning rate was 0. Losses agree within 1e-5, and so do A and B after the last step. Going on
from the fifth step gives the same bits, and so do pipelines, data ranks that are leaves of one tree, and shards.

Usage: lora.py TRIREME
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys

import torch
from indexed import read_set
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import (GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM,
                          Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM)

TRIREME = os.path.abspath(sys.argv[1])
STEPS, BATCH, LENGTH, SEED, RATE, RANK, VOCABULARY = 10, 4, 24, 1234, 1e-2, 4, 300
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": 64, "initializer_range": 0.1, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
GROUPED = {**SIZES, "num_key_value_heads": 2}
QKV, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
# name, model, its modules, those of `--lora-target-modules` where they are not all, alpha, whether the factor has a root
CASES = [
    ("llama", LlamaForCausalLM, LlamaConfig(**GROUPED), QKV + MLP, None, 8, False),
    ("llama-qv", LlamaForCausalLM, LlamaConfig(**GROUPED), ["q_proj", "v_proj"], ["linear_q", "v_proj"], 16, True),
    ("qwen2", Qwen2ForCausalLM, Qwen2Config(**GROUPED), QKV + MLP, None, None, False),
    ("gpt2", GPT2LMHeadModel, GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0,
                                         embd_pdrop=0, attn_pdrop=0, initializer_range=0.1, bos_token_id=0, eos_token_id=0),
     ["c_attn", "c_proj", "c_fc"], None, 8, False),
    ("phi3", Phi3ForCausalLM, Phi3Config(**GROUPED), ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], None, 8, False),
    ("gpt-neox", GPTNeoXForCausalLM, GPTNeoXConfig(**SIZES),
     ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"], None, 8, False),
]
# Of a module of transformers, the target of trireme. GPT-2's c_proj is two.
TARGETS = {"q_proj": "linear_q", "k_proj": "linear_k", "v_proj": "linear_v", "o_proj": "linear_proj", "gate_proj": "linear_fc1_gate",
           "up_proj": "linear_fc1_up", "down_proj": "linear_fc2", "c_attn": "linear_qkv", "qkv_proj": "linear_qkv",
           "query_key_value": "linear_qkv", "attn.c_proj": "linear_proj", "mlp.c_proj": "linear_fc2", "c_fc": "linear_fc1",
           "gate_up_proj": "linear_fc1", "dense": "linear_proj", "dense_h_to_4h": "linear_fc1", "dense_4h_to_h": "linear_fc2"}


def call(*words):
    out = subprocess.run([TRIREME, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert out.returncode == 0, out.stdout
    return out.stdout


def make_data():
    with open("text", "w") as file:
        file.writelines(f"The {i} quick brown foxes jump over {7 * i} lazy dogs and count {i * i}.\n" for i in range(400))
    call("preprocess", "--input", "text", "--output-prefix", "data", "--vocab-size", "300", "--append-eod")
    text = call("data", "sample", "data", "--seq", str(LENGTH), "--samples", str(STEPS * BATCH),
                "--train-samples", str(STEPS * BATCH), "--split", "100,0,0", "--seed", str(SEED))
    tokens = read_set("data")[0][0]
    ranges = re.findall(r"tokens (\d+) to (\d+)", text)
    assert len(ranges) == STEPS * BATCH
    return torch.tensor([tokens[int(a):int(b) + 1] for a, b in ranges])


def options(case, steps=STEPS):
    name, _, _, _, targets, alpha, root = case
    words = ["--data-path", "data", "--split", "100,0,0", "--seq-length", str(LENGTH), "--micro-batch-size", "1",
             "--global-batch-size", str(BATCH), "--train-iters", str(steps), "--lr-decay-style", "constant", "--weight-decay", "0.1",
             "--adam-beta2", "0.95", "--clip-grad", "1", "--eval-iters", "0", "--seed", str(SEED), "--lora-rank", str(RANK),
             "--hidden-dropout", "0", "--attention-dropout", "0", "--exit-interval", "100"]
    words += ["--lora-target-modules", *targets] if targets else []
    words += ["--lora-alpha", str(alpha)] if alpha else []
    return words + (["--use-rslora"] if root else [])


def losses_of(name):
    with open(f"{name}.jsonl") as file:
        rows = [json.loads(line) for line in file]
    return [row["lm_loss"] for row in rows if "lm_loss" in row]


def train(case, name, *more, load=None, rate=RATE, steps=STEPS):
    call("train", *options(case, steps), "--lr", str(rate), "--metrics", f"{name}.jsonl", *(load or ["--load", case[0], "--finetune"]),
         *more)
    return losses_of(name)


def weights_of(save, step):
    """The weights of a checkpoint of one rank. Slices are named NAME[r0:r1,c0:c1]; here they are rows."""
    files = glob.glob(f"{save}/step-{step:08d}/rank-*.safetensors")
    assert len(files) == 1, files
    rows = {}
    for name, value in load_file(files[0]).items():
        if not name.startswith("optimizer."):
            whole, _, at = name.partition("[")
            rows.setdefault(whole, []).append((int(at.partition(":")[0] or 0), value))
    return {name: torch.cat([value for _, value in sorted(parts, key=lambda part: part[0])]) for name, parts in rows.items()}


def their_module(name):
    """Layer and target of a module of PEFT: "...layers.3.self_attn.q_proj"."""
    words = name.split(".")
    target = TARGETS.get(".".join(words[-2:])) or TARGETS[words[-1]]
    layer = next(word for word in words if word.isdigit())
    part = "mlp" if target.startswith("linear_fc") else "self_attention"
    return f"decoder.layers.{layer}.{part}.{target}"


def rows_by_groups(case, target):
    """The order of their rows of B in ours: queries, keys and values of all heads there, group by group here."""
    if target.rsplit(".", 1)[-1] != "linear_qkv" or case[0] == "gpt-neox":
        return None
    heads, groups = case[2].num_attention_heads, getattr(case[2], "num_key_value_heads", None) or case[2].num_attention_heads
    size, each = case[2].hidden_size // heads, heads // groups
    rows = torch.arange((heads + 2 * groups) * size).view(-1, size)
    order = []
    for g in range(groups):
        order += list(range(g * each, (g + 1) * each)) + [heads + g, heads + groups + g]
    return rows[order].flatten()


def peft_model(case, weights):
    name, kind, _, modules, _, alpha, root = case
    model = kind.from_pretrained(name, dtype=torch.float32, attn_implementation="eager")
    config = LoraConfig(r=RANK, lora_alpha=alpha or RANK, target_modules=modules, use_rslora=root, lora_dropout=0, bias="none",
                        task_type="CAUSAL_LM", fan_in_fan_out=name == "gpt2")
    model = get_peft_model(model, config)
    adapters = {}
    for path, module in model.named_modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            target = their_module(path)
            adapters[target] = module
            with torch.no_grad():
                module.lora_A["default"].weight.copy_(weights[target + ".lora_A.weight"])
            assert not weights[target + ".lora_B.weight"].any(), target
    assert 2 * len(adapters) == len(weights), (sorted(adapters), sorted(weights))
    return model, adapters


def their_losses(model, samples):
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        batch = samples[step * BATCH:(step + 1) * BATCH]
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def farthest(a, b):
    return max(abs(x - y) for x, y in zip(a, b))


def compare(case, samples):
    name, kind, config = case[:3]
    torch.manual_seed(SEED)
    kind(config).save_pretrained(name)
    train(case, f"{name}-start", "--save", f"{name}-start", rate=0, steps=1)
    model, adapters = peft_model(case, weights_of(f"{name}-start", 1))
    ours = train(case, f"{name}-ours", "--save", f"{name}-ours", "--save-interval", "5")
    theirs = their_losses(model, samples)
    assert len(ours) == STEPS and farthest(ours, theirs) < 1e-5, f"{name}:\n{ours}\n{theirs}"
    assert ours[-1] < ours[0] - 0.1, ours
    worst = 0
    for target, module in adapters.items():
        rows = rows_by_groups(case, target)
        a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
        last = weights_of(f"{name}-ours", STEPS)
        worst = max(worst, (last[target + ".lora_A.weight"] - a).abs().max().item(),
                    (last[target + ".lora_B.weight"] - (b if rows is None else b[rows])).abs().max().item())
    assert worst < 1e-3, f"{name}: factors differ by {worst}"
    print(f"  {name}: {STEPS} losses within {farthest(ours, theirs):.1e}, factors within {worst:.1e}, from {ours[0]:.3f} to {ours[-1]:.3f}")
    return ours


def goes_on(case, ours):
    """From the fifth step, with the base named by the checkpoint alone."""
    name = case[0]
    again = train(case, f"{name}-again", "--ckpt-step", "5", load=["--load", f"{name}-ours"])
    assert again == ours[5:], f"{name}: {again} after the fifth step, not {ours[5:]}"


def refuses_another_base(case):
    """Of the same config.json, with other weights."""
    name, kind, config = case[:3]
    os.rename(name, f"{name}-away")
    torch.manual_seed(SEED + 1)
    kind(config).save_pretrained(name)
    out = subprocess.run([TRIREME, "train", *options(case), "--lr", "1e-3", "--load", f"{name}-ours"], stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True)
    assert out.returncode == 66 and "and another one is there now" in out.stdout, out.stdout
    shutil.rmtree(name)
    os.rename(f"{name}-away", name)


def any_grid(case, ours):
    name = case[0]
    assert train(case, f"{name}-p", "--ranks", "2", "--pp", "2") == ours
    leaves = ["--virtual-data-parallel", "2", "--ranks"]
    one = train(case, f"{name}-leaves", *leaves, "1")
    assert train(case, f"{name}-d", *leaves, "4", "--pp", "2", "--use-distributed-optimizer", "--recompute-granularity", "full",
                 "--recompute-method", "uniform") == one
    for more in [["--tp", "2"], ["--tp", "2", "--sequence-parallel"]]:
        cut = train(case, f"{name}-t", "--ranks", "2", *more)
        assert farthest(cut, ours) < 1e-5, f"{name} {more}: {cut}, not {ours}"


def main():
    samples = make_data()
    for case in CASES:
        ours = compare(case, samples)
        goes_on(case, ours)
        refuses_another_base(case)
        any_grid(case, ours)


main()
