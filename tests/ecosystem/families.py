"""Families of models against transformers, one row each: every feature of the family on, random weights.

Usage: families.py TRIREME PRINT_LOGITS FAMILY_STEPS [TABLE]   (tests/families.sh sets up the rest; works in the
current folder)

For each family that this version of transformers has:
* logits, every gradient, and losses, norms and weights of ten AdamW steps, on one rank and on grids;
* import, export, import, export: the same files, and the same tensors as transformers wrote;
* 64 tokens of greedy text;
* where llama.cpp knows it, the names of the tensors in GGUF.
With TABLE, writes the table of docs/formats.md: what was seen on one rank.
"""
import json
import os
import re
import subprocess
import sys

sys.path.pop(0)  # a program beside this one has a library's name
import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

TRIREME, PRINT_LOGITS, FAMILY_STEPS = sys.argv[1:4]
TABLE = sys.argv[4] if len(sys.argv) > 4 else None
# Sizes of t, p and d, and how it is run. With a sharded optimizer no rank has a whole gradient after a step.
GRIDS = ["1 1 1 plain", "2 2 2 sequence", "2 1 1 selective", "1 2 1 zb", "2 1 2 full+sequence+sharded", "2 2 1 zb+full"]
# Of models with experts, too: each replica has a half of them.
EXPERT_GRIDS = ["1 1 2 ep", "2 1 2 ep+sequence+full"]
# Products as PyTorch has them, in fp64 too.
PLAIN = dict(attn_implementation="eager", experts_implementation="eager")
SIZES = dict(vocab_size=67, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
             max_position_embeddings=96, bos_token_id=1, eos_token_id=2, pad_token_id=None)
GROUPS = dict(SIZES, num_key_value_heads=2)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 160}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}


def long_rope(share):
    """Divisors for the pairs of heads of 16 columns, of which a share rotates."""
    pairs = int(16 * share) // 2
    return {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": share,
            "short_factor": [1.0299999713897705 + 0.25 * i for i in range(pairs)],
            "long_factor": [1.05 + i * i for i in range(pairs)]}


