"""llama.cpp on files that trireme exports: the same tokens as the tokenizer's own library, and the same greedy text.

For every way of cutting text in gguf_patterns.def a BPE is trained by the tokenizers library, and SentencePiece models by
theirs. A Llama with random weights is trained on each and exported, and a model with latent attention on one.
"""

import json
import os
import shutil
import subprocess
import sys

import sentencepiece
from llama_cpp import Llama
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

TRIREME = sys.argv[1]
WORDS = ["The galley was moved by three banks of oars.", "It's what they'LL say, isn't it? We've 12345 of 678 oars",
         "für 3 Ölfässer, naïve façade, Ελληνικά и русский", "两个人在船上 1234567890 年", "def f(x):\n    return x+1  # ok\r\n\r\n",
         "tabs\t\tand   blanks   \n\n\n  end  ", "emoji 😀👍🏽 and math ∑≤∞ 3.14e-10", "CamelCaseWords and snake_case_words HTTPServer",
         "a<|end|>b<|im_start|>user\nhi<|im_end|>\n", " leading", "x" * 40, "½ ² ³ ٣ x̂ हिन्दी ไทย"]
DIGITS, LETTERS = r"\p{N}", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def by_case(ending, digits):
    start = r"[^\r\n\p{L}\p{N}]?"
    return (f"{start}{UPPER}*{LOWER}+{ending}|{start}{UPPER}+{LOWER}*{ending}|{digits}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(regex):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
WAYS = [("gpt-2", GPT2, False),
        ("smollm", pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]), False),
        ("llama-bpe", split(LETTERS + DIGITS + "{1,3}" + REST), True),
        ("dbrx", split(LETTERS + DIGITS + "{1,3}" + REST), False),
        ("qwen2", split(LETTERS + DIGITS + REST), False),
        ("tekken", split(by_case("", DIGITS)), True),
        ("gpt-4o", split(by_case("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", DIGITS + "{1,3}")), False)]
failures = 0


def expect(condition, *what):
    global failures
    if not condition:
        failures += 1
        print("FAILED", *what)


def run(*words, text=None):
    done = subprocess.run([TRIREME, *words], capture_output=True, input=text)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit {done.returncode}: {done.stderr.decode()[-600:]}")
    return done.stdout


# llama.cpp's deepseek2: latents of queries, and of keys and values; scores scaled by YaRN; values narrower than keys.
LATENTS = ("--multi-latent-attention --qk-layernorm --q-lora-rank 24 --kv-lora-rank 32 --qk-head-dim 16 --qk-pos-emb-head-dim 8 "
           "--v-head-dim 16 --norm-epsilon 1e-6 --rope-scaling-type yarn --rope-scaling-factor 4 --mscale-all-dim 1 "
           "--rope-original-max-position-embeddings 16").split()


def export(name, end, *options):
    """Trains a model for a step with the tokenizer in the folder NAME, and exports it as NAME.gguf."""
    config = {"eos_token": end, "chat_template": TEMPLATE}
    with open(f"{name}/tokenizer_config.json", "w") as file:
        json.dump(config, file)
    with open("lines.jsonl", "w") as file:
        for word in WORDS * 60:
            file.write(json.dumps({"text": word}) + "\n")
    run("preprocess", "--input", "lines.jsonl", "--output-prefix", name, "--tokenizer-model", name, "--append-eod")
    run("train", "--data-path", name, "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length",
        "64", "--swiglu", "--normalization", "RMSNorm", "--disable-bias-linear", "--position-embedding-type", "rope",
        "--untie-embeddings-and-output-weights", "--micro-batch-size", "4", "--global-batch-size", "4", "--lr", "3e-3",
        "--train-iters", "200", "--split", "100,0,0", "--eval-iters", "0", "--save", f"{name}/run", *options)
    run("export", "--load", f"{name}/run", "--to", "gguf", "--output", f"{name}.gguf")


TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def compare(name, encode, words):
    """The tokens of llama.cpp are those of `encode`."""
    model = Llama(f"{name}.gguf", vocab_only=True, verbose=False)
    for word in words:
        theirs, ours = model.tokenize(word.encode(), add_bos=False, special=True), encode(word)
        expect(theirs == ours, name, repr(word), theirs, "not", ours)
    expect(model.metadata["tokenizer.chat_template"] == TEMPLATE, name, "the chat template")


