"""`trireme evaluate --task` against a short evaluation by transformers, and against lm-evaluation-harness where it is
installed.

Usage: tasks.py TRIREME   (tests/ecosystem.sh sets up the rest; works in the current folder)

For a GPT-2 and a Llama whose tokenizer begins every text with a token, of random weights: 50 questions with choices, 50
continuations, 50 texts and 50 prompts, in the shapes of our own and in those of `lm_eval --log_samples`. Every
log-likelihood and answer is compared, and every metric with its standard error, on one rank and on four.
"""
import json
import math
import os
import random
import re
import subprocess
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedTokenizerFast

TRIREME = sys.argv[1]
ITEMS, VOCABULARY, POSITIONS, NEW_TOKENS = 50, 400, 64, 12
WORDS = ("the rower pulls bänke Ruder oars 3 ships 17 of Athens, and in time: Zürich no one knows; why? it is so. A "
         "harbour (old) — quite new — Ägina has walls").split()
UNTIL = ["s", "\n\n", "of"]
draw = random.Random(7)
failures = 0


def expect(condition, *what):
    global failures
    if not condition:
        failures += 1
        print("FAILED", *what)


def words(low, high):
    """Not a number alone: the harness's templates would make one of it."""
    return " ".join([draw.choice(WORDS[:5])] + [draw.choice(WORDS) for _ in range(draw.randint(low, high) - 1)])


# ---- models and data sets ------------------------------------------------------------------------------------------

def make_tokenizer(folder, begins):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>"] if begins else ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>" if begins else None,
                                   eos_token=special[-1])
    fast.save_pretrained(folder)
    return fast


def make_model(folder, config):
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for parameter in model.parameters():
        parameter.data.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2)
    model.save_pretrained(folder)
    return model


def make_questions():
    for i in range(ITEMS):
        yield {"context": words(1, 60 if i % 5 == 0 else 14), "choices": [words(1, 4) for _ in range(2 + i % 3)],
               "gold": i % 2}


def make_files():
    data = {"choice": list(make_questions()),
            "last_word": [{"context": words(1, 12), "continuation": " " + words(1, 1)} for _ in range(ITEMS)],
            "text": [{"text": words(1, 150 if i % 7 == 0 else 20)} for i in range(ITEMS)],
            "until": [{"prompt": words(1, 40 if i % 9 == 0 else 9), "until": UNTIL, "max_new_tokens": NEW_TOKENS}
                      for i in range(ITEMS)]}
    data["text"][3]["text"] = " two  blanks\n\nand an end\t "
    return data


def write_lines(path, lines):
    with open(path, "w", encoding="utf-8") as f:
        for line in lines:
            f.write(json.dumps(line, ensure_ascii=False) + "\n")


# ---- the short evaluation ------------------------------------------------------------------------------------------

class Reference:
    """What lm-evaluation-harness does, a row at a time."""

    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model, tokenizer
        self.start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id

    def log_probabilities(self, tokens):
        with torch.no_grad():
            return torch.log_softmax(self.model(torch.tensor([tokens])).logits[0].double(), -1)

    def score(self, tokens, scored):
        """The log-likelihood of the last tokens, and whether each is the most likely one."""
        tokens = tokens[-(POSITIONS + 1):]
        p = self.log_probabilities(tokens[:-1])[-scored:]
        labels = torch.tensor(tokens[-scored:])
        return p.gather(1, labels[:, None]).sum().item(), bool((p.argmax(-1) == labels).all())

    def continuation(self, context, continuation):
        alone, whole = self.tokenizer.encode(context), self.tokenizer.encode(context + continuation)
        return self.score(alone + whole[len(alone):], len(whole) - len(alone))

    def text(self, text):
        tokens, total = [self.start] + self.tokenizer.encode(text), 0.0
        for first in range(1, len(tokens), POSITIONS):
            end = min(first + POSITIONS, len(tokens))
            total += self.score(tokens[:end], end - first)[0]
        return total

    def answer(self, prompt, until, new_tokens):
        tokens, new = self.tokenizer.encode(prompt)[-(POSITIONS - new_tokens):], []
        while len(new) < new_tokens:
            token = self.log_probabilities(tokens + new)[-1].argmax().item()
            if token == self.tokenizer.eos_token_id:
                break
            new.append(token)
        text = self.tokenizer.decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return min((text.split(stop)[0] for stop in until), key=len)


def mean(values):
    average = sum(values) / len(values)
    return average, math.sqrt(sum((v - average) ** 2 for v in values) / (len(values) - 1) / len(values))


def choice_metrics(data, scores):
    for metric, length in (("acc", lambda c: 1), ("acc_norm", len), ("acc_bytes", lambda c: len(c.encode()))):
        right = []
        for item, lls in zip(data, scores):
            normed = [ll / length(c) for (ll, _), c in zip(lls, item["choices"])]
            right.append(float(normed.index(max(normed)) == item["gold"]))
        yield metric, *mean(right)


