"""What the libraries of others make of trireme's files, and trireme of theirs.

Usage: ecosystem.py TRIREME PRINT_LOGITS   (tests/ecosystem.sh sets up the rest; works in the current folder)

* transformers writes a GPT-2 and Llamas with random weights; trireme reads them: the same logits.
* trireme exports them again, as they are and by way of a checkpoint: the same tensors, and the same files.
* gguf reads the GGUF: names, shapes, types, metadata; values equal to transformers' own, llama.cpp's order of
  rows in the heads included.
* A model that trireme trained: transformers loads it with its tokenizer: the same logits, the same tokens.
* A folder as Llama 2 comes, tokenizer.json with byte_fallback beside tokenizer.model: what lies beside the weights
  comes back, and is in the GGUF.
"""
import filecmp
import io
import json
import os
import subprocess
import sys

import gguf
import numpy as np
import torch
import transformers
from byte_fallback import byte_fallback_json
from gguf.quants import dequantize
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig

TRIREME, PRINT_LOGITS = sys.argv[1:3]
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 60]
VOCABULARY = 67
failures = 0


def expect(condition, *what):
    global failures
    if not condition:
        failures += 1
        print("FAILED", *what)


def trireme(*arguments):
    result = subprocess.run([TRIREME, *arguments], capture_output=True, text=True, timeout=120)
    expect(result.returncode == 0, "trireme", *arguments, result.stderr[-500:])


def our_logits(path, tokens=TOKENS):
    result = subprocess.run([PRINT_LOGITS, path, *map(str, tokens)], capture_output=True, text=True, timeout=60)
    expect(result.returncode == 0, "print_logits", path, result.stderr[-500:])
    return np.array([[float.fromhex(x) for x in line.split()] for line in result.stdout.splitlines()])


def their_logits(model, tokens=TOKENS):
    with torch.no_grad():
        return model.eval()(torch.tensor([tokens])).logits[0].double().numpy()


def expect_close(ours, theirs, what, most=1e-5):
    same = ours.shape == theirs.shape
    distance = np.abs(ours - theirs).max() / np.abs(theirs).max() if same else np.inf
    expect(distance <= most, what, "logits differ by", distance, ours.shape, theirs.shape)


def random_model(config):
    """Everything random, norms and biases too, so that nothing can be mixed up unseen."""
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.3)
    return model


def llama_config(**others):
    sizes = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                 num_attention_heads=4, max_position_embeddings=48, rope_theta=20000.0, rms_norm_eps=1e-5)
    return LlamaConfig(**{**sizes, **others})


def models():
    gpt2 = dict(vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=48)
    yield "gpt2", GPT2Config(**gpt2)
    yield "gpt2_untied", GPT2Config(**gpt2, n_inner=96, tie_word_embeddings=False)
    yield "gpt2_exact", GPT2Config(**gpt2, activation_function="gelu")
    yield "llama", llama_config(num_key_value_heads=2)
    yield "llama_tied", llama_config(num_key_value_heads=4, tie_word_embeddings=True)
    yield "llama_biases", llama_config(num_key_value_heads=1, attention_bias=True, mlp_bias=True)
    yield "llama_attention_bias", llama_config(num_key_value_heads=2, attention_bias=True)
    yield "llama_mlp_bias", llama_config(num_key_value_heads=2, mlp_bias=True)
    # The frequencies of 8 pairs with base 20000: two are kept, two lie between, four are slowed in full.
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 160}
    yield "llama_llama3", llama_config(rope_scaling=llama3)
    yield "llama_linear", llama_config(rope_scaling={"rope_type": "linear", "factor": 2.5})


def state_of(model):
    tied = model.config.tie_word_embeddings
    return {name: value for name, value in model.state_dict().items()
            if not (tied and name == "lm_head.weight") and not name.endswith((".attn.bias", ".masked_bias"))}


def expect_same_state(model, folder, what):
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    ours, theirs = state_of(loaded), state_of(model)
    expect(ours.keys() == theirs.keys(), what, ours.keys() ^ theirs.keys())
    for name in theirs:
        expect(torch.equal(ours[name], theirs[name]), what, name, "differs")
    return loaded


