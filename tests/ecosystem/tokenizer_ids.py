#!/usr/bin/env python3
"""The same ids as the libraries that others use: Hugging Face's tokenizers, tiktoken, sentencepiece.

    tokenizer_ids.py TRIREME [MEGABYTES]

Every tokenizer is made here, from a text made here: code, prose in several scripts, emoji, odd blanks, control
characters, all characters of Unicode. `trireme tokenizer encode` must give the ids that the library gives, and
`decode` the text. Silent when all agree.
"""
# This file's own name must not hide the library of the same name.
import sys

sys.path = [p for p in sys.path if not p.rstrip("/").endswith("tests/ecosystem")]

import base64
import json
import os
import random
import subprocess
import tempfile
import unicodedata

import sentencepiece
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
CL100K = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"""
    r"""\s*[\r\n]+|\s+(?!\S)|\s+"""
)
QWEN = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join(
    [
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>", "<|end|>x", "<s>"]
WORDS = (
    "the of and that tokenizer isn't we'll I'VE don't naïve Übung straße Привет мир 日本語 テスト 한국어 हिन्दी ภาษาไทย "
    "العربية עברית 😀 👩‍👩‍👧 🇩🇪 e\u0301 ﬁ Ⅷ ½ ٣٤٥ 12345 3.14159 1e-9 x+=1; return(a[i]); != -> // /* */ <div> #include "
    "ſ 'ſ 'S can’t it's \u180e \u200b \ufeff \u00a0 \u2003 \u3000 \u0085 \u2028 \x00 \x01 \x7f \x1b[0m"
).split(" ")
BLANKS = [" ", " ", " ", " ", " ", "  ", "\n", "\n\n", "\t", "\r\n", " \n ", "    ", "\u00a0", "\x0b", "\x0c", "   \n", ""]


def characters():
    """All that were assigned when Python and the regular expressions of tokenizers, often older, were made."""
    assigned = "".join(c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co"))
    known = pre_tokenizers.Split(Regex(r"\p{Cn}"), "removed").pre_tokenize_str(assigned)
    return list("".join(part for part, _ in known))


def make_text(size, seed):
    rng, every, parts, length = random.Random(seed), characters(), [], 0
    while length < size:
        kind = rng.random()
        if kind < 0.9:
            part = rng.choice(WORDS) + rng.choice(BLANKS)
        elif kind < 0.97:
            part = "".join(rng.choice("abcdefghijklmnopqrstuvwxyzABCDEF0123456789'_-. ") for _ in range(rng.randint(1, 12)))
        elif kind < 0.985:
            part = rng.choice(SPECIALS) + rng.choice(BLANKS)
        else:
            part = "".join(rng.choice(every) for _ in range(rng.randint(1, 5)))
        parts.append(part)
        length += len(part.encode())
    return "".join(parts)


def hugging_face(text, pre_tokenizer, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=SPECIALS[:1],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(*before, prefix=False, regex=False):
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
    return pre_tokenizers.Sequence([*before, last]) if before else last


class Trial:
    def __init__(self, program, folder, text, name="text"):
        self.program, self.folder, self.text, self.failures = program, folder, text, 0
        self.file = os.path.join(folder, name + ".txt")
        with open(self.file, "w", encoding="utf-8", newline="") as f:
            f.write(text)

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, *words, stdin=b""):
        done = subprocess.run([self.program, "tokenizer", *words], input=stdin, capture_output=True)
        if done.returncode:
            sys.exit(f"trireme tokenizer {' '.join(words)}: exit {done.returncode}: {done.stderr.decode()}")
        return done.stdout

    def compare(self, name, model, want, comes_back=True):
        got = list(map(int, self.run("encode", "--tokenizer-model", model, self.file).split()))
        if got != want:
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            print(f"{name}: {len(got)} ids, not {len(want)}; the first difference at {at}: "
                  f"{got[at - 3:at + 5]}, not {want[at - 3:at + 5]}")
            self.failures += 1
        back = self.run("decode", "--tokenizer-model", model, stdin=" ".join(map(str, got)).encode())
        if comes_back and back != self.text.encode():
            print(f"{name}: {len(got)} ids come back as another text")
            self.failures += 1
        return back

    def compare_hugging_face(self, name, tokenizer, comes_back=True):
        path = self.path(name + ".json")
        tokenizer.save(path)
        self.compare(name, path, tokenizer.encode(self.text, add_special_tokens=False).ids, comes_back)


def try_ours(trial):
    """What is trained here, read there."""
    folder = trial.path("ours")
    trial.run("train", "--input", trial.file, "--vocab-size", "4000", "--output", folder)
    theirs = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    trial.compare("ours", folder, theirs.encode(trial.text, add_special_tokens=False).ids)


def try_hugging_face(trial):
    sample = trial.text[: 1 << 18]
    cases = {
        "gpt2": byte_level(regex=True),
        "prefix": byte_level(regex=True, prefix=True),
        "cl100k": byte_level(split(CL100K)),
        "qwen": byte_level(split(QWEN)),
        "o200k": byte_level(split(O200K)),
        "digits": byte_level(pre_tokenizers.Digits(individual_digits=True), regex=True),
        "digit-runs": byte_level(pre_tokenizers.Digits(individual_digits=False), regex=True),
        "three": byte_level(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(GPT2)),
        "string": byte_level(pre_tokenizers.Split("'", "isolated"), regex=True),
        "whole": byte_level(split("\n")),
    }
    for name, pre_tokenizer in cases.items():
        trial.compare_hugging_face(name, hugging_face(sample, pre_tokenizer), name != "prefix")
    tokenizer = hugging_face(sample, byte_level(split(CL100K)))
    tokenizer.add_special_tokens(SPECIALS)
    trial.compare_hugging_face("special", tokenizer)
    tokenizer.add_tokens([AddedToken("naïve", normalized=True), AddedToken("  ", normalized=True),
                          AddedToken("the", normalized=True), AddedToken("<s>x", normalized=False)])
    trial.compare_hugging_face("added", tokenizer)
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", lstrip=True), AddedToken("<|end|>", rstrip=True, lstrip=True)])
    described = json.loads(tokenizer.to_str())
    described["model"]["ignore_merges"] = True
    described["model"]["merges"] = described["model"]["merges"][::2]
    stripped = Tokenizer.from_str(json.dumps(described))
    trial.compare_hugging_face("stripped", stripped, False)


def try_nfc(trial):
    """Text that is in this form already."""
    tokenizer = hugging_face(trial.text[: 1 << 18], byte_level(split(QWEN)))
    tokenizer.normalizer = normalizers.NFC()
    composed = Trial(trial.program, trial.folder, "naïve Übung Привет 日本語 한국어 हिन्दी\n" * 1000, "composed")
    composed.compare_hugging_face("nfc", tokenizer)
    trial.failures += composed.failures


def byte_of(c):
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return ord(c) if ord(c) < 256 else others[ord(c) - 256]


def try_tiktoken(trial):
    vocabulary = hugging_face(trial.text[: 1 << 18], byte_level(split(CL100K))).get_vocab()
    del vocabulary[SPECIALS[0]]
    tokens = [bytes(map(byte_of, token)) for token in sorted(vocabulary, key=vocabulary.get)]
    path = trial.path("ranks.tiktoken")
    with open(path, "wb") as f:
        for rank, token in enumerate(tokens):
            f.write(base64.b64encode(token) + b" %d\n" % rank)
    ranks = {token: rank for rank, token in enumerate(tokens)}
    encoding = tiktoken.Encoding("here", pat_str=CL100K, mergeable_ranks=ranks, special_tokens={})
    trial.compare("tiktoken", path, encoding.encode_ordinary(trial.text))


def try_sentencepiece(trial):
    """Its own library on both sides, but of two versions: no control characters, no new ones."""
    words = [w for w in WORDS if w.isprintable() and w.isalnum()]
    rng = random.Random(3)
    text = "\n".join(" ".join(rng.choice(words) for _ in range(20)) for _ in range(5000)) + "\n"
    plain = Trial(trial.program, trial.folder, text, "words")
    for kind in "bpe", "unigram":
        prefix = trial.path(kind)
        sentencepiece.SentencePieceTrainer.train(
            input=plain.file, model_prefix=prefix, vocab_size=400, model_type=kind, byte_fallback=True,
            hard_vocab_limit=False, minloglevel=2)
        processor = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
        want = processor.encode(text)
        back = plain.compare(kind, prefix + ".model", want, comes_back=False)
        if back.decode() != processor.decode(want):
            print(f"{kind}: decoded differently")
            trial.failures += 1
    trial.failures += plain.failures


def model_folder(trial, name, tokens):
    """A Llama of one layer and of zeros, for a tokenizer of so many tokens."""
    hidden, layer = 8, "model.layers.0."
    shapes = {"model.embed_tokens.weight": [tokens, hidden], "model.norm.weight": [hidden]}
    for norm in "input_layernorm", "post_attention_layernorm":
        shapes[f"{layer}{norm}.weight"] = [hidden]
    for matrix in "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", \
            "mlp.up_proj", "mlp.down_proj":
        shapes[f"{layer}{matrix}.weight"] = [hidden, hidden]
    header, end = {}, 0
    for tensor, shape in shapes.items():
        begin, end = end, end + 4 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(header).encode()
    folder = trial.path(name)
    os.mkdir(folder)
    with open(f"{folder}/model.safetensors", "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header + bytes(end))
    with open(f"{folder}/config.json", "w") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "vocab_size": tokens,
                   "intermediate_size": hidden, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_act": "silu",
                   "max_position_embeddings": 16, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}, f)
    return folder


def through_gguf(trial, name, folder):
    """The model with the tokenizer in its folder as a GGUF file, and what is imported of that."""
    file, save = trial.path(name + ".gguf"), trial.path(name + ".import")
    for words in ["export", "--load", folder, "--to", "gguf", "--output", file], ["import", file, "--save", save]:
        done = subprocess.run([trial.program, *words], capture_output=True)
        if done.returncode:
            sys.exit(f"trireme {' '.join(words)}: exit {done.returncode}: {done.stderr.decode()}")
    return save + "/step-00000000"


def try_gguf(trial):
    """Tokenizers of every way that GGUF names, with added tokens, and SentencePiece's, out of the file again."""
    sample, digit = trial.text[: 1 << 18], pre_tokenizers.Digits(individual_digits=True)
    cases = {"gpt-2": (byte_level(regex=True), False), "smollm": (byte_level(digit, regex=True), False),
             "llama-bpe": (byte_level(split(CL100K)), True), "dbrx": (byte_level(split(CL100K)), False),
             "qwen2": (byte_level(split(QWEN)), False), "gpt-4o": (byte_level(split(O200K)), False)}
    for name, (pre_tokenizer, whole) in cases.items():
        tokenizer = hugging_face(sample, pre_tokenizer, ignore_merges=whole)
        tokenizer.add_special_tokens(SPECIALS)
        tokenizer.add_tokens([AddedToken("<s>x", normalized=False)])
        folder = model_folder(trial, f"gguf-{name}", tokenizer.get_vocab_size() + 5)
        tokenizer.save(f"{folder}/tokenizer.json")
        trial.compare(f"GGUF's {name}", through_gguf(trial, name, folder),
                      tokenizer.encode(trial.text, add_special_tokens=False).ids)
    text = "\n".join("  ".join(w for w in WORDS if w.isprintable() and w.isalnum()) for _ in range(200)) + " \n"
    plain = Trial(trial.program, trial.folder, text, "gguf-words")
    for kind, options in ("bpe", {}), ("bpe", {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}), \
            ("bpe", {"add_dummy_prefix": False}), ("unigram", {}), ("unigram", {"remove_extra_whitespaces": False}):
        name = "-".join([kind, *map(str, options.values())])
        folder = model_folder(trial, f"gguf-{name}", 410)
        sentencepiece.SentencePieceTrainer.train(
            input=plain.file, model_prefix=f"{folder}/tokenizer", vocab_size=400, model_type=kind, byte_fallback=True,
            hard_vocab_limit=False, minloglevel=2, **options)
        want = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/tokenizer.model").encode(text)
        plain.compare(f"GGUF's {name}", through_gguf(trial, name, folder), want, comes_back=False)
    trial.failures += plain.failures


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    size = float(sys.argv[2]) if len(sys.argv) == 3 else 5.0
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(os.path.abspath(sys.argv[1]), folder, make_text(size * 1e6, 1))
        for attempt in try_ours, try_hugging_face, try_nfc, try_tiktoken, try_sentencepiece, try_gguf:
            attempt(trial)
        sys.exit(1 if trial.failures else 0)


main()
