#!/usr/bin/env bash
# Plans as people ask for them: the shape of an answer, flags that a run takes, one object of JSON, measured
# rows and calibration, and what is said about every kind of wrong input.
# Usage: plan_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/cases.sh
source "${BASH_SOURCE%/*}/cases.sh" "$@"

# answer NAME OPTION...: leaves NAME.out.
answer() {
    local name=$1
    shift
    timeout -k 5 180 "$trireme" plan "$@" >"$name.out" 2>"$name.err" </dev/null ||
        complain "plan $*: exit $?: $(tail -3 "$name.err")"
}

# says NAME WORDS: they are in the answer, wherever its lines are broken.
says() { tr '\n' ' ' <"$1.out" | grep -qF -e "$2" || complain "$1: no '$2' in $(head -40 "$1.out")"; }

# refused CODE WORDS OPTION...: ends with the code, says the words on one line, and prints nothing else.
refused() {
    local code=$1 words=$2 status
    shift 2
    timeout -k 5 180 "$trireme" plan "$@" >refused.out 2>refused.err </dev/null
    status=$?
    [[ $status == "$code" ]] || complain "plan $*: exit $status, not $code: $(cat refused.err)"
    grep -qF -e "$words" refused.err || complain "plan $*: no '$words' in: $(cat refused.err)"
    [[ $(wc -l <refused.err) == 1 ]] || complain "plan $*: more than a line: $(cat refused.err)"
    [[ ! -s refused.out ]] || complain "plan $*: printed $(head -3 refused.out)"
}