def text_metrics(data, scores):
    total = sum(scores)
    num_words = sum(len(re.split(r"\s+", item["text"])) for item in data)
    num_bytes = sum(len(item["text"].encode()) for item in data)
    yield "word_perplexity", math.exp(-total / num_words), None
    yield "byte_perplexity", math.exp(-total / num_bytes), None
    yield "bits_per_byte", -total / num_bytes / math.log(2), None


def last_word_metrics(scores):
    yield "acc", *mean([float(greedy) for _, greedy in scores])
    average, error = mean([ll for ll, _ in scores])
    yield "perplexity", math.exp(-average), math.exp(-average) * error


def filtered(text):
    """--filter first=... ignore-case"""
    found = re.findall(FILTER, text)
    return ([g for g in found[0] if g][0].strip() if found and any(found[0]) else "[invalid]").lower()


FILTER = r"^ ?(\w+)|([0-9]+)"


# ---- trireme -------------------------------------------------------------------------------------------------------

def evaluate(model, name, files, *options):
    if os.path.exists(f"{name}.jsonl"):
        os.remove(f"{name}.jsonl")
    tasks = [word for file in files for word in ("--task", file)]
    result = subprocess.run([TRIREME, "evaluate", "--load", model, *tasks, "--json", "--output", f"{name}.jsonl",
                             *options], capture_output=True, text=True, timeout=300)
    expect(result.returncode == 0, name, *files, result.stderr[-800:])
    if result.returncode:
        sys.exit(1)
    table = {}
    for row in json.loads(result.stdout)["results"]:
        expect(row["n"] == ITEMS, name, row)
        table[row["task"], row["metric"]] = row["value"], row["stderr"]
    items = {}
    for line in open(f"{name}.jsonl", encoding="utf-8"):
        line = json.loads(line)
        items.setdefault(line["task"], []).append(line)
    return table, items


def close(a, b, most):
    return (a is None) == (b is None) and (a is None or abs(a - b) <= most * max(1.0, abs(b)))


def expect_table(name, table, task, metrics, most=1e-5):
    for metric, value, error in metrics:
        ours = table.get((task, metric), (math.nan, math.nan))
        expect(close(ours[0], value, most), name, task, metric, ours, value)
        expect(close(ours[1], error, most), name, task, metric, "stderr", ours, error)


def expect_items(name, items, expected):
    for line, (scores, item) in enumerate(zip(expected["choice"], items["choice"])):
        for ours, (theirs, _) in zip(item["log_likelihoods"], scores):
            expect(close(ours, theirs, 1e-5), name, "choice", line, ours, theirs)
    for line, ((theirs, greedy), item) in enumerate(zip(expected["last_word"], items["last_word"])):
        expect(close(item["log_likelihood"], theirs, 1e-5), name, "last_word", line, item, theirs)
        expect(item["is_greedy"] == greedy, name, "last_word", line, item, greedy)
    for line, (theirs, item) in enumerate(zip(expected["text"], items["text"])):
        expect(close(item["log_likelihood"], theirs, 1e-5), name, "text", line, item, theirs)
    for line, (theirs, item) in enumerate(zip(expected["until"], items["until"])):
        expect(item["answer"] == theirs, name, "until", line, item, theirs)


# ---- lm-evaluation-harness -----------------------------------------------------------------------------------------

YAML = {
    "choice": """output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}]
""",
    "last_word": """output_type: loglikelihood
doc_to_text: "{{context}}"
doc_to_target: "{{continuation}}"
target_delimiter: ""
metric_list: [{metric: acc}, {metric: perplexity}]
""",
    "text": """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
    "until": """output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{target}}"
generation_kwargs: {until: %s, max_gen_toks: %d, do_sample: false}
filter_list:
  - {name: raw, filter: [{function: take_first}]}
  - {name: word, filter: [{function: regex, regex_pattern: '%s'}, {function: take_first}]}
