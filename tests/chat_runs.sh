#!/usr/bin/env bash
# Conversations from end to end: a base model is trained on them, answers with the template that it was trained with, ends its
# turns, and is exported with both.
# Usage: chat_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"

run() { "$trireme" "$@" >run.log 2>&1 || complain "$*: $(tail -3 run.log)"; }
refused() {
    local code=$1 words=$2 status
    shift 2
    timeout -k 5 180 "$trireme" "$@" >refused.log 2>&1 </dev/null
    status=$?
    [[ $status == "$code" ]] || complain "$*: exit $status, not $code: $(tail -3 refused.log)"
    grep -qF -e "$words" refused.log || complain "$*: '$words' is not in $(tail -3 refused.log)"
}

# A base model whose texts end with another token, 397, than the turns of its template, 399.
answers=("the oars" "three banks" "a galley")
questions=("what moves it?" "how many?" "what is it?")
for i in 0 1 2; do
    for j in 0 1 2; do
        printf '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "%s"}, ' \
            "${questions[i]}" "${answers[i]}"
        printf '{"role": "user", "content": "%s"}, {"role": "assistant", "content": "%s"}]}\n' "${questions[j]}" "${answers[j]}"
    done
done >chats.jsonl
template="{% for m in messages %}<|im_start|>{{ m['role'] }}{{ '\n' + m['content'] }}<|im_end|>{{ '\n' }}{% endfor %}"
template+="{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"
base() {
    run preprocess --input documents.jsonl --output-prefix plain --vocab-size 398
    mkdir markers
    sed 's/"added_tokens": \[\]/"added_tokens": [{"id": 398, "content": "<|im_start|>", "special": true}, {"id": 399, "content": "<|im_end|>", "special": true}]/' \
        plain.tokenizer.json >markers/tokenizer.json
    run preprocess --input documents.jsonl --output-prefix marked --tokenizer-model markers --append-eod
    train random "${no_evaluation[@]}" --data-path marked --seq-length 160 --hidden-size 64 --num-layers 2 --swiglu \
        --disable-bias-linear --normalization RMSNorm --position-embedding-type rope --train-iters 1 --save random
    run export --load random --output base
}
# tune NAME OPTION...: a model of this name, trained on the conversations.
tune() {
    local name=$1
    shift
    run prepare-chat --input chats.jsonl --tokenizer-model base --seq-length 160 --output-prefix "$name-data" --no-pack "$@"
    run train --load base --finetune --sft --data-path "$name-data" --seq-length 160 --micro-batch-size 9 --global-batch-size 9 \
        --train-iters 150 --lr 5e-3 --split 100,0,0 --eval-iters 0 --save "$name"
}
tuned() {
    need base
    echo "$template" >chat.jinja
    tune alpaca --chat-template alpaca
}
said() { [[ $(cat "$1") == "$2" ]] || complain "$1: $(cat "$1")"; }
asked() { printf '%s\n' "${questions[0]}" "" "${questions[2]}"; }

if check "a tuned model answers line by line, with the template that it was trained with"; then
    need tuned
    wanted="${answers[0]}"$'\n'"${answers[2]}"
    asked | "$trireme" generate --load alpaca --chat --temperature 0 >answers 2>errors
    said answers "$wanted"
    grep -q "^2 answers, " errors || complain "$(cat errors)"
    asked | "$trireme" generate --load alpaca --chat --temperature 0 --no-kv-cache >uncached 2>errors
    said uncached "$wanted"
    asked | "$trireme" generate --load alpaca --chat --temperature 0 --ranks 2 --tp 2 >ranks 2>errors
    said ranks "$wanted"
    printf '%s' "${questions[1]}" | "$trireme" generate --load alpaca --chat --temperature 0 >last 2>errors
    said last "${answers[1]}"
    run export --load alpaca --output exported
    "$trireme" generate --load alpaca --chat --temperature 0 --prompt "${questions[1]}" >one 2>errors
    cmp -s last one || complain "--prompt: $(diff last one | head -3) $(tail -2 errors)"
    asked | "$trireme" generate --load exported --chat --temperature 0 >theirs 2>errors
    said theirs "$wanted"
    grep -q "{% if true %}" exported/chat_template.jinja || complain "the template still has marks"
    ! grep -q endgeneration exported/chat_template.jinja || complain "$(cat exported/chat_template.jinja)"
