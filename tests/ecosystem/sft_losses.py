"""Training on conversations: 50 losses of trireme are those of a loop in PyTorch, within 1e-4.

A Llama and a GPT-2 with random weights, written by transformers, are trained by `trireme train --sft --finetune` on what `trireme
prepare-chat` made, and by PyTorch on the same tokens and masks, those of apply_chat_template, in the same order: each conversation in
a sample of its own, and packed, where PyTorch computes each by itself.

Usage: sft_losses.py TRIREME
"""
import copy
import json
import os
import random
import subprocess
import sys

import numpy
import torch
from indexed import read_set
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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


def make_tokenizer(folder, rows):
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
    return fast


def llama(vocabulary):
    torch.manual_seed(SEED)
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                        num_attention_heads=4, max_position_embeddings=128, initializer_range=0.1))


def gpt2(vocabulary):
    """Its positions are a table, so that they show whether they begin anew."""
    torch.manual_seed(SEED)
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_embd=64, n_layer=2, n_head=4, n_positions=128, resid_pdrop=0,
                                      embd_pdrop=0, attn_pdrop=0, initializer_range=0.1))


def loss_of(model, samples):
    """The mean over all trained tokens of a batch; each conversation of a sample is computed by itself."""
    losses, count = [], 0
    for tokens, masks in samples:
        for ids, mask in zip(tokens, masks):
            logits = model(torch.tensor([ids[:-1]])).logits[0]
            trained = torch.tensor(mask[1:], dtype=torch.bool)
            losses.append(torch.nn.functional.cross_entropy(logits[trained], torch.tensor(ids[1:])[trained], reduction="sum"))
            count += int(trained.sum())
    return sum(losses) / count


def their_losses(model, samples):
    """The order: a shuffle of all samples for each epoch, of one random state."""
    model = copy.deepcopy(model)
    state = numpy.random.RandomState(SEED)
    order = []
    while len(order) < STEPS * BATCH:
        epoch = numpy.arange(len(samples))
        state.shuffle(epoch)
        order += list(epoch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        loss = loss_of(model, [samples[i] for i in order[step * BATCH:(step + 1) * BATCH]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def our_losses(name, folder, data, *options):
    out = subprocess.run(
        [TRIREME, "train", "--load", folder, "--finetune", "--sft", "--data-path", data, "--split", "100,0,0",
         "--seq-length", str(LENGTH), "--micro-batch-size", "2", "--global-batch-size", str(BATCH), "--train-iters", str(STEPS),
         "--lr", str(RATE), "--lr-decay-style", "constant", "--weight-decay", "0", "--adam-beta2", "0.95", "--clip-grad", "1",
         "--eval-iters", "0", "--seed", str(SEED), "--metrics", f"{name}.jsonl", *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert out.returncode == 0, out.stdout
    with open(f"{name}.jsonl") as file:
        rows = [json.loads(line) for line in file]
    return [row["lm_loss"] for row in rows if "lm_loss" in row]


def prepare(prefix, *options):
    subprocess.run([TRIREME, "prepare-chat", "--input", "sft.jsonl", "--tokenizer-model", "sft-tokenizer", "--output-prefix", prefix,
                    "--seq-length", str(LENGTH), "--plain", *options], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    return list(zip(read_set(prefix), read_set(prefix + "_loss_mask")))


def compare(ours, theirs, what):
    assert len(ours) == len(theirs) == STEPS, (len(ours), len(theirs))
    worst = max(abs(a - b) for a, b in zip(ours, theirs))
    assert worst < 1e-4, f"{what}: {worst}\n{ours}\n{theirs}"
    assert theirs[-1] < theirs[0] / 2, theirs
    print(f"  {STEPS} losses on {what} are PyTorch's within {worst:.1e}, from {ours[0]:.3f} to {ours[-1]:.3f}")


def main():
    rows = conversations()
    fast = make_tokenizer("sft-tokenizer", rows)
    model = llama(len(fast))
    model.save_pretrained("llama")
    with open("sft.jsonl", "w") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    alone = prepare("alone", "--no-pack")
    for row, (tokens, masks) in zip(rows, alone):
        out = fast.apply_chat_template(row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        assert tokens == [out["input_ids"]] and masks == [out["assistant_masks"]], row
    compare(our_losses("one", "llama", "alone"), their_losses(model, alone), "conversations")
    packed = prepare("packed")
    assert len(packed) < len(alone) * 0.7, (len(packed), len(alone))
    ours = our_losses("packed", "llama", "packed")
    compare(ours, their_losses(model, packed), "packed conversations")
    # Pipelines change no bit of it, nor do data ranks that are leaves of one tree; cut tensors change the rounding.
    assert our_losses("pipeline", "llama", "packed", "--ranks", "2", "--pp", "2") == ours
    leaves = ["--virtual-data-parallel", "2", "--ranks"]
    assert our_losses("leaves", "llama", "packed", *leaves, "1") == our_losses("ranks", "llama", "packed", *leaves, "4", "--pp", "2")
    cut = our_losses("cut", "llama", "packed", "--ranks", "2", "--tp", "2")
    assert max(abs(a - b) for a, b in zip(ours, cut)) < 1e-4
    model = gpt2(len(fast))
    model.save_pretrained("gpt2")
    ours = our_losses("gpt2", "gpt2", "packed", "--attention-dropout", "0", "--hidden-dropout", "0")
    compare(ours, their_losses(model, packed), "packed conversations by a GPT-2")


main()