# number NAME KEY: of the chosen configuration, from JSON of one member a line.
number() { tr "{" "," <"$1.out" | tr "," "\n" | sed -n "s|^ *\"$2\": ||p" | head -1; }
# close A B SHARE: the numbers differ by less.
close() { awk -v a="$1" -v b="$2" -v s="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a > 0 && d <= s * b) }'; }

question=(--model gpt3-175b --gpus 1024 --machine dgx-a100 --global-batch-size 1536)

# ---- answers ---------------------------------------------------------------------------------------------
answer_best() { answer best "${question[@]}" --tokens 300B --price 2.10; }
if check "an answer has all its parts"; then
    need answer_best
    for words in "gpt3-175b (175 B parameters) on 1024 GPUs of dgx-a100" "TFLOP/s per GPU" "tokens take" "and cost" \
        "trireme train" "pretrain_gpt.py" "Korthikanti 2022" "Where the time goes" "Memory, in GB" "The fastest 5" \
        "Why it wins" "break a rule" "do not fit" "cannot be faster" "How far to trust it"; do
        says best "$words"
    done
fi
if check "two answers to one question are the same"; then
    need answer_best
    answer again "${question[@]}" --tokens 300B --price 2.10
    cmp -s best.out again.out || complain "two answers to one question differ"
fi
if check "--top says how many configurations are shown"; then
    answer more "${question[@]}" --top 12
    [[ $(grep -c '1f1b\b.*[0-9]$\|interleaved .*[0-9]$' more.out) == 12 ]] || complain "no 12 rows: $(cat more.out)"
fi

if check "slow nodes have a price, a place, and a layout that a run takes"; then
    slow=("${question[@]}" --tp 8 --pp 16 --vp 2 --micro-batch-size 1 --sequence-parallel --use-distributed-optimizer)
    answer slow "${slow[@]}" --slow-nodes 4:compute=1.3 --json
    answer even "${slow[@]}" --json
    close "$(number slow even_s)" "$(number even step_s)" 1e-9 || complain "even: $(number slow even_s) s, $(number even step_s)"
    awk -v e="$(number slow even_s)" -v s="$(number slow step_s)" -v w="$(number slow worst_s)" -v l="$(number slow spared_s)" \
        'BEGIN { exit !(e < l && l < s && s < w && w < 1.31 * e) }' || complain "$(tr ',' '\n' <slow.out | grep _s)"
    answer said "${slow[@]}" --slow-nodes 4:compute=1.3
    says said "Slow nodes: 4, computing takes 1.3 times as long"
    layout=$(sed -n 's/^ *--pipeline-model-parallel-layout "\(.*\)"$/\1/p' said.out)
    timeout 60 "$trireme" train --num-layers 96 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 128 \
        --tokenizer-type NullTokenizer --mock-data --micro-batch-size 1 --global-batch-size 16 --train-iters 1 --lr 1e-3 --ranks 16 \
        --pipeline-model-parallel-size 16 --pipeline-model-parallel-layout "$layout" --dry-run >layout.log 2>&1 ||
        complain "layout '$layout': $(tail -3 layout.log)"
fi

# The lowest bounds are of other places: only replays of all find it.
if check "the best place of slow nodes is the best"; then
    answer placed "${question[@]}" --tp 8 --pp 16 --mbs 1 --schedule zb-v --slow-nodes 4:compute=1.3
    says placed "%: pipeline rank 15 of 16, from node 120 on (counted from 0)"
    says placed "no other cut of the layers was tried"
fi

# Both kinds by themselves, of rows to which no constant was fitted: 12 rows of ZB-1p, 12 of ZB-2p.
if check "published zero-bubble schedules are predicted within 4 %"; then
    answer zb --rows "$here/../measured/qi2023_zero_bubble.csv"
    awk '$1 ~ /^qi2023-/ { k = substr($1, 8) + 0 > 36; n[k]++; sum[k] += $NF < 0 ? -$NF : $NF }
        END { exit !(n[0] == 12 && n[1] == 12 && sum[0] < 12 * 4 && sum[1] < 12 * 4) }' zb.out || complain "$(cat zb.out)"
fi

# The page has the lines that the program prints, as ./run plan-report writes it.
if check "rows of long sequences, cut weights and experts are predicted as the page says"; then
    while read -r stack set count; do
        answer "$set" --rows "$here/../measured/$set.csv"
        says "$set" "stack $stack, constants as in its file"
        says "$set" "n $count: MAPE"
        grep "^$set-\|^n " "$set.out" >"$set.lines"
        [[ $(wc -l <"$set.lines") == $((count + 1)) ]] || complain "$set: not $count rows: $(cat "$set.out")"
        grep -vxF -f "$here/../docs/plan-accuracy.md" "$set.lines" >"$set.lost" &&
            complain "docs/plan-accuracy.md lacks: $(cat "$set.lost")"
    done <<'END'
megatron-bridge-experts qwen3_h100 5
megatron-bridge-experts qwen3_h100_long 4
nemo-h100-fp8 torchtitan_context 4
END
fi

if check "groups of shards take as long as their page says"; then
    sed '/^  # G /,/^constants:/{/^constants:/!d}; s/^nics: 8/nics: 1/' "$here/../machines/dgx-h100.yaml" >thin.yaml
    groups=(--model llama3-8b --gpus 64 --stack trireme-cuda --global-batch-size 1024 --tp 1 --pp 1 --micro-batch-size 1
        --data-parallel-sharding-strategy optim_grads_params)
    for machine in dgx-h100 ./thin.yaml; do
        answer whole "${groups[@]}" --machine $machine
        answer groups "${groups[@]}" --machine $machine --num-distributed-optimizer-instances 8
        # A program without the code for GPUs counts other operations.
        for name in whole groups; do
            ! grep -q "operations are those of the cpu" $name.out || continue
            step=$(grep -o 'step takes [0-9.]* s' $name.out)
            grep -qF " ${step#step takes }" "$here/../docs/sharding.md" || complain "$machine: docs/sharding.md has no '$step'"
        done
    done
fi

low=(--model llama3-70b --gpus 64 --machine gb200-nvl72 --global-batch-size 256)
if check "products of 8 and 4 bits have their rates, flags and stack"; then
    answer plain "${low[@]}" --json
    answer fp8 "${low[@]}" --fp8-format hybrid --json
    answer mxfp8 "${low[@]}" --fp8-format hybrid --fp8-recipe mxfp8 --json
    answer nvfp4 "${low[@]}" --fp4-format e2m1 --json
    awk -v a="$(number plain step_s)" -v b="$(number mxfp8 step_s)" -v c="$(number fp8 step_s)" -v d="$(number nvfp4 step_s)" \
        'BEGIN { exit !(a > b && b > c && c > d && d > 0) }' || complain "slower with smaller factors: $(cat nvfp4.out)"
    for words in '"stack": "megatron-bridge"' '"factors": "mxfp8"' "--fp8-recipe mxfp8"; do says mxfp8 "$words"; done
    says nvfp4 "--fp4-format e2m1 --fp4-recipe nvfp4"
    answer words "${low[@]}" --fp8-format hybrid
    says words "bf16 with products in fp8"
fi
if check "products of 8 and 4 bits that cannot be are refused"; then
    refused 78 "dgx-a100-80gb has no rate for products in fp8: leave them in bf16" "${question[@]}" --fp8-format hybrid
    refused 78 "--fp8-recipe blockwise: a plan has prices for" "${low[@]}" --fp8-format hybrid --fp8-recipe blockwise
    refused 78 "products in fp8 need --bf16" "${low[@]}" --fp8-format hybrid --fp16
    refused 78 "give one of them" "${low[@]}" --fp8-format hybrid --fp4-format e2m1
    refused 78 "trireme computes products in nvfp4 as bf16" --model llama3-8b --gpus 8 --machine dgx-b200 --stack trireme-cuda \
        --global-batch-size 64 --fp4-format e2m1
fi

# Time and cost are the step's, and constraints are kept.
experts=(--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --swiglu --disable-bias-linear --num-experts 64
    --moe-router-topk 8 --moe-ffn-hidden-size 1024 --vocab-size 50304 --seq-length 4096 --max-position-embeddings 4096
    --gpus 64 --global-batch-size 512 --machine gb200-nvl72)
if check "models with experts are planned"; then
    answer moe "${experts[@]}"
    says moe "megatron-bridge-experts: over 85 measured runs"
    says moe "--moe-ffn-hidden-size 1024"
    answer even "${experts[@]}" --tp 1 --pp 1 --mbs 1 --expert-model-parallel-size 8 --json
    answer uneven "${experts[@]}" --tp 1 --pp 1 --mbs 1 --expert-model-parallel-size 8 --expert-imbalance 2 --json
    says even '"ep": 8'
    for part in experts step_s; do
        awk -v a="$(number even $part)" -v b="$(number uneven $part)" 'BEGIN { exit !(a > 0 && b > a) }' ||
            complain "twice the tokens on a rank: $part $(number uneven $part), not above $(number even $part)"
    done
    refused 78 "ep = 3 does not divide the 64 experts: use 2" "${experts[@]}" --tp 1 --pp 1 --mbs 1 \
        --expert-model-parallel-size 3
    refused 64 "--expert-imbalance: 0.5 is not allowed here" "${experts[@]}" --expert-imbalance 0.5
fi
latent=("${experts[@]}" --normalization RMSNorm --position-embedding-type rope --multi-latent-attention --qk-layernorm
    --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --fp8-format hybrid --fp8-recipe mxfp8)
if check "latent attention has products of 8 bits in programs that have them"; then
    answer latent "${latent[@]}" --tp 1 --pp 1 --mbs 1 --expert-model-parallel-size 8
    says latent "# trireme train refuses products of 8 and 4 bits with latent attention"
    refused 78 "trireme computes products of latent attention in bf16: leave out" \
        "${latent[@]/mxfp8/tensorwise}" --tp 1 --pp 1 --mbs 1 --stack trireme-cuda
fi
if check "of a run's time a share is training"; then
    need answer_best
    answer derated "${question[@]}" --tokens 300B --price 2.10 --goodput 0.5
    says derated "50 % of it training"
    days() { sed -n 's/^  time  *\([0-9.]*\) days.*/\1/p' "$1.out"; }
    [[ $(awk "BEGIN { print int($(days derated) / $(days best) * 100 + 0.5) }") == 200 ]] ||
        complain "half of it training takes $(days derated) days, all of it $(days best)"
fi
answer_json() { answer json "${question[@]}" --tokens 300B --price 2.10 --json; }
if check "time and cost are the step's"; then
    need answer_json
    close "$(number json run_s)" "$(awk -v s="$(number json step_s)" 'BEGIN { print s * 300e9 / 1536 / 2048 }')" 1e-5 ||
        complain "the run takes $(number json run_s) s"
    close "$(number json run_dollars)" "$(awk -v s="$(number json run_s)" 'BEGIN { print s / 3600 * 1024 * 2.1 }')" 1e-5 ||
        complain "the run costs $(number json run_dollars)"
    awk -v low="$(number json low_s)" -v step="$(number json step_s)" -v high="$(number json high_s)" \
        'BEGIN { exit !(low < step && step < high) }' || complain "no interval around the step"
fi
if check "energy is the power of all machines for the time of the run"; then
    answer energy "${question[@]}" --tokens 300B --pue 1.2 --json
    close "$(number energy run_kwh)" \
        "$(awk -v s="$(number energy run_s)" 'BEGIN { print s / 3600 * 1024 / 8 * 6.5 * 1.2 }')" 1e-5 ||
        complain "128 nodes of 6.5 kW take $(number energy run_kwh) kWh in $(number energy run_s) s"
    answer energy "${question[@]}" --tokens 300B
    says energy "MWh, at 812.5 W for a GPU with its share of a node"
    answer energy "${question[@]/dgx-a100/mi300x}" --tokens 300B
    says energy "at 750 W for a GPU alone, without the rest of a node"
fi
# --vary asks what a command line of its own would.
vary=(--model gpt3-175b --global-batch-size 1536 --tokens 300B --pue 1.1)
# cell NAME NUMBER: one cell of an answer's JSON, as an answer of its own.
cell() { tr '\n' ' ' <"$1.out" | sed 's/{"model": {/\n&/g' | sed -n "$(($2 + 1))p"; }
if check "--vary asks what a command line of its own would"; then
    answer cells "${vary[@]}" --vary machine=dgx-a100@2.10,dgx-h100 gpus=512,1024 --price 3 --json
    at=0
    for machine in "dgx-a100 --price 2.10" "dgx-h100 --price 3"; do
        for gpus in 512 1024; do
            at=$((at + 1))
            # shellcheck disable=SC2086 # two words and a price
            answer alone "${vary[@]}" --machine $machine --gpus "$gpus" --json
            cell cells $at >one.out
            for member in machine devices price watts; do
                [[ $(number one $member) == "$(number alone $member)" && -n $(number one $member) ]] ||
                    complain "$machine $gpus: $member $(number one $member), alone $(number alone $member)"
            done
            for member in run_s run_dollars run_kwh step_s mfu hfu tp pp dp vp total; do
                close "$(number one $member)" "$(number alone $member)" 0 ||
                    complain "$machine $gpus: $member $(number one $member), alone $(number alone $member)"
            done
        done
    done
fi
if check "--vary prints a table and its front"; then
    answer table "${vary[@]}" --vary machine=dgx-a100@2.10,dgx-h100@3.5 gpus=512,1024,1100
    [[ $(grep -c '^\* dgx-h100' table.out) == 2 && $(grep -c '^\*' table.out) == 3 ]] || complain "the front: $(cat table.out)"
    says table "1100   1536    2048  no configuration of 1100 devices keeps the rules"
    answer table "${question[@]}" --vary seq-length=1024,2048 global-batch-size=512,1024
    [[ $(grep -c '^  dgx-a100  *1024' table.out) == 4 ]] || complain "no 4 rows: $(cat table.out)"
    says table "With --tokens there are time, money and energy"
    answer table "${question[@]}" --tp 8 --pp 16 --mbs 1 --vary gpus=1024,2048,192
    says table "ask for a multiple of 128 devices, not 192"
fi
if check "a page keeps d for the devices that are asked about"; then
    answer page --model gpt3-1.3b --machine dgx-h100 --gpus 64 --dp 8 --gbs 512 --html page.html
    [[ $(grep -c '"gpus": 64, .*>8-way data' page.html) == 3 ]] || complain "d was left: $(grep -o '"gpus": 64, .*>[0-9]*-way data' page.html)"
fi
if check "constraints are kept"; then
    need answer_json
    answer kept "${question[@]}" --json --tp 4 --micro-batch-size 2
    [[ $(number kept tp) == 4 && $(number kept micro_batch_size) == 2 ]] || complain "t or b was not kept"
    awk -v free="$(number json step_s)" -v kept="$(number kept step_s)" 'BEGIN { exit !(free <= kept) }' ||
        complain "what is decided cannot be faster than what is open"
fi
if check "the JSON adds up"; then
    need answer_json
    if command -v python3 >/dev/null; then
        python3 -c 'import json, sys
plan = json.load(open(sys.argv[1]))
best = plan["chosen"]
parts = best["breakdown_s"]
assert abs(sum(parts.values()) - parts["recompute"] - best["step_s"]) < 1e-6 * best["step_s"], parts
assert plan["ranking"][0] == best and plan["ranking"] == sorted(plan["ranking"], key=lambda p: p["step_s"])
need = best["memory_bytes"]
total = sum(v for k, v in need.items() if k not in ("total", "capacity"))
assert abs(total - need["total"]) < 1e-6 * total, need' json.out || complain "the JSON contradicts itself"
    else
        echo "skipped: no python3"
    fi
fi

# One configuration: t, p and b are there, and all that is not is off.
if check "one configuration is priced as asked"; then
    answer given "${question[@]}" --tp 8 --pp 16 --micro-batch-size 1
    says given "As asked: 8-way tensor parallelism, 16 pipeline stages (1f1b) and 8 replicas; microbatches"
    says given "It does not fit: the fullest GPU needs"
    says given "The fastest that fits"
fi
if check "a slower configuration is told a better one"; then
    answer slower "${question[@]}" --tp 8 --pp 16 --micro-batch-size 1 --recompute-granularity full
    says slower "Better, "
fi
if check "the headline run of the paper is near"; then
    answer headline --model megatron-1008b --gpus 3072 --machine dgx-a100 --stack megatron-lm-2021 \
        --global-batch-size 3072 --tp 8 --pp 64 --micro-batch-size 1 --recompute-granularity full \
        --attention-backend unfused --fp16 --tokens 450B --json
    close "$(number headline tflops)" 163 0.15 || complain "1008B: $(number headline tflops) TFLOP/s"
    close "$(number headline run_s)" $((84 * 86400)) 0.15 || complain "1008B: $(number headline run_s) s"
fi

# What is printed to be pasted is what the program takes.
pasted() {
    answer pasted "${@:2}"
    sed -n '/^For trireme/,/^For Megatron/p' pasted.out | grep -v '^For\|^#' | tr -d '\\\n' |
        sed 's/.*trireme train//' >words
    eval "set -- $1 $(cat words)"
    "$trireme" memory --ranks "$1" --vocab-size 51200 "${@:2}" >memory.out 2>memory.err ||
        complain "the flags are refused: $(cat memory.err words)"
}
if check "flags to paste: 1024 A100"; then
    pasted 1024 "${question[@]}"
fi
if check "flags to paste: 64 H100"; then
    pasted 64 --model llama2-7b --gpus 64 --machine dgx-h100 --gbs 64
fi
if check "flags to paste: 320 A100"; then
    pasted 320 --model gpt3-175b --gpus 320 --machine dgx-a100 --gbs 320 --tp 8 --pp 10
fi
if check "flags to paste: zb-v"; then
    pasted 64 --model gpt3-175b --gpus 64 --machine dgx-a100 --gbs 64 --tp 8 --pp 8 --schedule zb-v
fi
# ... with the stages that were priced: ends that count as layers, and as parameters.
if check "flags to paste: stages whose ends count as layers"; then
    pasted 128 --model llama3-405b --gpus 128 --machine dgx-h100 --gbs 128 --tp 8 --pp 16 --micro-batch-size 1
    grep -qF "layout 'Et*7|(t*8|)*14t*7L'" words || complain "llama3-405b is cut otherwise: $(cat words)"
fi
if check "flags to paste: stages whose ends are balanced"; then
    pasted 64 --model llama3-8b --gpus 64 --machine dgx-a100 --gbs 64 --tp 1 --pp 8 --micro-batch-size 1 --stack aleph-alpha
    grep -qF "layout 'Et*2|" words || complain "aleph-alpha's stages are not balanced: $(cat words)"
fi
# ... of several chunks: a layout says by itself how many there are.
if check "flags to paste: chunks whose ends count as layers"; then
    pasted 256 --model llama3-405b --gpus 256 --machine dgx-h100 --gbs 256 --tp 8 --pp 16 --micro-batch-size 1 --schedule zb-v
fi
mixed=(--model qwen3-30b-a3b --seq-length 4096 --gpus 16 --machine dgx-h100 --gbs 64 --tp 1 --micro-batch-size 1)
if check "flags to paste: pairs in chunks"; then
    pasted 16 "${mixed[@]}" --pp 2 --vp 4 --expert-model-parallel-size 4 --schedule paired
fi
if check "flags to paste: sequences and experts over ranks, all of the state cut"; then
    pasted 16 "${mixed[@]}" --pp 1 --cp 2 --expert-model-parallel-size 8 --data-parallel-sharding-strategy optim_grads_params
fi

# to_paste NAME PROGRAM: leaves the line for trireme or Megatron-LM in NAME.words, on one line.
to_paste() {
    awk -v begin="For $2" 'index($0, begin) == 1 { on = 1; next } /^(For|Speed)/ { on = 0 } on' "$1.out" | tr -d '\\\n' | tr -s ' ' >"$1.words"
}
if check "the line for Megatron-LM has its names, and the ways that were priced"; then
    shards=(--pp 1 --expert-model-parallel-size 8 --data-parallel-sharding-strategy optim_grads_params)
    answer mega "${mixed[@]}" "${shards[@]}"
    to_paste mega Megatron-LM
    for words in " --qk-layernorm " " --use-megatron-fsdp --ckpt-format fsdp_dtensor " " --use-distributed-optimizer " \
        " --data-parallel-sharding-strategy optim_grads_params " " --moe-grouped-gemm " \
        " --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep"; do
        grep -qF -e "$words" mega.words || complain "no '$words': $(cat mega.words)"
    done
    ! grep -qF -e "--qk-norm" mega.words || complain "trireme's own option: $(cat mega.words)"
    to_paste mega trireme
    grep -qF -e " --qk-norm head " mega.words || complain "no norm of heads: $(cat mega.words)"
    ! grep -qF -e "megatron-fsdp" mega.words || complain "Megatron-LM's own option: $(cat mega.words)"
    # Of a program that sends each pair of a token and an expert by itself.
    answer pairs "${mixed[@]}" "${shards[@]:0:4}" --use-distributed-optimizer --stack nemo-h100
    to_paste pairs Megatron-LM
    grep -qF -e " --moe-token-dispatcher-type alltoall" pairs.words || complain "no alltoall: $(cat pairs.words)"
    ! grep -qF -e "fsdp" pairs.words || complain "FSDP without its shards: $(cat pairs.words)"
    # Pairs of microbatches in chunks are there under its name; the default needs no dispatcher where experts stay.
    answer chunks "${mixed[@]}" --pp 2 --vp 4 --expert-model-parallel-size 4 --schedule paired
    to_paste chunks Megatron-LM
    for words in " --num-layers-per-virtual-pipeline-stage 6 " " --overlap-moe-expert-parallel-comm"; do
        grep -qF -e "$words" chunks.words || complain "no '$words': $(cat chunks.words)"
    done
    answer whole "${mixed[@]}" --pp 2 --expert-model-parallel-size 1
    to_paste whole Megatron-LM
    ! grep -qF -e "dispatcher" whole.words || complain "a dispatcher of nothing: $(cat whole.words)"
    answer unshared "${mixed[@]}" --pp 1 --tp 2
    says unshared "# Megatron-LM refuses experts with t > 1 without --sequence-parallel"
fi
if check "a plan says what trireme refuses of 4 bits"; then
    answer four "${low[@]}" --fp4-format e2m1 --cp 2
    says four "# trireme train refuses products of 4 bits with context parallelism"
    answer two "${low[@]}" --fp4-format e2m1 --cp 1
    ! grep -q "refuses products" two.out || complain "refuses what train takes: $(grep refuses two.out)"
fi

# ---- what tells rows apart -------------------------------------------------------------------------------
if check "rows that differ in c or ep have columns for them"; then
    answer apart --model qwen3-30b-a3b --gpus 16 --machine dgx-h100 --gbs 64
    grep -q '^ *t *p *d *c *ep *v *b *again' apart.out || complain "no columns c and ep: $(grep -A 6 '^The fastest' apart.out)"
    [[ $(sed -n '/^The fastest/,/^  c:/p' apart.out | grep '^ *[1-5] ' | cut -c 5-62 | sort | uniq -d | wc -l) == 0 ]] ||
        complain "two rows are alike: $(grep -A 6 '^The fastest' apart.out)"
    answer none "${low[@]}" --cp 1
    grep -q '^ *t *p *d *v *b *again *seq *cut' none.out || complain "columns of nothing: $(grep -A 6 '^The fastest' none.out)"
    answer cells "${mixed[@]}" --pp 1 --expert-model-parallel-size 8 --vary gpus=16,32
    grep -q ' ep *v *b *$' cells.out || complain "a table without ep: $(cat cells.out)"
fi
if check "messages and shards have their own names"; then
    long=(--model llama3-8b --gpus 16 --machine dgx-h100 --gbs 16 --pp 1 --micro-batch-size 1 --cp-comm-type all_gather)
    answer context "${long[@]}" --tp 1 --cp 8 --data-parallel-sharding-strategy optim_grads_params --html context.html
    says context "  context-parallel messages"
    says context "with parameters, gradients and optimizer state cut (optim_grads_params)"
    ! grep -q "tensor-parallel messages" context.out || complain "messages of no tensor: $(grep messages context.out)"
    grep -q '1·1·2 c&#160;8' context.html || complain "the page has no c: $(grep -o '1·1·2[^<]*' context.html)"
    grep -q '<th scope="row">context-parallel messages' context.html || complain "the page: $(grep -o 'row">[a-z-]* messages' context.html)"
    answer both "${long[@]}" --tp 2 --cp 4 --data-parallel-sharding-strategy optim_grads
    says both "  messages over t and c"
    says both "with gradients and optimizer state cut (optim_grads)"
    answer tensor "${long[@]}" --tp 2 --cp 1 --use-distributed-optimizer
    says tensor "  tensor-parallel messages"
    says tensor "with a distributed optimizer"
fi

# Nodes that are not full, large rates, short runs, other machines than the stack's.
if check "nodes that are not full, other machines than those of the stack"; then
    answer odd --model llama3-8b --gpus 12 --machine dgx-b200 --gbs 12 --tokens 100K
    says odd "# on the last node with --nproc-per-node 4, its share of 12 devices"
    says odd "extrapolated), which is 1"
    says odd "seconds"
    says odd "another machine is an extrapolation"
    tr '\n' ' ' <odd.out | grep -q '[0-9]e+[0-9]* TFLOP/s' && complain "an exponent in $(head -5 odd.out)"
fi

# ---- trireme's own program on GPUs -------------------------------------------------------------------------
if check "a plan of trireme on GPUs says what is not measured"; then
    answer own --model gpt2-124m --gpus 8 --machine dgx-h200 --stack trireme-cuda --gbs 512
    says own "trireme train --device cuda"
    says own "a guess: the program's constants are not measured yet"
    says own "trireme-cuda: its constants are not measured yet. They are a model"
    says own "an allowance for CUDA's context and libraries"
    answer own-json --model gpt2-124m --gpus 8 --machine dgx-h200 --stack trireme-cuda --gbs 512 --json
    grep -q '"unmeasured": "a model' own-json.out || complain "JSON does not say that nothing is measured"
fi
if check "a machine without the module plans for GPUs all the same"; then
    TRIREME_CUDA=/nonexistent answer elsewhere --model gpt2-124m --gpus 1 --machine dgx-h200 --stack trireme-cuda --gbs 64
    says elsewhere "The module for this device is not on this machine"
    says elsewhere "is taken to be 32 MiB"
fi

# ---- pages -----------------------------------------------------------------------------------------------
if check "a page is whole"; then
    answer page "${question[@]}" --html page.html
    grep -q '</html>' page.html || complain "no whole page: $(tail -c 200 page.html)"
fi
if check "a page says that a configuration does not fit"; then
    answer page "${question[@]}" --tp 8 --pp 16 --micro-batch-size 1 --html page.html
    grep -q 'caution.*It does not fit' page.html || complain "the page does not say that it does not fit"
fi
if check "a page for one device"; then
    answer page --model gpt2-124m --gpus 1 --machine dgx-a100 --gbs 1 --html page.html
    grep -q 'Run it on <b>one device</b>' page.html || complain "one device: $(grep advice page.html)"
    grep -q '1 sample, at its best.*beyond 1 device\.' page.html || complain "plurals: $(grep 'at its best' page.html)"
fi
if check "a page in a missing folder is refused"; then
    refused 73 "nowhere/page.html" "${question[@]}" --html nowhere/page.html
fi

# ---- measured rows ---------------------------------------------------------------------------------------
cat >rows.csv <<'ROWS'
id,stack,gpu,inter_node_gbps,model,layers,hidden,heads,vocab,seq,tp,pp,vp,dp,micro_batch,global_batch,recompute,attention,precision,step_s
a,megatron-lm-2021,a100-80gb,1600,1.7B,24,2304,24,51200,2048,1,1,1,32,16,512,full,unfused,fp16,3.53
b,megatron-lm-2021,a100-80gb,1600,3.6B,30,3072,32,51200,2048,2,1,1,32,16,512,full,unfused,fp16,3.70
c,megatron-lm-2021,a100-80gb,1600,7.5B,36,4096,32,51200,2048,4,1,1,32,16,512,full,unfused,fp16,3.70
d,megatron-lm-2021,a100-80gb,1600,18B,40,6144,48,51200,2048,8,1,1,32,8,1024,full,unfused,fp16,9.40
e,megatron-lm-2021,a100-80gb,1600,39B,48,8192,64,51200,2048,8,2,1,32,4,1536,full,unfused,fp16,14.5
f,megatron-lm-2021,a100-80gb,1600,76B,60,10240,80,51200,2048,8,4,3,32,2,1792,full,unfused,fp16,16.1
ROWS
answer_rows() { answer rows --rows rows.csv; }
if check "rows are predicted with the constants of the stack"; then
    need answer_rows
    says rows "stack megatron-lm-2021, constants as in its file"
    says rows "n 6: MAPE"
fi
if check "rows of a program that is not known are predicted with another, with a word"; then
    sed 's/megatron-lm-2021/mine/' rows.csv >mine.csv
    answer unknown --rows mine.csv
    says unknown "stack megatron-lm-2022, constants as in its file"
    says unknown 'own, "mine", is not known: this one is for such runs on dgx-a100-80gb; --stack takes another'
fi
if check "rows are predicted with one left out"; then
    answer loo --rows rows.csv --loo
    says loo "free constants, leave one out: MAPE"
fi
if check "rows are predicted in folds"; then
    answer folds --rows rows.csv --folds 3
    says folds "free constants, 3-fold: MAPE"
fi
if check "rows of two files are predicted"; then
    answer twice --rows rows.csv rows.csv
    says twice "n 12: MAPE"
fi
if check "--machine counts for rows"; then
    need answer_rows
    answer machine --rows rows.csv --machine dgx-h100
    cmp -s rows.out machine.out && complain "--machine does not count for rows"
fi
calibrate() { answer fit --calibrate rows.csv --stack megatron-lm-2021 --output mine.yaml; }
if check "a calibration says its errors"; then
    need calibrate
    says fit "5-fold: MAPE"
    says fit "leave one out: MAPE"
fi
if check "a stack is never replaced"; then
    need calibrate
    refused 73 "never replaced" --calibrate rows.csv --stack megatron-lm-2021 --output mine.yaml
fi
if check "a calibrated stack says what it was fitted to"; then
    need calibrate
    answer mine "${question[@]}" --stack ./mine.yaml
    says mine "over 6 measured runs that the constants were not fitted to (rows.csv; leave one out"
fi

# What train leaves behind: times in one file, and what was run in the file beside it.
train_two() {
    for ranks in 1 2; do
        "$trireme" train --mock-data --tokenizer-type NullTokenizer --vocab-size 511 --layers 2 --hidden 32 --heads 2 \
            --seq 128 --mbs 1 --gbs 4 --lr 1e-3 --steps 8 --eval-iters 0 --ranks "$ranks" --tp "$ranks" --threads 1 \
            --log-interval 1 --metrics "run$ranks.jsonl" --save-config "run$ranks.yaml" --plain >train.out 2>&1 ||
            complain "train: $(tail -3 train.out)"
    done
}
if check "runs of train calibrate a stack"; then
    need train_two
    answer runs --calibrate run1.jsonl run2.jsonl --stack megatron-lm-2021 --machine dgx-a100
    says runs "n 2, "
    # Ranks that share sequences are ranks, too; a stack that stores S x S matrices has no ring.
    "$trireme" train --mock-data --tokenizer-type NullTokenizer --vocab-size 511 --layers 2 --hidden 32 --heads 2 --seq 128 \
        --mbs 1 --gbs 4 --lr 1e-3 --steps 8 --eval-iters 0 --ranks 2 --cp 2 --cp-comm-type p2p --threads 1 --log-interval 1 \
        --metrics ring.jsonl --save-config ring.yaml --plain >train.out 2>&1 || complain "train: $(tail -3 train.out)"
    sed -i '/^ranks/d' ring.yaml
    answer ring --calibrate run1.jsonl run2.jsonl ring.jsonl --stack megatron-lm-2021 --machine dgx-a100
    says ring "n 3, "
fi
if check "runs that do not suffice for a calibration are refused"; then
    need train_two
    refused 64 "--machine NAME" --calibrate run1.jsonl --stack megatron-lm-2021
    refused 65 "1 configuration to calibrate" --calibrate run1.jsonl --stack megatron-lm-2021 --machine dgx-a100
fi

# megatron_log FILE PP BATCH SECONDS: what Megatron-LM prints of a run of GPT-3 1.3B on 8 GPUs whose steps take so long; the
# first takes longer.
megatron_log() {
    local rank="[default0]:" i
    {
        echo "using world size: 8, data-parallel size: $((8 / $2))"
        echo "$rank------------------------ arguments ------------------------"
        for i in add_bias_linear=True attention_dropout=0.0 hidden_dropout=0.0 bf16=True context_parallel_size=1 \
            data_parallel_size=$((8 / $2)) ffn_hidden_size=8192 fp8=None global_batch_size=$3 hidden_size=2048 kv_channels=128 \
            lr=0.0002 max_position_embeddings=2048 micro_batch_size=1 num_attention_heads=16 num_layers=24 \
            overlap_grad_reduce=True pipeline_model_parallel_size="$2" position_embedding_type=learned_absolute seq_length=2048 \
            swiglu=False tensor_model_parallel_size=1 use_distributed_optimizer=True; do
            echo "$rank  ${i%=*} .................................... ${i#*=}"
        done
        echo "$rank-------------------- end of arguments ---------------------"
        echo "$rank > padded vocab (size: 50257) with 943 dummy tokens (new size: 51200)"
        for i in 1 2 3 4 5 6 7 8 9 10; do
            awk -v r="$rank" -v i="$i" -v b="$3" -v s="$4" 'BEGIN {
                printf "%s [2026-05-01 12:00:00] iteration %8d/ 10 | consumed samples: %d | elapsed time per iteration " \
                    "(ms): %.3f | learning rate: 2.0E-04 | global batch size: %5d | lm loss: 9.0E+00 |\n",
                    r, i, i * b, s * 1000 * (i == 1 ? 4 : 1), b }'
        done
    } >"$1"
}
if check "logs of Megatron-LM teach a stack its constants"; then
    logs=()
    for pp in 1 2 4; do
        for batch in 64 256; do
            answer step --model gpt3-1.3b --vocab-size 50257 --attention-dropout 0 --hidden-dropout 0 --gpus 8 --tp 1 --pp "$pp" \
                --mbs 1 --gbs "$batch" --bf16 --use-distributed-optimizer --machine dgx-h100 --json
            megatron_log "pp$pp-$batch.log" "$pp" "$batch" "$(awk -v s="$(number step step_s)" 'BEGIN { print 1.25 * s }')"
            logs+=("pp$pp-$batch.log")
        done
    done
    answer learned --learn "${logs[@]}" --machine dgx-h100 --output learned.yaml
    says learned "before, with the constants of nemo-h100: n 6: MAPE 20.0 %, median 20.0"
    awk '/^n 6, .*MAPE/ { sub(/.*MAPE /, ""); if ($1 + 0 > 0 && $1 < 5) good++ } END { exit good != 2 }' learned.out ||
        complain "a quarter more time is not learned: $(cat learned.out)"
    grep -q '^  matmul_efficiency: 0\.[45]' learned.yaml || complain "what was learned: $(cat learned.yaml)"
    sed 's/end of arguments/the end/' pp1-64.log >headless.log
    refused 65 "headless.log: no line 'end of arguments'" --learn headless.log --machine dgx-h100
    sed 's/num_layers \(.*\) 24$/num_layers \1 many/' pp1-64.log >many.log
    refused 64 "many.log, as options of train: --num-layers: 'many'" --learn many.log --machine dgx-h100
    refused 64 "pp1-64.log does not say where it ran" --learn pp1-64.log --stack nemo-h100
