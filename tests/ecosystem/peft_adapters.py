"""LoRA adapters against PEFT: those that PEFT writes, those that trireme writes, merged models, what is refused.

Usage: peft_adapters.py TRIREME PRINT_LOGITS   (tests/peft.sh sets up the rest; works in the current folder)

For each family, a random model and a random adapter of it:
* logits of the adapter that PEFT wrote, at its base and by --adapter, beside those of transformers with PEFT;
* the merged export beside merge_and_unload();
* the adapter that trireme writes of it: the same tensors and settings, and the same logits in PEFT.
"""
import json
import os
import shutil
import subprocess
import sys

sys.path.pop(0)  # a program beside this one has a library's name
import numpy as np
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

TRIREME, PRINT_LOGITS = sys.argv[1:3]
SIZES = dict(vocab_size=67, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             max_position_embeddings=96, bos_token_id=1, eos_token_id=2, pad_token_id=None)
GROUPS = dict(SIZES, num_key_value_heads=2)
GPT2 = dict(vocab_size=67, n_embd=64, n_layer=3, n_head=4, n_positions=96, bos_token_id=1, eos_token_id=2)
GEMMA = dict(GROUPS, head_dim=24, query_pre_attn_scalar=24, sliding_window=7)
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LLAMA = ATTENTION + ["gate_proj", "up_proj", "down_proj"]
# Name, class and sizes, settings of the adapter, and the names that trireme writes for its modules (those, unless told).
CASES = {
    "Llama": ("Llama", GROUPS, dict(r=8, lora_alpha=16, target_modules=LLAMA), None),
    "Llama, some": ("Llama", GROUPS, dict(r=4, lora_alpha=4, target_modules=["v_proj", "gate_proj"]), None),
    "Llama, one layer": ("Llama", GROUPS, dict(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"],
                                               layers_to_transform=[1]),
                         ["model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"]),
    "Qwen2": ("Qwen2", GROUPS, dict(r=8, lora_alpha=12, use_rslora=True, target_modules=LLAMA), None),
    "GPT-2": ("GPT2", GPT2, dict(r=8, lora_alpha=32, target_modules=["c_attn", "c_proj", "c_fc"]), None),
    "GPT-2, one c_proj": ("GPT2", GPT2, dict(r=3, lora_alpha=5, target_modules=["c_attn", "mlp.c_proj"]), None),
    "GPT-NeoX": ("GPTNeoX", dict(SIZES, rotary_pct=0.5),
                 dict(r=8, lora_alpha=16, target_modules=["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]),
                 None),
    "Gemma 2": ("Gemma2", GEMMA, dict(r=6, lora_alpha=9, target_modules=LLAMA), None),
    "Gemma 3": ("Gemma3Text", GEMMA, dict(r=6, lora_alpha=9, use_rslora=True, target_modules=LLAMA), None),
    "Phi-3": ("Phi3", GROUPS, dict(r=8, lora_alpha=16, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
              None),
}
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 60, 8, 9, 7, 9]
failures = 0


def expect(condition, *what):
    global failures
    if not condition:
        failures += 1
        print("FAILED", *what)
    return condition


def run(*arguments):
    result = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=300)
    return result.stdout if expect(result.returncode == 0, *arguments, result.stderr[-800:]) else ""


def refused(words, *arguments, code=None):
    result = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=300)
    good = result.returncode not in (0, 70) and result.returncode < 128 and code in (None, result.returncode)
    expect(good and words in result.stderr, *arguments, "ended with", result.returncode, result.stderr[-800:],
           "wanted:", words)


def our_logits(path, apart=False):
    os.environ.pop("TRIREME_APART", None)
    if apart:
        os.environ["TRIREME_APART"] = "1"
    out = run(PRINT_LOGITS, path, *TOKENS)
    return np.array([[float.fromhex(x) for x in line.split()] for line in out.splitlines()])


def their_logits(model):
    with torch.no_grad():
        logits = model.double()(torch.tensor([TOKENS])).logits[0].numpy()
    model.float()
    return logits


def expect_near(what, ours, theirs, most=1e-5):
    error = float(np.abs(ours - theirs).max() / np.abs(theirs).max()) if ours.shape == theirs.shape else np.inf
    expect(error <= most, what, "differ by", error)
    return error


