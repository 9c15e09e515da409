"""Training on conversations: 50 losses of trireme are those of a loop in PyTorch, within 1e-4.

A Llama with random weights, written by transformers, is trained by `trireme train --sft --finetune` on what `trireme
prepare-chat` made, and by PyTorch on the tokens and masks of apply_chat_template, in the same order.

Usage: sft_losses.py TRIREME
"""
import json
import os
import random
import subprocess
import sys

import numpy
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TRIREME = os.path.abspath(sys.argv[1])
STEPS, BATCH, LENGTH, SEED, RATE = 50, 8, 95, 1234, 1e-3
WORDS = ["red", "blue", "green", "one", "two", "three", "yes", "no", "the", "sky", "is", "a", "number", "é", "\n", "?"]


def talk(dice, least, most):
    return " ".join(dice.choice(WORDS) for _ in range(dice.randint(least, most)))


def conversations():
    dice = random.Random(3)
    rows = []
    for _ in range(70):
        turns = [[{"role": "user", "content": talk(dice, 1, 6)}, {"role": "assistant", "content": talk(dice, 1, 8)}]
                 for _ in range(dice.randint(1, 2))]
        rows.append({"messages": sum(turns, [])})
    return rows


def make_model(folder, rows):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                                  show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([m["content"] for row in rows for m in row["messages"]], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = subprocess.run([TRIREME, "prepare-chat", "--chat-template", "chatml", "--print-template"],
                                        check=True, stdout=subprocess.PIPE, text=True).stdout
    fast.save_pretrained(folder)
    torch.manual_seed(SEED)
    config = LlamaConfig(vocab_size=len(fast), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, max_position_embeddings=128, initializer_range=0.1)
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return fast, model


def their_losses(fast, model, rows):
    """The order: a shuffle of all samples for each epoch, of one random state."""
    encoded = [fast.apply_chat_template(row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
               for row in rows]
    state = numpy.random.RandomState(SEED)
    order = []
    while len(order) < STEPS * BATCH:
        epoch = numpy.arange(len(rows))
        state.shuffle(epoch)
        order += list(epoch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        batch = [encoded[i] for i in order[step * BATCH:(step + 1) * BATCH]]
        tokens = torch.zeros(BATCH, LENGTH + 1, dtype=torch.long)
        labels = torch.full((BATCH, LENGTH + 1), -100)
        for row, sample in enumerate(batch):
            ids, mask = sample["input_ids"], sample["assistant_masks"]
            tokens[row, :len(ids)] = torch.tensor(ids)
            labels[row, :len(ids)] = torch.tensor([i if m else -100 for i, m in zip(ids, mask)])
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def our_losses(name, *options):
    out = subprocess.run(
        [TRIREME, "train", "--load", "sft-model", "--finetune", "--sft", "--data-path", "sft", "--split", "100,0,0",
         "--seq-length", str(LENGTH), "--micro-batch-size", "2", "--global-batch-size", str(BATCH), "--train-iters", str(STEPS),
         "--lr", str(RATE), "--lr-decay-style", "constant", "--weight-decay", "0", "--adam-beta2", "0.95", "--clip-grad", "1",
         "--eval-iters", "0", "--seed", str(SEED), "--metrics", f"{name}.jsonl", *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert out.returncode == 0, out.stdout
    with open(f"{name}.jsonl") as file:
        rows = [json.loads(line) for line in file]
    return [row["lm_loss"] for row in rows if "lm_loss" in row]


def main():
    rows = conversations()
    fast, model = make_model("sft-model", rows)
    with open("sft.jsonl", "w") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    subprocess.run([TRIREME, "prepare-chat", "--input", "sft.jsonl", "--tokenizer-model", "sft-model", "--output-prefix", "sft",
                    "--seq-length", str(LENGTH), "--no-pack", "--plain"], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    theirs = their_losses(fast, model, rows)
    ours = our_losses("one")
    assert len(ours) == len(theirs) == STEPS, (len(ours), len(theirs))
    worst = max(abs(a - b) for a, b in zip(ours, theirs))
    assert worst < 1e-4, f"{worst}\n{ours}\n{theirs}"
    assert theirs[-1] < theirs[0] / 2, theirs
    # Pipelines change no bit of it, nor do data ranks that are leaves of one tree; cut tensors change the rounding.
    assert our_losses("pipeline", "--ranks", "2", "--pp", "2") == ours
    leaves = ["--virtual-data-parallel", "2", "--ranks"]
    assert our_losses("leaves", *leaves, "1") == our_losses("ranks", *leaves, "4", "--pp", "2")
    cut = our_losses("cut", "--ranks", "2", "--tp", "2")
    assert max(abs(a - b) for a, b in zip(ours, cut)) < 1e-4
    print(f"  {STEPS} losses on conversations are PyTorch's within {worst:.1e}, from {ours[0]:.3f} to {ours[-1]:.3f}")


main()