fi

# ---- wrong input -----------------------------------------------------------------------------------------
refuse() { check "refused with: $2" refused "$@"; }
small=(--model gpt3-1.3b --gpus 16 --machine dgx-h100 --global-batch-size 64 --tp 1 --pp 1 --mbs 1 --stack trireme)
if check "a plan knows Muon's time and memory"; then
    answer adam "${small[@]}" --json
    answer muon "${small[@]}" --json --optimizer muon
    answer halves "${small[@]}" --optimizer muon --muon-num-ns-steps 9
    awk -v a="$(number adam step_s)" -v m="$(number muon step_s)" 'BEGIN { exit !(a > 0 && m > 1.2 * a) }' ||
        complain "a step takes $(number adam step_s) s, with Muon $(number muon step_s)"
    says halves "--optimizer muon --muon-num-ns-steps 9"
fi
if check "ranks of a sequence and instances of the optimizer are planned as they are trained"; then
    shared=("${small[@]}" --attention-dropout 0 --seq-length 8192 --max-position-embeddings 8192)
    for way in all_gather a2a p2p; do answer "$way" "${shared[@]}" --cp 4 --cp-comm-type "$way" --json; done
    answer words "${shared[@]}" --cp 4 --cp-comm-type p2p
    says words "--cp-comm-type p2p"
    [[ $(for way in all_gather a2a p2p; do number "$way" step_s; done | sort -u | wc -l) == 3 ]] ||
        complain "ways of context parallelism take the same time"
    answer whole "${small[@]}" --use-distributed-optimizer --json
    answer parts "${small[@]}" --use-distributed-optimizer --num-distributed-optimizer-instances 2 --json
    [[ $(number parts optimizer_instances) == 2 ]] || complain "instances: $(cat parts.out)"
    says parts "--num-distributed-optimizer-instances 2"
    awk -v a="$(number whole total)" -v b="$(number parts total)" 'BEGIN { exit !(b > a && a > 0) }' ||
        complain "instances take no more memory: $(number parts total) bytes"
