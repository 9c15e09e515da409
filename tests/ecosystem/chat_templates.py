"""Chat templates and conversations: trireme against jinja2 and transformers.

The cases of one feature each render as jinja2 renders them; and of 200 conversations for each template, tokens and masks
are those of apply_chat_template with return_assistant_tokens_mask.

Usage: chat_templates.py TRIREME
"""
import glob
import json
import os
import random
import subprocess
import sys

from byte_fallback import byte_fallback_json
from indexed import read_set
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaTokenizerFast, PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = os.path.dirname(os.path.abspath(__file__))
TRIREME = os.path.abspath(sys.argv[1])
CONVERSATIONS = 200
BUILT_IN = ["chatml", "qwen3", "llama3", "mistral", "mistral3", "gemma", "phi3", "zephyr", "alpaca"]
MARKERS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
           "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|begin_of_text|>",
           "<tool_call>", "</tool_call>", "[INST]", "[/INST]"]
PARTS = ["Hello", "what is", " 2 + 2 ", "?", "\n", "\n\n", "  ", "naïve café", "数学は楽しい", "🙂", "👩‍👩‍👧", "print('hi')\n", "\t", "3.14",
         "It's", " fine.", "<b>&amp;</b>", "{% if %}", "{{ x }}", "\\n", "\"quoted\"", "'", "Ω≈ç√", "\u00a0", "\u3000", "<|im", "|>",
         "[/INST", "A long sentence that has several words in it.", "1234567890", "e\u0301", "###", "- item\n- item", "\r\n"]


# ---- one feature each ----------------------------------------------------------------------------------------------------

def theirs(source, variables):
    """The text, and the spans of {% generation %} in bytes of UTF-8; None where jinja2 fails."""
    try:
        template = _compile_jinja_template(source)
        blocks, spans = [], []
        with template.environment.activate_tracker(blocks, spans):
            for block in template.generate(**variables):
                blocks.append(block)
    except Exception:
        return None
    text = "".join(blocks)
    return text, [[len(text[:start].encode()), len(text[:end].encode())] for start, end in spans]


def golden_cases(path):
    """The golden cases are those of jinja2, but for rows that say that they are trireme's own."""
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    variables = rows[0]["vars"]
    for row in rows[1:]:
        if row.get("own"):
            continue
        expected = (row["text"], row.get("spans", [])) if "text" in row else None
        assert theirs(row["template"], variables) == expected, row["template"]
    print(f"  {len(rows) - 1} templates of one feature each")


# ---- conversations ------------------------------------------------------------------------------------------------------

def some_text(dice):
    return "".join(dice.choice(PARTS) for _ in range(dice.randint(1, 9)))


def schema(dice):
    kind = dice.choice(["string", "integer", "number", "boolean"])
    return {"type": "function", "function": {"name": dice.choice(["look_up", "add"]), "description": some_text(dice),
            "parameters": {"type": "object", "properties": {"x": {"type": kind, "description": "a \"value\" of é"},
                           "list": {"type": "array", "items": {"type": "number"}, "default": [1, 2.5, None]}},
                           "required": ["x"]}}}


def conversation(dice, with_tools):
    messages = []
    if dice.random() < 0.5:
        messages.append({"role": "system", "content": some_text(dice)})
    for _ in range(dice.randint(1, 4)):
        messages.append({"role": "user", "content": some_text(dice)})
        if with_tools and dice.random() < 0.3:
            call = {"type": "function", "function": {"name": "add", "arguments": {"x": dice.randint(-5, 5), "y": [0.5, 1e-7, True]}}}
            messages.append({"role": "assistant", "content": dice.choice(["", some_text(dice)]), "tool_calls": [call]})
            messages.append({"role": "tool", "content": some_text(dice)})
        messages.append({"role": "assistant", "content": some_text(dice)})
    row = {"messages": messages}
    if with_tools and dice.random() < 0.6:
        row["tools"] = [schema(dice) for _ in range(dice.randint(1, 2))]
    return row


