"""Models whose experts are in MXFP4: the numbers that trireme reads are those of transformers and of gguf, bit by bit.

Usage: mxfp4.py TRIREME   (tests/mxfp4.sh sets up the rest; works in the current folder)
"""
import json
import os
import subprocess
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import GraniteMoeConfig, GraniteMoeForCausalLM
from transformers.utils import logging
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

TRIREME = sys.argv[1]
MXFP4 = gguf.GGMLQuantizationType.MXFP4
failures = 0
logging.disable_progress_bar()


def expect(condition, *what):
    global failures
    if not condition:
        failures += 1
        print("FAILED", *what)


def export(source, to, output, dtype, *told):
    command = [TRIREME, "export", "--load", source, "--to", to, "--output", output, "--dtype", dtype]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    expect(result.returncode == 0, *command, result.stderr[-500:])
    for words in told:
        expect(words in result.stderr, words, "is not in", result.stderr)


def plain_model(folder):
    """All experts of a layer are one tensor, as in GPT-OSS."""
    config = GraniteMoeConfig(vocab_size=67, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=48,
                              num_local_experts=3, num_experts_per_tok=2)
    GraniteMoeForCausalLM(config).save_pretrained(folder)


def packed_model(plain, folder):
    """Random codes, and scales of all sizes that sums of weights can have."""
    tensors, dense, generator = load_file(f"{plain}/model.safetensors"), {}, torch.Generator().manual_seed(5)
    for name in [name for name in tensors if tensors[name].ndim == 3]:
        experts, rows, cols = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, rows, cols // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(1, 160, (experts, rows, cols // 32), dtype=torch.uint8, generator=generator)
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
        dense[name] = {dtype: convert_moe_packed_tensors(blocks, scales, dtype=dtype).transpose(1, 2)
                       for dtype in (torch.float32, torch.bfloat16)}
    os.mkdir(folder)
    save_file(tensors, f"{folder}/model.safetensors", {"format": "pt"})
    with open(f"{plain}/config.json") as file:
        config = json.load(file)
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    with open(f"{folder}/config.json", "w") as file:
        json.dump(config, file)
    return dense


def check_folder(folder, dense):
    expect(len(dense) == 4, "tensors of experts:", *dense)
    for dtype, word in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        export(folder, "hf", word, word, "4 tensors are in MXFP4")
        found = load_file(f"{word}/model.safetensors")
        for name, wanted in dense.items():
            expect(found[name].dtype == dtype and torch.equal(found[name], wanted[dtype]), word, name)


def packed_gguf(plain, path):
    """A copy of a GGUF file with its experts in MXFP4. Returns them as gguf reads them."""
    reader, dense = gguf.GGUFReader(plain), {}
    writer = gguf.GGUFWriter(path, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type)
    for tensor in reader.tensors:
        if "_exps." not in tensor.name:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        data = gguf.quants.quantize(np.asarray(tensor.data, dtype=np.float32), MXFP4)
        dense[tensor.name] = gguf.quants.dequantize(data, MXFP4)
        writer.add_tensor(tensor.name, data, raw_dtype=MXFP4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dense


def check_gguf(path, dense):
    export(path, "hf", "unpacked", "f32")
    found = load_file("unpacked/model.safetensors")
    for layer in range(2):
        part = {kind: dense[f"blk.{layer}.ffn_{kind}_exps.weight"] for kind in ("gate", "up", "down")}
        moe = f"model.layers.{layer}.block_sparse_moe"
        both = np.concatenate([part["gate"], part["up"]], axis=1)
        expect(np.array_equal(found[f"{moe}.input_linear.weight"].numpy(), both), moe, "input_linear")
        expect(np.array_equal(found[f"{moe}.output_linear.weight"].numpy(), part["down"]), moe, "output_linear")
        expect(len(np.unique(both)) > 20 and np.abs(both).max() > 0, moe, "is nearly constant")


plain_model("plain")
check_folder("packed", packed_model("plain", "packed"))
export("plain", "gguf", "plain.gguf", "f32")
check_gguf("packed.gguf", packed_gguf("plain.gguf", "packed.gguf"))
sys.exit(failures > 0)