fi
refuse 78 "does not divide the 16 replicas of parameters: use 2" "${small[@]}" --use-distributed-optimizer \
    --num-distributed-optimizer-instances 3
refuse 78 "use 1f1b, or leave out --reduce-grads-every-microbatch" --model gpt3-1.3b --gpus 16 --machine dgx-h100 --gbs 64 \
    --tp 1 --pp 2 --mbs 1 --schedule zb-h1 --data-parallel-sharding-strategy optim_grads --reduce-grads-every-microbatch
refuse 78 "use c = 8, or --cp-comm-type all_gather" "${small[@]}" --num-attention-heads 24 --hidden-size 2304 --cp 16 \
    --cp-comm-type a2a
refuse 78 "knows trireme's own Muon alone" "${question[@]}" --optimizer muon
# Programs without the option, and what Megatron-LM asserts of it.
refuse 78 "--optimizer-cpu-offload with --stack megatron-lm-2021: this program keeps all optimizer state on its devices" \
    "${question[@]}" --stack megatron-lm-2021 --optimizer-cpu-offload
refuse 78 "or use --stack megatron-bridge-experts, megatron-bridge, megatron-core-h100, nemo-h100-fp8, nemo-h100, trireme-cpu, trireme-cuda, " \
    "${question[@]}" --stack deepspeed-zero3-2021 --optimizer-cpu-offload