def make_tokenizer(folder):
    """A byte-level BPE with the markers of all families, as published models have them."""
    dice = random.Random(1)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=MARKERS, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([some_text(dice) for _ in range(4000)], trainer)
    # As in Phi-3, blanks behind these belong to them.
    tokenizer.add_special_tokens([AddedToken("<|placeholder|>", rstrip=True, special=True)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.save_pretrained(folder)
    return fast


# ---- what was written ---------------------------------------------------------------------------------------------------

def prepare(rows, name, *options):
    with open(f"{name}.jsonl", "w") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=name < "m") + "\n")
    subprocess.run([TRIREME, "prepare-chat", "--input", f"{name}.jsonl", "--output-prefix", name, "--overwrite", "--seq-length", "16384",
                    "--plain", *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return read_set(name), read_set(name + "_loss_mask")


def expected(fast, row):
    out = fast.apply_chat_template(row["messages"], tools=row.get("tools"), tokenize=True, return_dict=True,
                                   return_assistant_tokens_mask=True)
    return out["input_ids"], out["assistant_masks"]


def check_template(fast, folder, name, source):
    dice = random.Random(name)
    rows = [conversation(dice, "tools" in source) for _ in range(CONVERSATIONS)]
    fast.chat_template = source
    fast.save_pretrained(folder)
    options = ["--chat-template", name] if name in BUILT_IN else []
    tokens, masks = prepare(rows, name, "--tokenizer-model", folder, "--no-pack", *options)
    assert len(tokens) == len(masks) == CONVERSATIONS
    trained = 0
    for row, ours, mask in zip(rows, tokens, masks):
        ids, their_mask = expected(fast, row)
        assert ours == [ids], f"{name}: {row}\n{fast.decode(ours[0])!r}\n{fast.decode(ids)!r}"
        assert mask == [their_mask], f"{name}: {row}\n{mask}\n{their_mask}"
        trained += sum(their_mask)
    packed, packed_masks = prepare(rows, name, "--tokenizer-model", folder, "--seq-length", "2047", *options)
    assert sorted(s for d in packed for s in d) == sorted(d[0] for d in tokens)
    assert all(sum(len(s) for s in d) <= 2048 for d in packed) and len(packed) <= 2 + sum(len(d[0]) for d in tokens) / 1900
    assert [[len(s) for s in d] for d in packed] == [[len(s) for s in d] for d in packed_masks]
    by_tokens = {tuple(t[0]): m[0] for t, m in zip(tokens, masks)}
    assert all(by_tokens[tuple(s)] == m for d, e in zip(packed, packed_masks) for s, m in zip(d, e))
    assert trained > 0
    print(f"  {name}: tokens and masks of {CONVERSATIONS} conversations; {trained} tokens are trained")


def without_generation(source):
    return source.replace("{% generation %}", "{% if true %}").replace("{% endgeneration %}", "{% endif %}")


def check_prefixes(fast, folder, name, source):
    """Where the template marks nothing, answers are found by a built-in one or by rendering less: the mask is the same."""
    dice = random.Random(name)
    rows = [conversation(dice, "tools" in source) for _ in range(CONVERSATIONS)]
    fast.chat_template = without_generation(source)
    fast.save_pretrained(folder)
    tokens, masks = prepare(rows, "plain", "--tokenizer-model", folder, "--no-pack")
    fast.chat_template = source
    for row, ours, mask in zip(rows, tokens, masks):
        ids, their_mask = expected(fast, row)
        assert ours == [ids] and mask == [their_mask], f"{name}: {row}\n{mask}\n{their_mask}"
    print(f"  {name} without marks: the same masks")


def check_sentencepiece(sources):
    """A folder as Llama 2 comes, whose tokenizer.model is read: <s> and </s> in the text are tokens."""
    import sentencepiece
    folder, dice = "llama2-chat", random.Random(2)
    os.mkdir(folder)
    lines = [some_text(dice).replace("\n", " ").replace("\r", " ") for _ in range(3000)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=f"{folder}/tokenizer", vocab_size=700, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
        hard_vocab_limit=False, minloglevel=2)
    byte_fallback_json(f"{folder}/tokenizer.model", f"{folder}/tokenizer.json")
    fast = LlamaTokenizerFast(f"{folder}/tokenizer.model", f"{folder}/tokenizer.json", legacy=True)
    for name in ["mistral", "zephyr", "alpaca"]:
        rows = [conversation(dice, False) for _ in range(CONVERSATIONS)]
        fast.chat_template = sources[name]
        fast.save_pretrained(folder)
        tokens, masks = prepare(rows, "llama2", "--tokenizer-model", folder, "--no-pack")
        for row, ours, mask in zip(rows, tokens, masks):
            ids, their_mask = expected(fast, row)
            assert ours == [ids] and mask == [their_mask], f"{name}: {row}\n{ours}\n{ids}"
        print(f"  {name} by SentencePiece: tokens and masks of {CONVERSATIONS} conversations")


def check_all():
    os.environ["SOURCE_DATE_EPOCH"] = "1700000000"
    folder = "chat-tokenizer"
    fast = make_tokenizer(folder)
    sources = {name: subprocess.run([TRIREME, "prepare-chat", "--chat-template", name, "--print-template"], check=True,
                                    stdout=subprocess.PIPE, text=True).stdout for name in BUILT_IN}
    for path in sorted(glob.glob(f"{HERE}/templates/*.jinja")):
        with open(path) as file:
            sources[os.path.basename(path)[:-6]] = file.read()
    for name, source in sources.items():
        check_template(fast, folder, name, source)
    for name in ["chatml", "qwen3", "llama3", "mistral3", "phi3", "zephyr"]:
        check_prefixes(fast, folder, name, sources[name])
    check_sentencepiece(sources)


golden_cases(f"{HERE}/../golden/templates.jsonl")
check_all()