LATENT = dict(SIZES, num_key_value_heads=4, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10)
DENSE = dict(LATENT, first_k_dense_replace=SIZES["num_hidden_layers"], n_routed_experts=4, n_group=1, topk_group=1)
EXPERTS = dict(num_experts=6, num_experts_per_tok=2)
FEATURES = {
    "Llama 3.1": ("Llama", dict(GROUPS, rope_theta=20000.0, rope_scaling=LLAMA3), "rotations scaled as `llama3`"),
    "Llama, linear": ("Llama", dict(GROUPS, head_dim=16, rope_scaling={"rope_type": "linear", "factor": 2.5}),
                      "rotations scaled as `linear`"),
    "Llama, YaRN": ("Llama", dict(GROUPS, rope_scaling=YARN), "rotations scaled as `yarn`"),
    "Llama, dynamic": ("Llama", dict(GROUPS, rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
                       "rotations scaled as `dynamic`"),
    "SmolLM2": ("Llama", dict(GROUPS, num_attention_heads=4, rope_theta=100000.0, tie_word_embeddings=True), "tied"),
    "Mistral": ("Mistral", dict(GROUPS, head_dim=24, sliding_window=None, rope_theta=1e6),
                "heads wider than hidden size / heads"),
    "Mistral v0.1": ("Mistral", dict(GROUPS, sliding_window=7), "a window in every layer"),
    "Qwen2, 2.5": ("Qwen2", dict(GROUPS, rope_theta=1e6, tie_word_embeddings=True), "biases of queries, keys, values"),
    "Qwen3": ("Qwen3", dict(GROUPS, head_dim=32, rope_theta=1e6), "norms of each query and key head"),
    "SmolLM3": ("SmolLM3", dict(GROUPS, no_rope_layer_interval=4), "every Nth layer without rotations, tied"),
    "Phi-3": ("Phi3", dict(GROUPS, rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                                                    "partial_rotary_factor": 0.5}),
              "fused matrices, a part of each head rotated"),
    "Phi-3, LongRoPE": ("Phi3", dict(GROUPS, original_max_position_embeddings=80, rope_parameters=long_rope(1.0)),
                        "rotations scaled as `longrope`, short texts"),
    "Phi-3, LongRoPE, long": ("Phi3", dict(GROUPS, original_max_position_embeddings=4,
                                      rope_parameters=dict(long_rope(0.5), attention_factor=1.2)),
                              "rotations scaled as `longrope`, long texts"),
    "OLMo 2": ("Olmo2", dict(GROUPS, rope_theta=5e5), "norms after alone, norms of all queries and keys"),
    "Gemma 2": ("Gemma2", dict(GROUPS, head_dim=16, query_pre_attn_scalar=16, sliding_window=7,
                               attn_logit_softcapping=5.0, final_logit_softcapping=3.0),
                "norms before and after, 1 + weight, GeGLU, caps, alternating windows"),
    "Gemma 3": ("Gemma3Text", dict(GROUPS, num_hidden_layers=6, head_dim=16, query_pre_attn_scalar=16,
                                   sliding_window=7),
                "as Gemma 2, norms of heads, two bases of rotations, windows 5:1"),
    "Gemma 3, windows 2:1": ("Gemma3Text", dict(GROUPS, num_hidden_layers=6, head_dim=16, query_pre_attn_scalar=24,
                                                sliding_window=7, sliding_window_pattern=3),
                             "scores scaled otherwise than by the size of a head"),
    "GPT-NeoX, Pythia": ("GPTNeoX", dict(SIZES, rotary_pct=0.5),
                         "parallel blocks, GELU by erf, a part of each head rotated"),
    "GPT-NeoX, sequential": ("GPTNeoX", dict(SIZES, use_parallel_residual=False, hidden_act="gelu_new"),
                             "GELU by tanh"),
    "StableLM": ("StableLm", dict(GROUPS, use_qkv_bias=True), "LayerNorm with SwiGLU, a part of each head rotated"),
    "Granite": ("Granite", dict(GROUPS, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0,
                                attention_multiplier=0.3, tie_word_embeddings=True), "four multipliers"),
    "Nemotron": ("Nemotron", dict(GROUPS), "squared ReLU, LayerNorm by 1 + weight"),
    "MiniCPM3": ("MiniCPM3", dict(LATENT, q_lora_rank=24, scale_emb=3, scale_depth=1.5, dim_model_base=32),
                 "latent attention, multipliers, tied"),
    "MiniCPM3, LongRoPE": ("MiniCPM3", dict(LATENT, q_lora_rank=24, original_max_position_embeddings=24,
                                            rope_parameters=dict(long_rope(0.5), partial_rotary_factor=1.0)),
                           "latent attention, rotations scaled as `longrope`, long texts"),
    "DeepSeek-V2, dense": ("DeepseekV2", dict(DENSE, q_lora_rank=None, rope_parameters=dict(
        YARN, rope_theta=1e4, mscale=0.707, mscale_all_dim=0.4)), "latents of keys and values alone, YaRN of scores"),
    "DeepSeek-V2-Lite": ("DeepseekV2", dict(LATENT, q_lora_rank=None, first_k_dense_replace=1, n_routed_experts=6,
                                            n_shared_experts=2, num_experts_per_tok=2, moe_intermediate_size=24,
                                            routed_scaling_factor=1.5),
                         "latent attention, experts after a dense layer, shared experts, a factor of weights"),
    "DeepSeek-V2, groups": ("DeepseekV2", dict(LATENT, q_lora_rank=24, n_routed_experts=6, n_shared_experts=1,
                                               num_experts_per_tok=3, moe_intermediate_size=24, n_group=3, topk_group=2,
                                               topk_method="group_limited_greedy"), "experts of the best groups"),
    "DeepSeek-V3, dense": ("DeepseekV3", dict(DENSE, q_lora_rank=24, v_head_dim=24, rope_parameters=dict(
        YARN, rope_theta=1e4, mscale=1.0, mscale_all_dim=1.0)), "latents, values wider than keys"),
    "DeepSeek-V3": ("DeepseekV3", dict(LATENT, q_lora_rank=24, first_k_dense_replace=1, n_routed_experts=8,
                                       n_shared_experts=2, num_experts_per_tok=4, moe_intermediate_size=24, n_group=4,
                                       topk_group=2),
                    "experts by sigmoids with biases, of the best groups, after a dense layer"),
    "DeepSeek-V3, one group": ("DeepseekV3", dict(LATENT, q_lora_rank=None, first_k_dense_replace=0, n_routed_experts=6,
                                                  n_shared_experts=1, num_experts_per_tok=3, moe_intermediate_size=24,
                                                  n_group=1, topk_group=1, routed_scaling_factor=1.0),
                               "without groups and a latent of queries"),
    "Mixtral": ("Mixtral", dict(GROUPS, num_local_experts=6, num_experts_per_tok=2, intermediate_size=40, head_dim=24),
                "experts of each token by the softmax over these"),
    "Mixtral, windows": ("Mixtral", dict(GROUPS, num_local_experts=4, num_experts_per_tok=3, intermediate_size=24,
                                         sliding_window=7), "a window in every layer"),
    "Qwen2-MoE": ("Qwen2Moe", dict(GROUPS, **EXPERTS, moe_intermediate_size=40, shared_expert_intermediate_size=56,
                                   norm_topk_prob=False, rope_theta=1e6),
                  "experts by the softmax over all, shared ones with a gate, biases of queries, keys, values"),
    "Qwen2-MoE, sparse": ("Qwen2Moe", dict(GROUPS, **EXPERTS, moe_intermediate_size=24,
                                           shared_expert_intermediate_size=40, norm_topk_prob=True,
                                           decoder_sparse_step=2),
                          "every second layer without experts"),
    "Qwen3-MoE": ("Qwen3Moe", dict(GROUPS, **EXPERTS, head_dim=32, moe_intermediate_size=40, norm_topk_prob=True,
                                   rope_theta=1e6), "experts, norms of each query and key head"),
    "Qwen3-MoE, sparse": ("Qwen3Moe", dict(GROUPS, **EXPERTS, head_dim=16, moe_intermediate_size=40,
                                           mlp_only_layers=[1], norm_topk_prob=False),
                          "experts by the softmax over all, a layer without experts"),
    "OLMoE": ("Olmoe", dict(GROUPS, **EXPERTS, norm_topk_prob=False),
              "experts by the softmax over all, norms of all queries and keys"),
    "Granite-MoE": ("GraniteMoe", dict(GROUPS, num_local_experts=6, num_experts_per_tok=2, embedding_multiplier=12.0,
                                       residual_multiplier=0.22, logits_scaling=6.0, attention_multiplier=0.3,
                                       tie_word_embeddings=True),
                    "all experts of a layer in one tensor, four multipliers, tied"),
    "GPT-OSS": ("GptOss", dict(GROUPS, num_local_experts=6, num_experts_per_tok=2, intermediate_size=40, head_dim=24,
                               sliding_window=7, rope_parameters=dict(YARN, rope_theta=150000.0, truncate=False)),
                "biases of experts and routers, sinks, alternating windows, YaRN without rounding"),
    "GPT-OSS, cut off": ("GptOss", dict(GROUPS, num_local_experts=4, num_experts_per_tok=3, intermediate_size=24,
                                        head_dim=16, sliding_window=5, swiglu_limit=0.7, attention_bias=False),
                         "gates and ups that are cut off, biases of experts alone"),
}
failures = 0