if check "a plan says what each host keeps, and what Megatron-LM asks for it"; then
    there=(--model gpt3-1.3b --machine dgx-h100 --gbs 64 --pp 1 --mbs 1 --stack megatron-core-h100 --optimizer-cpu-offload)
    answer alone "${there[@]}" --gpus 1 --tp 1
    answer four "${there[@]}" --gpus 4 --tp 4
    answer cut "${there[@]}" --gpus 16 --tp 1 --use-distributed-optimizer
    grep -q "Each host also keeps 1[0-9.]* GB of optimizer state for this GPU\\.$" alone.out || complain "one GPU: $(cat alone.out)"
    grep -q "GB of optimizer state for this GPU; for 4 such GPUs of a node that is 1[0-9.]* GB\\.$" four.out ||
        complain "four GPUs: $(cat four.out)"
    says cut "for 8 such GPUs of a node that is"
    asks="# Megatron-LM refuses --optimizer-cpu-offload without --use-distributed-optimizer: plan with both"
    says four "$asks"
    ! grep -qF "$asks" cut.out || complain "asks for what is there: $(cat cut.out)"
fi
refuse 78 "did you mean gpt3-175b?" --model gpt3-175 --gpus 8 --machine dgx-a100 --gbs 8
refuse 64 "did you mean dgx-a100?" --model gpt3-175b --gpus 8 --machine dgx-a10 --gbs 8
refuse 64 "--machine is required" --model gpt3-175b --gpus 8 --gbs 8
refuse 64 "--gpus is required" --model gpt3-175b --machine dgx-a100 --gbs 8
refuse 64 "--global-batch-size is required" --model gpt3-175b --gpus 8 --machine dgx-a100
refuse 64 "there are" "${question[@]}" --stack nobody
refuse 64 "such as 300B" "${question[@]}" --tokens 300X
refuse 64 "such as 300B" "${question[@]}" --tokens -3B
refuse 64 "the number of nodes is wrong" "${question[@]}" --slow-nodes x:compute=2
refuse 64 "what is slow there is not one of the three" "${question[@]}" --slow-nodes 1:memory=2
refuse 64 "a factor is wrong" "${question[@]}" --slow-nodes 1:compute=0.5
refuse 64 "a factor is there twice" "${question[@]}" --slow-nodes 1:compute=2,nic=2,compute=3
refuse 64 "what is slow there is missing" "${question[@]}" --slow-nodes 1
refuse 64 "leave out --html" "${question[@]}" --slow-nodes 1:compute=2 --html page.html
refuse 64 "such as 1:compute=1.2" "${question[@]}" --slow-nodes 1:compute=2,
refuse 78 "use 1 to 127" "${question[@]}" --slow-nodes 128:compute=2
refuse 78 "there is one node" --model gpt2-124m --gpus 8 --machine dgx-a100 --gbs 8 --slow-nodes 1:compute=2
refuse 64 "a share above 0 and up to 1 is expected, such as 0.9" "${question[@]}" --tokens 3B --goodput 1.5
refuse 66 "neither a share above 0 and up to 1 nor a run's ledger" "${question[@]}" --tokens 3B --goodput none
refuse 64 "(0,)" "${question[@]}" --price 0
refuse 64 "what varies is machine, gpus, global-batch-size or seq-length" "${question[@]}" --vary batch=3
refuse 64 "what varies is machine" "${question[@]}" --vary gpus
refuse 64 "a value is empty" "${question[@]}" --vary gpus=8,,16
refuse 64 "8 is there twice" "${question[@]}" --vary gpus=8,16,8
refuse 64 "gpus 08 is there twice" "${question[@]}" --vary gpus=8,16,08
refuse 64 "machine dgx-a100@2 is there twice" "${question[@]}" --vary machine=dgx-a100@1,dgx-a100@2
refuse 64 "leave out --data-parallel-size" "${question[@]}" --dp 4 --vary gpus=512,1024
refuse 64 "gpus is there twice" "${question[@]}" --vary gpus=8,16 gpus=32
refuse 64 "--vary: --gpus: 0 is not allowed here" "${question[@]}" --vary gpus=8,0
refuse 64 "--vary: --gpus: 'many'" "${question[@]}" --vary gpus=8,many
refuse 64 "did you mean dgx-a100?" "${question[@]}" --vary machine=dgx-a100,dgx-a10
refuse 64 "--vary: --price: 'free'" "${question[@]}" --vary machine=dgx-a100@free
refuse 64 "at most 16 values" "${question[@]}" --vary gpus=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17
refuse 78 "with dgx-a100 and 4096 tokens: --max-position-embeddings (2048)" "${question[@]}" --vary seq-length=2048,4096
refuse 64 "leave out --vary" --rows rows.csv --vary gpus=8
refuse 64 "[1,10]" "${question[@]}" --pue 0.9
refuse 64 "not word" "${question[@]}" word
refuse 78 "etp = 2 does not divide the 3 ranks of a stage: use 1" --model gpt2-124m --gpus 3 --machine dgx-a100 --gbs 3 --tp 1 \
    --pp 1 --mbs 1 --expert-tensor-parallel-size 2