def random_model(kind, sizes):
    config = getattr(transformers, kind + "Config")(**sizes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for name, parameter in model.named_parameters():
        parameter.data.normal_(0.0, 0.2 if parameter.dim() == 1 else 0.12)
        if "norm" in name and name.endswith("weight") and "gemma" not in config.model_type:
            parameter.data += 1.0
    return model.float().eval()


def base_of(folder):
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").float().eval()


def random_adapter(base, folder, settings):
    """Both matrices are random, so that the adapter changes something; it names its base."""
    model = get_peft_model(base_of(base), LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **settings))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0.0, 0.12)
    model.peft_config["default"].base_model_name_or_path = base
    model.save_pretrained(folder)
    return model.eval()


# ---- one family -------------------------------------------------------------------------------------------


def check_merged(name, folder, adapted):
    run(TRIREME, "export", "--load", folder + "_base", "--adapter", folder + "_lora", "--dtype", "f32", "--output",
        folder + "_merged")
    merged = adapted.merge_and_unload().state_dict()
    ours = load_file(folder + "_merged/model.safetensors")
    worst = 0.0
    for key, value in ours.items():
        key = "lm_head.weight" if key == "embed_out.weight" else key
        # A sum of r products and one sum: a few roundings of numbers of the size of the largest.
        error = float((value.double() - merged[key].double()).abs().max() / value.abs().max())
        worst = max(worst, error)
        changed = not torch.equal(value, load_file(folder + "_base/model.safetensors").get(key, value))
        expect(error <= 3e-7, name, "merged", key, "differs by", error, "changed" if changed else "not changed")
    return worst


def check_written(name, folder, settings, names, theirs):
    run(TRIREME, "export", "--load", folder + "_lora", "--to", "peft", "--dtype", "f32", "--output", folder + "_ours")
    ours, before = (load_file(f"{folder}{end}/adapter_model.safetensors") for end in ("_ours", "_lora"))
    expect(ours.keys() == before.keys() and all(torch.equal(ours[key], before[key]) for key in ours), name,
           "other tensors are written than were read", ours.keys() ^ before.keys())
    config = json.load(open(folder + "_ours/adapter_config.json"))
    expect(sorted(config["target_modules"]) == sorted(names or settings["target_modules"]), name,
           config["target_modules"])
    expect(os.path.realpath(config["base_model_name_or_path"]) == os.path.realpath(folder + "_base"), name, config)
    back = PeftModel.from_pretrained(base_of(folder + "_base"), folder + "_ours").eval()
    expect_near(f"{name}: logits of what trireme wrote, in PEFT", their_logits(back), theirs, 1e-12)
    run(TRIREME, "export", "--load", folder + "_ours", "--to", "peft", "--dtype", "f32", "--output", folder + "_again")
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        expect(open(f"{folder}_ours/{file}", "rb").read() == open(f"{folder}_again/{file}", "rb").read(), name, file,
               "is another after reading and writing")


def check(name, kind, sizes, settings, names):
    folder = name.replace(" ", "_").replace(",", "").lower()
    random_model(kind, sizes).save_pretrained(folder + "_base")
    adapted = random_adapter(folder + "_base", folder + "_lora", settings)
    theirs, plain = their_logits(adapted), their_logits(base_of(folder + "_base"))
    expect(np.abs(theirs - plain).max() > 1e-3, name, "the adapter changes nothing")
    error = expect_near(f"{name}: logits of what PEFT wrote", our_logits(folder + "_lora"), theirs)
    if "layers_to_transform" not in settings:
        expect_near(f"{name}: logits without merging", our_logits(folder + "_lora", apart=True), theirs)
    check_written(name, folder, settings, names, theirs)
    merged = check_merged(name, folder, adapted)
    expect_near(f"{name}: logits of the merged model", our_logits(folder + "_merged"), theirs)
    print(f"{name}: logits {error:.1e}, merged weights {merged:.1e}", flush=True)


# ---- adapters that trireme trained --------------------------------------------------------------------------

STEPS = ["--mock-data", "--seq-length", 16, "--micro-batch-size", 2, "--global-batch-size", 4, "--train-iters", 3, "--lr",
         3e-2, "--eval-iters", 0, "--lr-decay-style", "constant"]


