"""Training on preferences: 20 losses, rewards and accuracies of trireme are those of a DPO loop in PyTorch, within 1e-5.

A Llama with random weights, written by transformers, is trained by `trireme train --dpo --finetune` on what `trireme prepare-chat
--preferences` made, and by PyTorch on the same tokens and masks, in the same order: each answer with its prompt by itself, the
reference model a copy of the model. The masks are those of apply_chat_template.

Usage: dpo_losses.py TRIREME
"""
import copy
import json
import os
import random
import subprocess
import sys

import numpy
import torch
import torch.nn.functional as F
from indexed import read_set
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TRIREME = os.path.abspath(sys.argv[1])
STEPS, BATCH, LENGTH, SEED, RATE = 20, 8, 160, 1234, 1e-3
WORDS = ["red", "blue", "green", "one", "two", "three", "yes", "no", "the", "sky", "is", "a", "number", "é", "\n", "?"]
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def talk(dice, most):
    return " ".join(dice.choice(WORDS) for _ in range(dice.randint(1, most)))


def pairs():
    dice = random.Random(3)
    rows = []
    while len(rows) < 70:
        prompt = [{"role": "user", "content": talk(dice, 6)}]
        if len(rows) % 3 == 0:
            prompt += [{"role": "assistant", "content": talk(dice, 4)}, {"role": "user", "content": talk(dice, 4)}]
        chosen, rejected = ([{"role": "assistant", "content": talk(dice, 8)}] for _ in range(2))
        if chosen != rejected:
            rows.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    return rows


def make_tokenizer(folder, rows):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                                  show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([m["content"] for row in rows for m in row["prompt"] + row["chosen"]], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return fast


def llama(vocabulary):
    torch.manual_seed(SEED)
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                        num_attention_heads=4, max_position_embeddings=160, initializer_range=0.1))


def log_probability(model, ids, mask):
    logs = torch.log_softmax(model(torch.tensor([ids[:-1]])).logits[0], -1)
    each = logs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return (each * torch.tensor(mask[1:])).sum()


def loss_of(name, beta, smoothing, gamma, ours, theirs, counts):
    """The losses as TRL has them (DPOTrainer; CPOTrainer for simpo; ORPOTrainer), with the label smoothing of its earlier versions."""
    if name in ("ipo", "simpo", "orpo"):
        ours, theirs = [[x / n for x, n in zip(two, counts)] for two in (ours, theirs)]
    if name in ("simpo", "orpo"):
        theirs = [0, 0]
    rewards = [beta * (a - b).item() for a, b in zip(ours, theirs)]
    h = ours[0] - theirs[0] - (ours[1] - theirs[1])
    if name == "sigmoid":
        loss = -F.logsigmoid(beta * h) * (1 - smoothing) - F.logsigmoid(-beta * h) * smoothing
    elif name == "robust":
        loss = (-F.logsigmoid(beta * h) * (1 - smoothing) + F.logsigmoid(-beta * h) * smoothing) / (1 - 2 * smoothing)
    elif name == "hinge":
        loss = torch.relu(1 - beta * h)
    elif name == "ipo":
        loss = (h - 1 / (2 * beta)) ** 2
    elif name == "simpo":
        x = beta * (h - gamma / beta)
        loss = -F.logsigmoid(x) * (1 - smoothing) - F.logsigmoid(-x) * smoothing
    else:
        odds = h - (torch.log1p(-torch.exp(ours[0])) - torch.log1p(-torch.exp(ours[1])))
        loss = -ours[0] - beta * F.logsigmoid(odds)
    return loss, rewards