refuse 78 "t = 7 ask for a multiple of 7 devices" "${question[@]}" --tp 7
refuse 78 "use --gpus 128" --model gpt3-175b --gpus 64 --machine dgx-a100 --gbs 64 --tp 8 --pp 8 --dp 2
refuse 78 "1024 samples, or fewer devices" --model gpt2-124m --gpus 1024 --machine dgx-a100 --gbs 4 --dp 1024
refuse 78 "is no multiple of b * d" "${question[@]}" --tp 8 --pp 16 --micro-batch-size 5
refuse 78 "devices would do" --model gpt3-175b --gpus 8 --machine dgx-a100 --gbs 8
refuse 78 "use --fp16" --model gpt3-175b --gpus 64 --machine dgx-v100 --gbs 64 --bf16
refuse 64 "leave it out" "${question[@]}" --loo
refuse 64 "leave out --gpus" --rows rows.csv --gpus 8
refuse 64 "leave out --json" --calibrate rows.csv --stack megatron-lm-2021 --json
refuse 64 "one of them" --rows rows.csv --loo --folds 3
refuse 64 "cannot be used together" --rows rows.csv --calibrate rows.csv
refuse 64 "--stack NAME" --calibrate rows.csv
refuse 66 "nowhere.csv" --rows nowhere.csv
sed 's/global_batch/batch/' rows.csv >column.csv
refuse 65 "column.csv: line 1: no column global_batch" --rows column.csv
sed 's/,14.5/,fast/' rows.csv >text.csv
refuse 65 "text.csv: line 6: step_s 'fast'" --rows text.csv
sed 's/^b,megatron-lm-2021/b,aleph-alpha-scaling/' rows.csv >mixed.csv
refuse 64 "--stack NAME chooses one" --rows mixed.csv
cat >slow.yaml <<'MACHINE'
description: a node with a link that takes
gpu: a100-80gb
devices_per_node: 8
peak_tflops: {f32: 19.5, bf16: 312, f16: 312}
memory_gb: 85.9
usable_gb: 85.0
memory_gbs: 2039
sms: 108
link_gbs: -300
nics: 8
nic_gbs: 25
tiles: [[256, 128, 1]]
MACHINE
if check "a machine with a wrong value is named with its line"; then
    refused 65 "slow.yaml:9: link_gbs: -300" --model gpt3-175b --gpus 64 --machine ./slow.yaml --gbs 64
fi
if check "bench refuses a file that it cannot write"; then
    timeout 5 "$trireme" bench --machine nowhere/cpu.yaml >bench.out 2>&1
    [[ $? == 73 ]] || complain "bench measures what it cannot write: $(cat bench.out)"
fi
refuse 66 "times.yaml" --calibrate times.jsonl --stack megatron-lm-2021 --machine dgx-a100
if check "a machine of a file is planned for"; then
    sed -i 's/-300/300/' slow.yaml
    answer slow --model gpt3-175b --gpus 64 --machine ./slow.yaml --gbs 64
    says slow "64 GPUs of slow"
fi

refuse 78 "a batch of 1 is too small for every grid of 1024 devices" --model gpt3-175b --gpus 1024 --machine dgx-a100 --gbs 1
if check "takeaways are judged"; then
    answer rules --takeaways --machine dgx-a100 --stack megatron-lm-2021
    says rules "Takeaway 3. The best microbatch b is that of eq. 1"
fi
refuse 64 "--machine is required" --takeaways

finish