def check_trained(name, targets=(), rslora=False, grid=()):
    """The same logits from the checkpoint, in PEFT, merged, and in the model that trireme merges."""
    folder = name.replace(" ", "_").lower()
    run(TRIREME, "train", "--load", folder + "_base", "--finetune", "--lora-rank", 6, "--lora-alpha", 15,
        *(["--lora-target-modules", *targets] if targets else []), *(["--use-rslora"] if rslora else []), *STEPS, *grid,
        "--save", "trained")
    run(TRIREME, "export", "--load", "trained", "--to", "peft", "--dtype", "f32", "--output", "trained_lora")
    run(TRIREME, "export", "--load", "trained", "--to", "hf", "--dtype", "f32", "--output", "trained_merged")
    run(TRIREME, "export", "--load", folder + "_base", "--adapter", "trained", "--dtype", "f32", "--output", "trained_same")
    model = PeftModel.from_pretrained(base_of(folder + "_base"), "trained_lora").eval()
    theirs, plain = their_logits(model), their_logits(base_of(folder + "_base"))
    what = f"{name}, trained ({' '.join(targets) or 'all'})"
    expect(np.abs(theirs - plain).max() > 1e-3, what, "the adapter changes nothing")
    errors = [expect_near(f"{what}: logits of the {kind}", our_logits(path, apart), theirs)
              for kind, path, apart in (("checkpoint", "trained", False), ("checkpoint, not merged", "trained", True),
                                        ("folder of PEFT", "trained_lora", False), ("export", "trained_merged", False))]
    ours, merged = load_file("trained_merged/model.safetensors"), model.merge_and_unload().state_dict()
    same = load_file("trained_same/model.safetensors")
    for key, value in ours.items():
        expect(torch.equal(value, same[key]), what, key, "is another where the adapter is added to its base")
        key = "lm_head.weight" if key == "embed_out.weight" else key
        expect(float((value - merged[key]).abs().max() / value.abs().max()) <= 3e-7, what, key, "merged otherwise")
    if folder == "llama":  # an adapter of PEFT is trained on
        run(TRIREME, "train", "--load", "trained_lora", "--finetune", *STEPS, "--save", "further")
        run(TRIREME, "export", "--load", "further", "--to", "peft", "--output", "further_lora")
        before, after = (json.load(open(f"{path}_lora/adapter_config.json")) for path in ("trained", "further"))
        expect(before == after, what, "trained further it is another", before, after)
    print(f"{what}: logits {max(errors):.1e}", flush=True)
    for path in ("trained", "trained_lora", "trained_merged", "trained_same", "further", "further_lora"):
        shutil.rmtree(path, ignore_errors=True)


def check_all_trained():
    check_trained("Llama", grid=["--tp", 2, "--pp", 3, "--ranks", 6])
    check_trained("Llama", ["linear_qkv", "linear_proj", "linear_fc1"], rslora=True)
    check_trained("Qwen2", ["q_proj", "v_proj"])
    for name in ("GPT-2", "GPT-NeoX", "Gemma 2", "Phi-3"):
        check_trained(name)
    run(TRIREME, "train", "--load", "gpt-2_base", "--finetune", "--lora-rank", 2, "--lora-target-modules", "linear_q",
        *STEPS, "--save", "queries")
    refused("with --lora-target-modules linear_qkv", TRIREME, "export", "--load", "queries", "--to", "peft", "--output",
            "never")
    refused("is an adapter of", TRIREME, "export", "--load", "llama_base", "--adapter", "queries", "--output", "never")
    refused("is an adapter, and so is", TRIREME, "export", "--load", "queries", "--adapter", "gpt-2_lora", "--output",
            "never")
    run(TRIREME, "export", "--load", "queries", "--to", "gguf", "--output", "queries.gguf")


# ---- several adapters on one base -------------------------------------------------------------------------