fi
if check "what is longer than the window loses its beginning, and a message that is longer is left out"; then
    need tuned
    for _ in 1 2 3 4 5 6; do asked; done | "$trireme" generate --load alpaca --chat --temperature 0 >long 2>errors ||
        complain "exit $?"
    grep -q "its oldest . questions are forgotten" errors || complain "$(cat errors)"
    [[ $(tail -1 long) == "${answers[2]}" ]] || complain "$(cat long)"
    yes word | head -200 | tr '\n' ' ' >message
    too_long="the message has .* tokens with its template, but the model sees 160"
    for ranks in 1 2; do
        { asked && cat message && echo && asked; } | "$trireme" generate --load alpaca --chat --temperature 0 --ranks $ranks --tp $ranks \
            >long 2>errors || complain "a long message: exit $?"
        said long "${answers[0]}"$'\n'"${answers[2]}"$'\n'"${answers[0]}"$'\n'"${answers[2]}"
        [[ $(grep -c "$too_long: it is left out" errors) == 1 ]] || complain "$(cat errors)"
    done
    # What was said before it is not forgotten for its sake.
    { echo "${questions[0]}" && cat message; } | "$trireme" generate --load alpaca --chat --temperature 0 >long 2>errors
    ! grep -q forgotten errors || complain "$(cat errors)"
    "$trireme" generate --load alpaca --chat --prompt "$(cat message)" >long 2>errors
    status=$?
    [[ $status == 78 ]] || complain "a long message of --prompt: exit $status"
    grep -q "$too_long: shorten it" errors || complain "$(cat errors)"
    "$trireme" generate --load random --chat --chat-template alpaca --temperature 0 --prompt x >one 2>errors || complain "exit $?"
    grep -q "the answer is cut: the window of 160 tokens is full" errors || complain "$(cat errors)"
fi
if check "a system message, and options that contradict each other"; then
    need tuned
    refused 78 "leave out --prompt" generate --load alpaca --chat --prompt -
    refused 78 "add --chat" generate --load alpaca --system x
    refused 78 "leave out --num-samples" generate --load alpaca --chat --num-samples 2
    refused 78 "this tokenizer has no chat template" generate --load random --chat
    refused 78 "has no token <|start_header_id|>" generate --load random --chat --chat-template llama3
    "$trireme" generate --load alpaca --chat --system "$(yes word | head -200 | tr '\n' ' ')" <<<"x" >long 2>errors
    status=$?
    [[ $status == 78 ]] || complain "a long system message: exit $status"
    grep -q "the system message alone has .* tokens" errors || complain "$(cat errors)"
fi
if check "an input that cannot be read ends the chat"; then
    need tuned
    timeout -k 5 20 "$trireme" generate --load alpaca --chat </ >answers 2>errors
    status=$?
    [[ $status == 74 ]] || complain "a folder: exit $status"
    grep -q "standard input: a read failed: Is a directory" errors || complain "$(cat errors)"
fi

# ---- the end of a turn --------------------------------------------------------------------------------------
if check "a base model learns the end of a turn, and ends there everywhere"; then
    need base
    echo "$template" >base/chat_template.jinja
    tune turns
    grep -q '"eos_token_id": \[397, 399\]' turns/step-*/generation_config.json || complain "$(cat turns/step-*/generation_config.json)"
    asked | "$trireme" generate --load turns --chat --temperature 0 >answers 2>errors
    said answers "${answers[0]}"$'\n'"${answers[2]}"
    "$trireme" generate --load turns --temperature 0 --prompt "<|im_start|>user
${questions[1]}<|im_end|>
<|im_start|>assistant
" >text 2>errors
    said text "${answers[1]}"
    grep -q "ended by the end token" errors || complain "$(cat errors)"
    run export --load turns --output turns-hf
    cmp -s base/chat_template.jinja turns-hf/chat_template.jinja || complain "the chat template is another"
    grep -q '"eos_token_id": \[397, 399\]' turns-hf/generation_config.json || complain "$(cat turns-hf/generation_config.json)"
    # A file that is there keeps its other bytes.
    printf '{"do_sample": true,\n "eos_token_id": 397, "top_p": 0.9}\n' >base/generation_config.json
    run train --load base --finetune --sft --data-path turns-data --seq-length 160 --micro-batch-size 9 --global-batch-size 9 \
        --train-iters 1 --lr 5e-3 --split 100,0,0 --eval-iters 0 --save kept
    printf '{"do_sample": true,\n "eos_token_id": [397, 399], "top_p": 0.9}\n' | cmp -s - kept/step-00000001/generation_config.json ||
        complain "$(cat kept/step-00000001/generation_config.json)"
    run train --load kept --finetune --sft --data-path turns-data --seq-length 160 --micro-batch-size 9 --global-batch-size 9 \
        --train-iters 1 --lr 5e-3 --split 100,0,0 --eval-iters 0 --save again
    cmp -s kept/step-00000001/generation_config.json again/step-00000001/generation_config.json || complain "it is added again"
fi
finish