def check_hugging_face(name, model):
    theirs = their_logits(model)
    expect_close(our_logits(name), theirs, name)
    trireme("export", "--load", name, "--to", "hf", "--dtype", "f32", "--output", f"{name}_out")
    trireme("import", name, "--save", f"{name}_save")
    trireme("export", "--load", f"{name}_save", "--output", f"{name}_back")
    for folder in (f"{name}_out", f"{name}_back"):
        expect_close(their_logits(expect_same_state(model, folder, folder)), theirs, folder, 1e-7)
    expect_close(our_logits(f"{name}_save"), theirs, f"{name}_save")
    for file in ("config.json", "model.safetensors"):
        same = open(f"{name}_out/{file}", "rb").read() == open(f"{name}_back/{file}", "rb").read()
        expect(same, name, file, "is another after an import")
    ours, theirs = (json.load(open(f"{folder}/config.json")) for folder in (f"{name}_back", name))
    for key in ("rope_scaling", "attention_bias", "mlp_bias", "activation_function", "hidden_act"):
        expect(ours.get(key) == theirs.get(key), name, key, ours.get(key), "instead of", theirs.get(key))


# ---- GGUF -------------------------------------------------------------------------------------------------


def paired(weight, heads):
    """The order of rows that llama.cpp wants of queries and keys: the halves of a head alternate."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(
        weight.shape)


def gguf_tensors(model):
    """Name in GGUF -> values, by gguf's own table of names."""
    llama = model.config.model_type == "llama"
    architecture = gguf.MODEL_ARCH.LLAMA if llama else gguf.MODEL_ARCH.GPT2
    names = gguf.get_tensor_name_map(architecture, model.config.num_hidden_layers)
    for name, value in state_of(model).items():
        value = value.float().numpy()
        if not llama and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            value = value.T
        if llama and ".q_proj." in name:
            value = paired(value, model.config.num_attention_heads)
        if llama and ".k_proj." in name:
            value = paired(value, model.config.num_key_value_heads)
        yield names.get_name(name, try_suffixes=(".weight", ".bias")), value
    scaling = llama and model.config.rope_scaling
    if scaling and scaling["rope_type"] == "llama3":
        rotary = model.model.rotary_emb
        plain = 20000.0 ** (-np.arange(0, 16, 2) / 16)
        yield "rope_freqs.weight", (plain / rotary.inv_freq.numpy()).astype(np.float32)
    if not llama and "lm_head.weight" not in state_of(model):
        yield "output.weight", state_of(model)["transformer.wte.weight"].float().numpy()


def field(reader, key):
    entry = reader.fields.get(key)
    if entry is None:
        return None
    value = entry.parts[entry.data[0]]
    return bytes(value).decode() if entry.types[0] == gguf.GGUFValueType.STRING else value[0]


def expect_metadata(reader, config, file):
    llama = config.model_type == "llama"
    prefix = "llama" if llama else "gpt2"
    wanted = {"general.architecture": prefix, "tokenizer.ggml.model": "none",
              f"{prefix}.block_count": config.num_hidden_layers, f"{prefix}.context_length": 48,
              f"{prefix}.embedding_length": config.hidden_size,
              f"{prefix}.attention.head_count": config.num_attention_heads,
              f"{prefix}.feed_forward_length": config.intermediate_size if llama else config.n_inner or 256}
    if llama:
        wanted["llama.attention.head_count_kv"] = config.num_key_value_heads
        wanted["llama.rope.dimension_count"] = 16
        wanted["llama.rope.freq_base"] = 20000.0
        wanted["llama.attention.layer_norm_rms_epsilon"] = np.float32(1e-5)
        if config.rope_scaling and config.rope_scaling["rope_type"] == "linear":
            wanted["llama.rope.scaling.type"] = "linear"
            wanted["llama.rope.scaling.factor"] = np.float32(2.5)
    else:
        wanted["gpt2.attention.layer_norm_epsilon"] = np.float32(1e-5)
    for key, value in wanted.items():
        expect(field(reader, key) == value, file, key, field(reader, key), "instead of", value)