metric_list: [{metric: exact_match, aggregation: mean, ignore_case: true}]
""" % (json.dumps(UNTIL), NEW_TOKENS, FILTER),
}


def run_lm_eval(model):
    """Its results, and its samples as it writes them: {task: path}."""
    os.environ.update(HF_DATASETS_OFFLINE="1", HF_HOME=os.path.abspath("hf"))
    import lm_eval
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    os.makedirs("yaml", exist_ok=True)
    for task, text in YAML.items():
        with open(f"yaml/{task}.yaml", "w") as f:
            f.write(f"task: {task}\ndataset_path: json\ntest_split: test\ndataset_kwargs:\n  data_files:\n    test: "
                    f"{os.path.abspath(task)}.jsonl\n{text}")
    lm = HFLM(pretrained=model, tokenizer=model, device="cpu", dtype="float32", batch_size=4, max_length=POSITIONS)
    results = lm_eval.simple_evaluate(model=lm, tasks=list(YAML), task_manager=TaskManager(include_path="yaml"),
                                      log_samples=True, bootstrap_iters=1000)
    tracker = EvaluationTracker(output_path=f"samples-{model}")
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for task in YAML:
        tracker.save_results_samples(task_name=task, samples=samples[task])
    paths = {}
    for folder, _, names in os.walk(f"samples-{model}"):
        for name in names:
            if name.startswith("samples_"):
                paths[next(task for task in YAML if name.startswith(f"samples_{task}_"))] = os.path.join(folder, name)
    return results["results"], paths


def compare_lm_eval(model):
    theirs, paths = run_lm_eval(model)
    expect(len(paths) == len(YAML), "samples", paths)
    for name, files, options, which in (
            ("own", [f"{task}.jsonl" for task in YAML], ["--filter", "ignore-case"], "raw"),
            ("samples", paths.values(), ["--filter", "ignore-case"], "raw"),
            ("samples, filtered", paths.values(), ["--filter", "first=" + FILTER, "ignore-case"], "word")):
        table, _ = evaluate(model, "lm_eval", files, *options)
        for (task, metric), (value, error) in table.items():
            key = f"{metric},{which if task == 'until' else 'none'}"
            expect(close(value, theirs[task][key], 1e-5), name, task, metric, value, theirs[task])
            their_error = theirs[task][f"{metric}_stderr,{key.split(',')[1]}"]
            # The harness draws the error of a perplexity; ours is a formula.
            expect(close(error, their_error if isinstance(their_error, float) else None,
                         0.2 if metric == "perplexity" else 1e-5), name, task, metric, "stderr", error, their_error)


def has_lm_eval():
    try:
        import lm_eval  # noqa: F401
        return True
    except ImportError:
        print("lm_eval is not installed here: only transformers was compared", file=sys.stderr)
        return False


def main():
    sizes = dict(bos_token_id=0, eos_token_id=0)
    families = {
        "gpt2": (False, GPT2Config(n_embd=48, n_layer=2, n_head=4, n_positions=POSITIONS, **sizes)),
        "llama": (True, LlamaConfig(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
                                    num_key_value_heads=2, max_position_embeddings=POSITIONS,
                                    **dict(sizes, eos_token_id=1))),
    }
    data = make_files()
    for family, (begins, config) in families.items():
        tokenizer = make_tokenizer(family, begins)
        config.vocab_size = len(tokenizer)  # a token without a text would be generated by the others alone
        reference = Reference(make_model(family, config), tokenizer)
        expected = {
            "choice": [[reference.continuation(i["context"], " " + c) for c in i["choices"]] for i in data["choice"]],
            "last_word": [reference.continuation(i["context"], i["continuation"]) for i in data["last_word"]],
            "text": [reference.text(i["text"]) for i in data["text"]],
            "until": [reference.answer(i["prompt"], UNTIL, NEW_TOKENS) for i in data["until"]]}
        # Half of the answers are right, some of these but for capitals.
        for i, (item, answer) in enumerate(zip(data["until"], expected["until"])):
            item["target"] = "no" if "\0" in answer else answer if i % 4 == 0 else answer.upper() if i % 4 == 1 else filtered(answer) \
                if i % 4 == 2 else "no"
        for task, lines in data.items():
            write_lines(f"{task}.jsonl", lines)
        files = [f"{task}.jsonl" for task in data]
        for grid in ((), ("--tp", "2", "--pp", "2", "--ranks", "4", "--mbs", "3")):
            name = " ".join([family, *grid])
            table, items = evaluate(family, "ours", files, *grid)
            expect_items(name, items, expected)
            expect_table(name, table, "choice", choice_metrics(data["choice"], expected["choice"]))
            expect_table(name, table, "last_word", last_word_metrics(expected["last_word"]))
            expect_table(name, table, "text", text_metrics(data["text"], expected["text"]))
            right = [float(a == i["target"]) for a, i in zip(expected["until"], data["until"])]
            expect_table(name, table, "until", [("exact_match", *mean(right))])
            expect(0 < sum(right) < ITEMS, name, "every answer is right or wrong alike")
        table, _ = evaluate(family, "ours", files, "--filter", "first=" + FILTER, "ignore-case")
        right = [float(filtered(a) == i["target"].lower()) for a, i in zip(expected["until"], data["until"])]
        expect_table(family + " filtered", table, "until", [("exact_match", *mean(right))])
        if has_lm_eval():
            compare_lm_eval(family)
    sys.exit(failures > 0)


main()