def expect(condition, *what):
    global failures
    if not condition:
        failures += 1
        print("FAILED", *what)
    return condition


def run(*arguments):
    result = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=300)
    good = result.returncode == 0 and "FAILED" not in result.stdout
    expect(good, *arguments, result.stderr[-800:], [x for x in result.stdout.splitlines() if "FAILED" in x])
    return result.stdout if good else None


def our_logits(path, tokens):
    out = run(PRINT_LOGITS, path, *tokens)
    return np.array([[float.fromhex(x) for x in line.split()] for line in out.splitlines()]) if out else None


def relative(ours, theirs):
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max()) if ours.shape == theirs.shape else np.inf


def random_model(config):
    """Everything random, norms and biases too, so that nothing can be mixed up unseen."""
    model = AutoModelForCausalLM.from_config(config, **PLAIN)
    offset = 0.0 if config.model_type.startswith(("gemma", "nemotron")) else 1.0
    for parameter in model.parameters():
        vector = parameter.dim() == 1
        parameter.data.normal_(0.0, 0.2 if vector else 0.12)
    for bias in choices_of(model).values():
        bias.normal_(0.0, 0.2)
    for name, parameter in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            parameter.data += offset
    return model.float().eval()


def greedy(model, prompt, count):
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens


# ---- training ---------------------------------------------------------------------------------------------


def loss_of(model, samples):
    logits = model(samples[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), samples[:, 1:].reshape(-1))


# What a name is in files where it is another one.
RENAMED = {"gpt_neox": {"lm_head.weight": "embed_out.weight"}, "mixtral": {".mlp.": ".block_sparse_moe."},
           "granitemoe": {".experts.gate_up_proj": ".input_linear.weight", ".experts.down_proj": ".output_linear.weight",
                          ".router.weight": ".router.layer.weight"}}


def name_in_files(model, name):
    for old, new in RENAMED.get(model.config.model_type, {}).items():
        name = name.replace(old, new)
    return name