def their_rows(model, samples, name, beta, smoothing, gamma):
    model, reference = copy.deepcopy(model), copy.deepcopy(model)
    state = numpy.random.RandomState(SEED)
    order = []
    while len(order) < STEPS * BATCH:
        epoch = numpy.arange(len(samples))
        state.shuffle(epoch)
        order += list(epoch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    rows = []
    for step in range(STEPS):
        losses, rewards = [], []
        for i in order[step * BATCH:(step + 1) * BATCH]:
            tokens, masks = samples[i]
            with torch.no_grad():
                theirs = [log_probability(reference, *one) for one in zip(tokens, masks)]
            ours = [log_probability(model, *one) for one in zip(tokens, masks)]
            loss, both = loss_of(name, beta, smoothing, gamma, ours, theirs, [sum(m[1:]) for m in masks])
            losses.append(loss)
            rewards.append(both)
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        chosen, rejected = numpy.mean(rewards, 0)
        rows.append((loss.item(), chosen, rejected, numpy.mean([a > b for a, b in rewards])))
    return rows


def run(name, folder, data, *options):
    if os.path.exists(f"{name}.jsonl"):
        os.remove(f"{name}.jsonl")
    out = subprocess.run(
        [TRIREME, "train", "--load", folder, "--finetune", "--dpo", "--data-path", data, "--split", "100,0,0",
         "--seq-length", str(LENGTH), "--micro-batch-size", "2", "--global-batch-size", str(BATCH), "--train-iters", str(STEPS),
         "--lr", str(RATE), "--lr-decay-style", "constant", "--weight-decay", "0", "--adam-beta2", "0.95", "--clip-grad", "1",
         "--eval-iters", "0", "--seed", str(SEED), "--metrics", f"{name}.jsonl", *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert out.returncode == 0, out.stdout
    with open(f"{name}.jsonl") as file:
        rows = [json.loads(line) for line in file]
    return [(r["lm_loss"], r["rewards_chosen"], r["rewards_rejected"], r["rewards_accuracy"]) for r in rows if "lm_loss" in r]


def compare(ours, theirs, what):
    assert len(ours) == len(theirs) == STEPS, (len(ours), len(theirs))
    worst = [max(abs(a[i] - b[i]) for a, b in zip(ours, theirs)) for i in range(4)]
    scale = max(1, *(abs(b[0]) for b in theirs))
    assert worst[0] < 1e-5 * scale and max(worst[1:3]) < 1e-4 and worst[3] < 1e-9, f"{what}: {worst}\n{ours}\n{theirs}"
    print(f"  {STEPS} losses of {what} are PyTorch's within {worst[0]:.1e}, rewards within {max(worst[1:3]):.1e}; "
          f"from {ours[0][0]:.4f} to {ours[-1][0]:.4f}, accuracy from {ours[0][3]:.2f} to {ours[-1][3]:.2f}")


def main():
    rows = pairs()
    fast = make_tokenizer("dpo-tokenizer", rows)
    model = llama(len(fast))
    model.save_pretrained("dpo-llama")
    with open("dpo.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    subprocess.run([TRIREME, "prepare-chat", "--preferences", "--input", "dpo.jsonl", "--tokenizer-model", "dpo-tokenizer",
                    "--output-prefix", "dpo", "--seq-length", str(LENGTH), "--plain"], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    samples = list(zip(read_set("dpo"), read_set("dpo_preference_mask")))
    for row, (tokens, masks) in zip(rows, samples):
        for ids, mask, answer in zip(tokens, masks, (row["chosen"], row["rejected"])):
            out = fast.apply_chat_template(row["prompt"] + answer, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            before = len(fast.apply_chat_template(row["prompt"], tokenize=True, return_dict=True, add_generation_prompt=True)["input_ids"])
            assert ids == out["input_ids"] and mask == [int(i >= before and m) for i, m in enumerate(out["assistant_masks"])], row
    for name, beta, smoothing, gamma in (("sigmoid", 0.1, 0, 0), ("sigmoid", 0.3, 0.1, 0), ("robust", 0.1, 0.1, 0),
                                         ("hinge", 0.1, 0, 0), ("ipo", 0.1, 0, 0), ("simpo", 2, 0, 0.5), ("orpo", 0.1, 0, 0)):
        options = ["--dpo-loss", name, "--dpo-beta", str(beta)]
        options += ["--dpo-label-smoothing", str(smoothing)] if smoothing else []
        options += ["--simpo-gamma", str(gamma)] if gamma else []
        theirs = their_rows(model, samples, name, beta, smoothing, gamma)
        ours = run("one", "dpo-llama", "dpo", *options)
        compare(ours, theirs, f"{name}, beta {beta}, label smoothing {smoothing}")
        assert run("pipeline", "dpo-llama", "dpo", *options, "--ranks", "2", "--pp", "2") == ours
        cut = run("cut", "dpo-llama", "dpo", *options, "--ranks", "4", "--tp", "2", "--pp", "2", "--sequence-parallel")
        compare(cut, theirs, f"{name} on t2 p2")


main()
