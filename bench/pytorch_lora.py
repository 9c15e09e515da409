"""The training rate of adapters (LoRA) beside a model of 1.1 billion parameters, in bf16: trireme and PyTorch with PEFT in turn.

Usage: pytorch_lora.py PATH/trireme [--rounds N] [--rank R] [--seq S] [--threads T] [--steps K] [--folder FOLDER]

FOLDER (build/lora) receives a Llama of TinyLlama's sizes with random weights, 2.2 GB. Both train adapters of all linear layers on one
sequence a step, with AdamW. PyTorch reads the model in bf16, has scaled_dot_product_attention, PEFT's defaults and AdamW(fused=True).
Each round runs one after the other. Of each: seconds of a step by the clock (the median) and of the processors (of all steps but
the first, without reading the model), tokens per second, the largest resident memory. Last the medians of the rounds' ratios.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trireme")
    p.add_argument("--folder", default="build/lora")
    p.add_argument("--part", choices=["model", "pytorch"])
    for name, value in [("rounds", 3), ("rank", 16), ("seq", 1024), ("threads", 2), ("steps", 3)]:
        p.add_argument("--" + name, type=int, default=value)
    return p.parse_args()


def make_model(a):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
                         num_key_value_heads=4, max_position_embeddings=2048)
    LlamaForCausalLM(config).save_pretrained(a.folder + ".new")
    os.rename(a.folder + ".new", a.folder)


def pytorch(a):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    torch.manual_seed(1)
    torch.set_num_threads(a.threads)
    model = AutoModelForCausalLM.from_pretrained(a.folder, dtype=torch.bfloat16, attn_implementation="sdpa")
    model = get_peft_model(model, LoraConfig(r=a.rank, lora_alpha=a.rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.config.use_cache = False
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    wall, cpu = [], []
    for _ in range(a.steps + 1):
        tokens = torch.randint(model.config.vocab_size, (1, a.seq))
        start, used = time.perf_counter(), time.process_time()
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    print(json.dumps({"step_s": statistics.median(wall[1:]), "cpu_s": statistics.mean(cpu[1:]),
                      "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}))


def run(words):
    """Its output, with the processors' seconds and the largest resident memory in GB."""
    job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = job.stdout.read(), job.stderr.read()
    _, status, usage = os.wait4(job.pid, 0)
    job.returncode = os.waitstatus_to_exitcode(status)
    if job.returncode:
        sys.exit(f"{' '.join(words)}: exit {job.returncode}\n{out[-2000:]}{err[-2000:]}")
    return out, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6


def ours(a, steps):
    metrics = a.folder + "/metrics.jsonl"
    if os.path.exists(metrics):  # a run appends to it
        os.remove(metrics)
    _, cpu, peak = run([a.trireme, "train", "--load", a.folder, "--finetune", "--mock-data", "--vocab-size", "32000", "--seq-length",
                        str(a.seq), "--micro-batch-size", "1", "--global-batch-size", "1", "--train-iters", str(steps), "--lr", "1e-4",
                        "--eval-iters", "0", "--bf16", "--lora-rank", str(a.rank), "--threads", str(a.threads), "--metrics", metrics])
    with open(metrics) as file:
        rows = [json.loads(line) for line in file]
    return [row["elapsed_ms"] / 1000 for row in rows if "elapsed_ms" in row], cpu, peak


def print_row(name, a, row):
    print(f"  {name:8} {row['step_s']:8.2f} s a step, {row['cpu_s']:6.2f} s of processors, {a.seq / row['step_s']:7.1f} tokens/s, "
          f"peak {row['peak_gb']:.2f} GB", flush=True)


def main():
    a = options()
    if a.part:
        return make_model(a) if a.part == "model" else pytorch(a)
    if not os.path.exists(a.folder + "/config.json"):
        run([sys.executable, __file__, *sys.argv[1:], "--part", "model"])
    ratios = []
    _, start_cpu, _ = ours(a, 1)
    for _ in range(a.rounds):
        steps, cpu, peak = ours(a, a.steps + 1)
        mine = {"step_s": statistics.median(steps[1:]), "cpu_s": (cpu - start_cpu) / a.steps, "peak_gb": peak}
        print_row("trireme", a, mine)
        out, _, _ = run([sys.executable, __file__, *sys.argv[1:], "--part", "pytorch"])
        theirs = json.loads(out.strip().splitlines()[-1])
        print_row("pytorch", a, theirs)
        ratios.append((theirs["step_s"] / mine["step_s"], theirs["cpu_s"] / mine["cpu_s"]))
    by_clock, by_processors = (statistics.median(r) for r in zip(*ratios))
    print(f"trireme trains at {by_clock:.2f} times PyTorch's rate by the clock, {by_processors:.2f} times by seconds of processors")


main()