def byte_tokenizer(folder):
    """A token for each byte, and an end token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(folder + "/tokenizer.json")
    return tokenizer


def greedy(model, tokenizer, prompt, count):
    """What trireme prints, which stops at the end token; without bytes that are no UTF-8, of which pieces differ."""
    tokens = tokenizer.encode(prompt).ids
    start, end = len(tokens), tokenizer.token_to_id("<|endoftext|>")
    with torch.no_grad():
        while len(tokens) < start + count:
            logits = model(torch.tensor([tokens])).logits[0, -1]
            logits[end + 1:] = -torch.inf
            tokens.append(int(logits.argmax()))
            if tokens[-1] == end:
                tokens.pop()
                break
    return tokenizer.decode(tokens[start:])


def ascii_of(text):
    return "".join(c for c in text if ord(c) < 128)


def check_several():
    """Prompts choose among adapters of other ranks, scales and modules, and the base, on grids."""
    random_model("Llama", dict(GROUPS, vocab_size=260)).save_pretrained("chat_base")
    tokenizer = byte_tokenizer("chat_base")
    models = {None: base_of("chat_base")}
    for name, settings in {"all": dict(r=8, lora_alpha=16, target_modules=LLAMA),
                           "rs": dict(r=3, lora_alpha=5, use_rslora=True, target_modules=["v_proj", "up_proj"]),
                           "one": dict(r=4, lora_alpha=8, target_modules=["o_proj"], layers_to_transform=[1])}.items():
        models[name] = random_adapter("chat_base", "chat_" + name, settings)
    order = ["all", "rs", None, "one", "all", None, "rs"]
    wanted = [greedy(models[name], tokenizer, f"prompt {i}", 20) for i, name in enumerate(order)]
    expect(len(set(greedy(model, tokenizer, "x", 20) for model in models.values())) == 4, "adapters change nothing")
    with open("prompts.jsonl", "w") as file:
        for i, name in enumerate(order):
            line = {"prompt": f"prompt {i}", "max_new_tokens": 20, **({"adapter": name} if name else {})}
            file.write(json.dumps(line) + "\n")
    several = ["--load", "chat_base", "--adapter", *(f"{name}=chat_{name}" for name in models if name)]
    for grid in ([], ["--tp", 2, "--pp", 3, "--ranks", 6], ["--no-kv-cache"]):
        out = run(TRIREME, "generate", *several, "--prompts", "prompts.jsonl", "--temperature", 0, *grid)
        lines = [json.loads(line) for line in out.split("\n") if line]
        expect([line["adapter"] for line in lines] == order, "adapters of", lines)
        for i, line in enumerate(lines):
            expect(ascii_of(line["text"]) == ascii_of(wanted[i]), "greedy text of", order[i], grid, line["text"], wanted[i])
    out = run(TRIREME, "generate", "--load", "chat_base", "--adapter", "chat_rs", "--prompt", "prompt 1", "--temperature",
              0, "--max-new-tokens", 20)
    expect(ascii_of(out.rstrip("\n")) == ascii_of(wanted[1].rstrip("\n")), "greedy text of the merged model", out, wanted[1])
    for line, words in {'{"prompt": "x", "adapter": "al"}': 'bad.jsonl:1: no adapter is named "al"',
                        '{"text": "x"}': '"prompt" is missing', '{"prompt": "x", "n": 1}': '"n" is no member',
                        '{"prompt": "x", "max_new_tokens": 0}': "whole number from 1", "": "contains no prompt",
                        '{"prompt": ': "bad.jsonl:1"}.items():
        open("bad.jsonl", "w").write(line + "\n")
        refused(words, TRIREME, "generate", *several, "--prompts", "bad.jsonl")
    refused("names 3 adapters: a prompt says which", TRIREME, "generate", *several, "--prompt", "x")
    refused("two have the name a", TRIREME, "generate", "--load", "chat_base", "--adapter", "a=chat_all", "a=chat_rs",
            "--prompts", "prompts.jsonl")


# ---- what is refused --------------------------------------------------------------------------------------


def altered(name, config=None, tensors=None, remove=()):
    """A copy of the Llama adapter with other members or tensors."""
    folder = "bad_" + name
    shutil.copytree("llama_lora", folder)
    members = json.load(open(folder + "/adapter_config.json"))
    members.update(config or {})
    json.dump(members, open(folder + "/adapter_config.json", "w"))
    values = load_file(folder + "/adapter_model.safetensors")
    values.update(tensors or {})
    for key in remove:
        del values[key]
    save_file(values, folder + "/adapter_model.safetensors", {"format": "pt"})
    return folder


def key(layer, module, which):
    return f"base_model.model.model.layers.{layer}.{module}.lora_{which}.weight"


def refused_adapter(words, folder, base="llama_base"):
    refused(words, TRIREME, "export", "--load", base, "--adapter", folder, "--output", "never")
    expect(not os.path.exists("never"), folder, "was exported")


def check_refused():
    for member, value in {"use_dora": True, "lora_bias": True, "bias": "all", "modules_to_save": ["lm_head"],
                          "rank_pattern": {"q_proj": 4}, "alpha_pattern": {"q_proj": 4}, "peft_type": "LOHA",
                          "task_type": "SEQ_CLS", "init_lora_weights": "pissa", "layer_replication": [[0, 2]],
                          "target_parameters": ["weight"], "trainable_token_indices": [1], "use_qalora": True,
                          "something_new": 3}.items():
        refused_adapter(f'"{member}" is not what plain LoRA has', altered(member, {member: value}))
    refused_adapter('"r" is not a whole number', altered("r", {"r": 0}))
    refused_adapter('no member "lora_alpha"', altered("alpha", {"lora_alpha": None}))
    refused_adapter("which the rank 4 in", altered("rank", {"r": 4}))
    q, o = "self_attn.q_proj", "self_attn.o_proj"
    values = load_file("llama_lora/adapter_model.safetensors")
    refused_adapter("lora_B.weight is missing", altered("half", remove=[key(1, q, "B")]))
    refused_adapter("model.layers.2.self_attn.q_proj.weight, although other layers have them",
                    altered("fewer", remove=[key(2, q, "A"), key(2, q, "B")]))
    refused_adapter("is of layer 3, and the model in llama_base has layers 0 to 2",
                    altered("more", tensors={key(3, q, w): values[key(2, q, w)].clone() for w in "AB"}))
    for name in ("self_attn.q_projection", "lm_head"):
        refused_adapter("belongs to no linear layer of the model in llama_base",
                        altered(name, tensors={key(1, name, "A"): values[key(2, q, "A")].clone()}))
    refused_adapter("is not [64, 8]", altered("shape", tensors={key(1, o, "B"): torch.zeros(60, 8)}))
    refused_adapter("lora_B.weight is NaN in row", altered("nan", tensors={key(1, o, "B"): torch.full((64, 8), torch.nan)}))
    refused_adapter("is of type I32", altered("type", tensors={key(1, o, "B"): torch.zeros(64, 8, dtype=torch.int32)}))
    refused_adapter("belongs to no linear layer of the model in gpt-2_base", "llama_lora", "gpt-2_base")
    refused_adapter("is of layer 2, and the model in small has layers 0 to 1", "llama_lora", "small")
    refused_adapter("although other layers have them", "llama_lora", "large")
    refused_adapter("is not [8, 128]", "llama_lora", "wide")
    refused_adapter("is a whole model, no adapter", "llama_base")
    refused_adapter("no such folder", "nothing")
    os.remove(altered("empty") + "/adapter_model.safetensors")
    refused_adapter("no adapter_model.safetensors", "bad_empty")
    open("bad_empty/adapter_model.bin", "w").close()
    refused_adapter("is a pickle", "bad_empty")
    open("bad_empty/adapter_model.safetensors", "w").close()
    refused_adapter("bad_empty/adapter_model.safetensors", "bad_empty")
    refused('names the model "somebody/model-7b", which is neither at that path nor in', TRIREME, "export", "--load",
            altered("baseless", {"base_model_name_or_path": "somebody/model-7b"}), "--output", "never")
    refused("is an adapter, and so is llama_lora", TRIREME, "export", "--load", "llama_lora", "--adapter", "llama_lora", "--output",
            "never")
    refused("is a whole model, without an adapter", TRIREME, "export", "--load", "llama_base", "--to", "peft",
            "--output", "never")
    refused("uses one: keep one", TRIREME, "export", "--load", "llama_base", "--adapter", "a=llama_lora",
            "b=llama_lora", "--output", "never")


def main():
    torch.manual_seed(1)
    transformers.utils.logging.disable_progress_bar()
    only = os.environ.get("FAMILIES")
    for name, (kind, sizes, settings, names) in CASES.items():
        if not only or name in only.split("|"):
            check(name, kind, sizes, settings, names)
    if not only:
        for name, sizes in {"small": dict(num_hidden_layers=2), "large": dict(num_hidden_layers=5),
                            "wide": dict(hidden_size=128)}.items():
            random_model("Llama", dict(GROUPS, **sizes)).save_pretrained(name)
        check_all_trained()
        check_several()
        check_refused()
    return 1 if failures else 0


sys.exit(main())