def in_files(model, tensors):
    """Tensors by the names of parameters as files have them. transformers 5 holds all experts of a layer in one."""
    mixtral = model.config.model_type == "mixtral"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    found = {}
    for name, value in tensors.items():
        name = name_in_files(model, name)
        if model.config.model_type == "gpt_oss" or not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            found[name] = value
            continue
        stem = name.rsplit(".", 1)[0]
        for number, matrix in enumerate(value):
            if name.endswith(".down_proj"):
                found[f"{stem}.{number}.{down}.weight"] = matrix
                continue
            half = matrix.shape[0] // 2
            found[f"{stem}.{number}.{gate}.weight"], found[f"{stem}.{number}.{up}.weight"] = matrix[:half], matrix[half:]
    return found


def choices_of(model):
    """Biases by which experts are chosen: weights without gradients."""
    return {name: value for name, value in model.named_buffers() if name.endswith("e_score_correction_bias")}


def parameters_of(model):
    """Each once, with its name in files: a tied table under its first name."""
    return in_files(model, dict(model.named_parameters()) | choices_of(model))


def their_steps(model, samples):
    """Losses and norms of ten steps, gradients of the first, weights after the last."""
    model = model.double().train()
    named = dict(model.named_parameters())
    decayed = {n for n, p in named.items() if p.dim() > 1 and not n.endswith("_bias")}
    groups = [{"params": [p for n, p in named.items() if (n in decayed) == decays], "weight_decay": 0.1 if decays else 0.0}
              for decays in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses, gradients = [], None
    for _ in range(10):
        optimizer.zero_grad()
        loss = loss_of(model, samples)
        loss.backward()
        if gradients is None:
            gradients = in_files(model, {n: p.grad.detach().clone().numpy() for n, p in named.items()})
            gradients |= {n: np.zeros(b.shape) for n, b in choices_of(model).items()}
        norm = torch.nn.utils.clip_grad_norm_(named.values(), 1.0)
        losses.append((loss.item(), norm.item()))
        optimizer.step()
    return losses, gradients, in_files(model, {n: p.detach().numpy() for n, p in (named | choices_of(model)).items()})


def read_steps(text):
    lines = [line.split() for line in text.splitlines()]
    tokens = torch.tensor([[int(x) for x in line] for line in lines[:4]])
    return tokens, [tuple(float.fromhex(x) for x in line) for line in lines[4:]]


def check_tensors(what, file, theirs, most, least=0.0, moved=None):
    """Errors count relative to the largest value of a tensor, or to `least`. Elements whose gradients are 0 but for
    rounding, such as those of biases of keys, are left out: AdamW makes them steps like all others'."""
    ours = load_file(file)
    if not expect(ours.keys() == theirs.keys(), what, "names", ours.keys() ^ theirs.keys()):
        return np.inf
    errors = {}
    for name, value in theirs.items():
        if ours[name].shape == value.shape:
            error = np.abs(ours[name].astype(np.float64) - value)
            if moved:
                error = error * (np.abs(moved[name]) > 1e-6)
            errors[name] = float(error.max() / (max(np.abs(value).max(), least) or 1.0))
    worst = max(errors, key=errors.get)
    expect(len(errors) == len(theirs) and errors[worst] <= most, what, worst, "differs by", errors[worst])
    return errors[worst]


def check_training(name, model):
    state = {n: p.clone() for n, p in model.state_dict().items()}
    theirs, row = None, {}
    has_experts = any(".experts." in name for name in state)
    for grid in GRIDS + (EXPERT_GRIDS if has_experts else []):
        out = run(FAMILY_STEPS, name, f"{name}_out", *grid.split())
        if out is None:
            continue
        samples, ours = read_steps(out)
        theirs = theirs or their_steps(model, samples)
        losses, gradients, weights = theirs
        what = f"{name} on t p d {grid}:"
        seen = {"weights": check_tensors(what + " weight", f"{name}_out-weights.safetensors", weights, 3e-4, 1.0,
                                          gradients)}
        if "sharded" not in grid:
            file = f"{name}_out-gradients.safetensors"
            seen["gradients"] = check_tensors(what + " gradient", file, gradients, 1e-5)
        seen["losses"] = max(abs(o[0] - t[0]) / t[0] for o, t in zip(ours, losses))
        expect(len(ours) == 10 and seen["losses"] <= 1e-5, what, "losses", seen["losses"])
        norms = max(abs(o[1] - t[1]) / t[1] for o, t in zip(ours, losses))
        expect(norms <= 1e-4, what, "norms", norms)
        row = row or seen
    model.float().load_state_dict(state)
    model.eval()
    return row


# ---- files ------------------------------------------------------------------------------------------------


def files_of(folder):
    return {file: open(f"{folder}/{file}", "rb").read() for file in ("config.json", "model.safetensors")}


def check_files(name, model):
    """What transformers reads of an export, and that an import in between changes nothing."""
    run(TRIREME, "export", "--load", name, "--to", "hf", "--dtype", "f32", "--output", f"{name}_first")
    run(TRIREME, "import", f"{name}_first", "--save", f"{name}_save")
    run(TRIREME, "export", "--load", f"{name}_save", "--output", f"{name}_second")
    if not os.path.exists(f"{name}_first") or not os.path.exists(f"{name}_second"):
        return
    expect(files_of(f"{name}_first") == files_of(f"{name}_second"), name, "is another after an import")
    ours = json.load(open(f"{name}_first/config.json"))
    expect(ours["architectures"] == model.config.architectures, name, ours["architectures"])
    back = AutoModelForCausalLM.from_pretrained(f"{name}_first", **PLAIN)
    theirs, found = parameters_of(model), parameters_of(back)
    if expect(theirs.keys() == found.keys(), name, theirs.keys() ^ found.keys()):
        for key, value in theirs.items():
            expect(torch.equal(value, found[key]), name, key, "differs after an export")
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 60, 8, 9]])
    with torch.no_grad():
        same = torch.equal(model(tokens).logits, back(tokens).logits)
    expect(same, name, "transformers computes other logits after an export")