def check_gguf(name, model):
    # Largest error, relative to the largest value, and the type of most matrices.
    for dtype, most, kind in (("f32", 0, "F32"), ("f16", 1e-3, "F16"), ("bf16", 4e-3, "BF16"),
                              ("q8_0", 5e-3, "Q8_0")):
        file = f"{name}_{dtype}.gguf"
        trireme("export", "--load", name, "--to", "gguf", "--dtype", dtype, "--output", file)
        reader = gguf.GGUFReader(file)
        expect_metadata(reader, model.config, file)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        wanted = dict(gguf_tensors(model))
        expect(tensors.keys() == wanted.keys(), file, tensors.keys() ^ wanted.keys())
        for key in tensors.keys() & wanted.keys():
            tensor, value = tensors[key], wanted[key]
            expect(list(tensor.shape) == list(value.shape)[::-1], file, key, tensor.shape, value.shape)
            found = dequantize(tensor.data, tensor.tensor_type).reshape(value.shape)
            distance = np.abs(found - value).max() / np.abs(value).max()
            plain = value.ndim == 1 or key == "position_embd.weight"
            exact = 1e-6 if key == "rope_freqs.weight" else 0
            expect(distance <= (exact if plain else most), file, key, "differs by", distance)
            expect(tensor.tensor_type.name == ("F32" if plain else kind), file, key, tensor.tensor_type.name)


def check_refused_gguf(name):
    """llama.cpp's GPT-2 has the tanh form of GELU alone."""
    result = subprocess.run([TRIREME, "export", "--load", name, "--to", "gguf", "--output", f"{name}.gguf"],
                            capture_output=True, text=True, timeout=60)
    expect(result.returncode == 69 and "tanh form of GELU" in result.stderr, name, result.stderr)


# ---- what lies beside the weights -----------------------------------------------------------------------------

TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"


def llama2_tokenizer(folder):
    import sentencepiece
    from transformers import LlamaTokenizerFast
    text = [f"document {i} returns {i * i}; it was {i} again" for i in range(400)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=model, vocab_size=320, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2)
    os.mkdir(folder)
    with open(f"{folder}/tokenizer.model", "wb") as file:
        file.write(model.getvalue())
    byte_fallback_json(f"{folder}/tokenizer.model", f"{folder}/tokenizer.json")
    tokenizer = LlamaTokenizerFast(f"{folder}/tokenizer.model", f"{folder}/tokenizer.json", legacy=True)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    expect(json.load(open(f"{folder}/tokenizer.json"))["model"]["byte_fallback"], "no byte_fallback to try")
    return tokenizer


def check_llama2_folder():
    theirs = llama2_tokenizer("llama2")
    model = random_model(llama_config(vocab_size=320))
    model.generation_config.temperature = 0.6
    model.generation_config.do_sample = True
    model.save_pretrained("llama2")
    result = subprocess.run([TRIREME, "import", "llama2", "--save", "llama2_save"], capture_output=True, text=True)
    expect(result.returncode == 0, result.stderr)
    expect("the tokenizer is llama2/tokenizer.model, since llama2/tokenizer.json" in result.stderr, result.stderr)
    trireme("export", "--load", "llama2_save", "--output", "llama2_back")
    for file in ("tokenizer.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                 "generation_config.json"):
        expect(filecmp.cmp(f"llama2/{file}", f"llama2_back/{file}", False), file, "is another after an import")
    back = AutoTokenizer.from_pretrained("llama2_back")
    sentence = "document 7 returns \u00e9 49"
    expect(back(sentence)["input_ids"] == theirs(sentence)["input_ids"], "the ids")
    with open("sentence.txt", "w") as file:
        file.write(sentence)
    result = subprocess.run([TRIREME, "tokenizer", "encode", "sentence.txt", "--tokenizer-model", "llama2_save/step-00000000"],
                            capture_output=True, text=True)
    expect([1, *map(int, result.stdout.split())] == theirs(sentence)["input_ids"], "our ids", result.stdout,
           result.stderr, theirs(sentence)["input_ids"])
    expect(back.chat_template == TEMPLATE, "the template of a conversation", back.chat_template)
    trireme("export", "--load", "llama2_save", "--to", "gguf", "--output", "llama2.gguf")
    reader = gguf.GGUFReader("llama2.gguf")
    wanted = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.add_bos_token": True,
              "tokenizer.ggml.add_eos_token": False, "tokenizer.chat_template": TEMPLATE,
              "general.name": "llama2_save"}
    for key, value in wanted.items():
        expect(field(reader, key) == value, "llama2.gguf", key, field(reader, key), "instead of", value)
    trireme("import", "llama2", "--save", "llama2_other", "--tokenizer-model", "trained_gpt2/tokenizer.json")
    files = set(os.listdir("llama2_other/step-00000000"))
    expect("tokenizer.json" in files and not files & {"tokenizer.model", "special_tokens_map.json"}, files)