def bpe(name, pre_tokenizer, whole):
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(WORDS * 3, trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    os.makedirs(name)
    tokenizer.save(f"{name}/tokenizer.json")
    export(name, "<|im_end|>")
    # llama.cpp's own pattern of these two cuts before combining marks.
    words = [word for word in WORDS if name not in ("tekken", "gpt-4o") or "\u0302" not in word]
    compare(name, lambda word: tokenizer.encode(word, add_special_tokens=False).ids, words)
    expect(Llama(f"{name}.gguf", vocab_only=True, verbose=False).metadata["tokenizer.ggml.pre"] == name, name, "its name")


def pieces(name, kind, prefix):
    """llama.cpp puts a blank behind a token that is taken as a whole, too, and has no bytes beside a unigram."""
    os.makedirs(name)
    with open("corpus.txt", "w") as file:
        file.write("\n".join(word.replace("\n", " ") for word in WORDS * 3))
    sentencepiece.SentencePieceTrainer.train(
        input="corpus.txt", model_prefix=f"{name}/tokenizer", vocab_size=480, model_type=kind, byte_fallback=kind == "bpe",
        user_defined_symbols=["<|im_start|>", "<|im_end|>", "\n\n"], normalization_rule_name="identity",
        remove_extra_whitespaces=False, add_dummy_prefix=prefix, hard_vocab_limit=False, minloglevel=2)
    model = sentencepiece.SentencePieceProcessor(model_file=f"{name}/tokenizer.model")
    export(name, "</s>")
    words = [word for word in WORDS if not prefix or not any(mark in word for mark in ("<|im", "\n"))]
    compare(name, lambda word: model.encode(word), words)


def answers(name):
    """Greedy text is trireme's."""
    model = Llama(f"{name}.gguf", n_ctx=64, verbose=False)
    for prompt in ("The galley", "It's what"):
        theirs = model(prompt, max_tokens=24, temperature=0)["choices"][0]["text"]
        ours = run("generate", "--load", f"{name}/run", "--prompt", prompt, "--temperature", "0", "--max-new-tokens",
                   "24").decode().removesuffix("\n")
        expect(theirs.strip() == ours.strip() and ours.strip(), name, prompt, repr(theirs), "not", repr(ours))


def converses(name):
    """A model that was trained on conversations answers them from its own template, and ends its turns."""
    talk = [("who rows?", "the banks of oars"), ("how many are there?", "three, of course."), ("and 678?", "12345 of 678")]
    with open("chats.jsonl", "w") as file:
        for first in talk:
            for second in talk:
                messages = [{"role": role, "content": text} for pair in (first, second)
                            for role, text in zip(("user", "assistant"), pair)]
                file.write(json.dumps({"messages": messages}) + "\n")
    run("prepare-chat", "--input", "chats.jsonl", "--tokenizer-model", name, "--seq-length", "255", "--output-prefix", "chats",
        "--no-pack")
    run("train", "--load", f"{name}/run", "--finetune", "--sft", "--data-path", "chats", "--seq-length", "255",
        "--micro-batch-size", "9", "--global-batch-size", "9", "--lr", "3e-3", "--train-iters", "150", "--split", "100,0,0",
        "--eval-iters", "0", "--save", "tuned")
    run("export", "--load", "tuned", "--to", "gguf", "--output", "tuned.gguf")
    model = Llama("tuned.gguf", n_ctx=255, verbose=False)
    ours = run("generate", "--load", "tuned", "--chat", "--temperature", "0",
               text="\n".join(question for question, _ in talk[:2]).encode()).decode().splitlines()
    messages = []
    for (question, wanted), answer in zip(talk[:2], ours):
        messages.append({"role": "user", "content": question})
        choice = model.create_chat_completion(messages, temperature=0, max_tokens=100)["choices"][0]
        messages.append(choice["message"])
        expect(choice["message"]["content"] == answer == wanted and choice["finish_reason"] == "stop", name, question,
               choice, "not", answer)


for way in WAYS:
    bpe(*way)
pieces("spm-bpe", "bpe", True)
pieces("spm-bpe-bare", "bpe", False)
pieces("spm-unigram", "unigram", True)
answers("qwen2")
os.makedirs("latents")
shutil.copy("gpt-2/tokenizer.json", "latents")
export("latents", "<|im_end|>", *LATENTS)
answers("latents")
answers("spm-bpe-bare")
converses("llama-bpe")
if failures:
    sys.exit(f"{failures} failures")