def check_gguf(name, model):
    """The names that gguf's own table has for the tensors of this family."""
    result = subprocess.run([TRIREME, "export", "--load", name, "--to", "gguf", "--dtype", "f32", "--output",
                             f"{name}.gguf"], capture_output=True, text=True, timeout=60)
    if result.returncode == 69 and "--to hf can hold it" in result.stderr:
        return None
    if not expect(result.returncode == 0, name, result.stderr):
        return None
    reader = gguf.GGUFReader(f"{name}.gguf")
    architecture = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    arch = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    # There all experts of a layer are one tensor, and gate and up two.
    keys = {re.sub(r"\.experts\.\d+\.", ".experts.", key) for key in parameters_of(model)}
    keys = {key.replace("block_sparse_moe.input_linear", f"mlp.experts.{half}")
            for key in keys for half in ("gate_proj", "up_proj")}
    # GPT-OSS's names of these have no suffixes.
    keys = {re.sub(r"(experts\.\w+_proj)_bias$", r"\1.bias", key.replace("experts.gate_up_proj", "experts." + half))
            for key in keys for half in ("gate_proj", "up_proj")}
    keys = {key if key.endswith((".weight", ".bias")) else key + ".weight" for key in keys}
    wanted = {names.get_name(key, try_suffixes=(".weight", ".bias")) for key in keys}
    found = {tensor.name for tensor in reader.tensors} - {
        "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
    expect(wanted == found, name, "names in GGUF", wanted ^ found)
    return architecture


# ---- all of a family --------------------------------------------------------------------------------------


def check(name, kind, options):
    config = getattr(transformers, kind + "Config")(**options)
    folder = name.replace(" ", "_").replace(",", "").lower()
    model = random_model(config)
    model.save_pretrained(folder)
    tokens = greedy(model, [3, 1, 4, 1, 5], 64)
    with torch.no_grad():
        theirs = model.double()(torch.tensor([tokens])).logits[0].numpy()
    model.float()
    ours = our_logits(folder, tokens)
    row = {"logits": relative(ours, theirs) if ours is not None else np.inf}
    expect(row["logits"] <= 1e-5, name, "logits differ by", row["logits"])
    if ours is not None:
        expect([int(x) for x in ours[4:-1].argmax(1)] == tokens[5:], name, "greedy text")
    row.update(check_training(folder, model))
    check_files(folder, model)
    row["gguf"] = check_gguf(folder, model)
    return row


def main():
    torch.manual_seed(1)
    transformers.utils.logging.disable_progress_bar()
    only, lines = os.environ.get("FAMILIES"), []
    for name, (kind, options, features) in FEATURES.items():
        if only and name not in only.split("|"):
            continue
        if not hasattr(transformers, kind + "Config"):
            print(f"skipped: this transformers has no {kind}")
            continue
        row = check(name, kind, options)
        numbers = [f"{row.get(key, np.inf):.0e}" for key in ("logits", "gradients", "losses")]
        lines.append(f"| {name} | {features} | {' | '.join(numbers)} | {row['gguf'] or '-'} |")
        print(lines[-1], flush=True)
    if TABLE:
        with open(TABLE, "w") as table:
            table.write("\n".join(lines) + "\n")
    return 1 if failures else 0


sys.exit(main())