# ---- what trireme trained -----------------------------------------------------------------------------------


def check_trained(name, *options):
    with open("text.jsonl", "w") as text:
        for i in range(300):
            text.write('{"text": "document %d: int f_%d(int a) { return a + %d; } // caf\\u00e9"}\n' % (i, i, i * i))
    if name == "trained_gpt2":
        trireme("preprocess", "--input", "text.jsonl", "--output-prefix", "text", "--vocab-size", "300",
                "--append-eod")
    trireme("train", "--data-path", "text", "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads",
            "4", "--seq-length", "32", "--micro-batch-size", "2", "--global-batch-size", "4", "--lr", "1e-2",
            "--train-iters", "5", "--split", "100,0,0", "--eval-iters", "0", "--ranks", "2", "--tp", "2",
            "--save", f"{name}_save", *options)
    trireme("export", "--load", f"{name}_save", "--output", name)
    trireme("export", "--load", f"{name}_save", "--output", f"{name}.gguf", "--to", "gguf")
    model = AutoModelForCausalLM.from_pretrained(name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    sentence = "document 7: return 49; caf\u00e9"
    tokens = tokenizer(sentence)["input_ids"]
    expect(len(tokenizer) == model.config.vocab_size, name, "tokens", len(tokenizer), model.config.vocab_size)
    expect(tokenizer.decode(tokens) == sentence, name, tokenizer.decode(tokens))
    expect(tokenizer.eos_token_id == model.config.eos_token_id, name, "the end token")
    expect_close(our_logits(f"{name}_save", tokens), their_logits(model, tokens), name)
    expect_close(our_logits(name, tokens), their_logits(model, tokens), name)
    reader = gguf.GGUFReader(f"{name}.gguf")
    words = reader.fields["tokenizer.ggml.tokens"]
    spelled = [bytes(words.parts[i]).decode() for i in words.data]
    expect(spelled == tokenizer.convert_ids_to_tokens(range(len(spelled))), name, "the tokens in GGUF")
    expect(field(reader, "tokenizer.ggml.model") == "gpt2", name, "the tokenizer's model")
    expect(field(reader, "tokenizer.ggml.pre") == "gpt-2", name, "the tokenizer's pattern")
    expect(field(reader, "tokenizer.ggml.eos_token_id") == model.config.eos_token_id, name, "end in GGUF")
    expect(len(reader.fields["tokenizer.ggml.merges"].data) > 10, name, "merges in GGUF")


def main():
    torch.manual_seed(1)
    transformers.utils.logging.disable_progress_bar()
    for name, config in models():
        model = random_model(config)
        model.save_pretrained(name)
        check_hugging_face(name, model)
        if name == "gpt2_exact":
            check_refused_gguf(name)
        else:
            check_gguf(name, model)
    check_trained("trained_gpt2")
    check_trained("trained_llama", "--swiglu", "--normalization", "RMSNorm", "--position-embedding-type", "rope",
                  "--disable-bias-linear", "--untie-embeddings-and-output-weights", "--group-query-attention",
                  "--num-query-groups", "2", "--attention-dropout", "0", "--hidden-dropout", "0")
    check_trained("trained_scaled", "--swiglu", "--normalization", "RMSNorm", "--position-embedding-type", "rope",
                  "--use-rope-scaling", "--rope-original-max-position-embeddings", "64", "--disable-bias-linear",
                  "--add-qkv-bias", "--add-attn-proj-bias", "--untie-embeddings-and-output-weights")
    check_llama2_folder()
    return 1 if failures else 0


sys.exit(main())
