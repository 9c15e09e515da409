#!/usr/bin/env bash
# What `trireme preprocess` leaves behind, however its text comes and however it ends: the same bytes for any
# number of workers, from archives, folders and pipes; nothing after a signal; after a kill, a disk that was
# full or a damaged archive the next run starts over cleanly.
# Usage: preprocess_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"
# shellcheck source=tests/jobs.sh
source "$here/jobs.sh"

# preprocess NAME OPTION...: leaves NAME.bin and so on, and NAME.log.
preprocess() {
    local name=$1
    shift
    timeout -k 5 120 "$trireme" preprocess --output-prefix "$name" --append-eod --plain "$@" >"$name.log" 2>&1
}

# expect_end CODE WORDS NAME OPTION...: that it ends so, and leaves nothing.
expect_end() {
    local wanted=$1 words=$2 name=$3 code
    shift 2
    preprocess "$@"
    code=$?
    [[ $code == "$wanted" ]] || complain "$name: exit $code, not $wanted: $(tail -2 "$name.log")"
    grep -qF -- "$words" "$name.log" || complain "$name does not say '$words': $(tail -2 "$name.log")"
    expect_nothing "$name"
}

expect_nothing() {
    compgen -G "$1.*" | grep -qv '\.log$' && complain "$1 left behind: $(compgen -G "$1.*" | xargs)"
}

# expect_same NAME OTHER
expect_same_set() {
    local ending
    for ending in bin idx tokenizer.json; do
        cmp -s "$1.$ending" "$2.$ending" || complain "$1.$ending and $2.$ending differ: $(tail -1 "$2.log")"
    done
    compgen -G "$2.*tmp*" >/dev/null && complain "$2 left behind: $(compgen -G "$2.*tmp*" | xargs)"
}

is_there() { [[ -s $1 ]]; }

# ---- lines that cannot be read -----------------------------------------------------------------------------
if check "bad lines are left out and named, also by tokenizer train"; then
    printf '{"text": "one and one"}\n{"text": 1}\n{"text": "two and two"}\nno JSON\n' >bad.jsonl
    preprocess bad --input bad.jsonl --vocab-size 270 --skip-bad-lines || complain "$(tail -1 bad.log)"
    "$trireme" tokenizer train --input bad.jsonl --vocab-size 270 --skip-bad-lines --output bad_tokenizer >bad_tokenizer.log \
        2>&1 || complain "$(cat bad_tokenizer.log)"
    [[ $(grep -c "left out 2 bad lines\|    bad.jsonl:[24]: " bad_tokenizer.log) == 3 ]] ||
        complain "bad lines: $(cat bad_tokenizer.log)"
    diff <(grep -A2 "left out" bad.log) <(grep -A2 "left out" bad_tokenizer.log) || complain "bad lines: not told alike"
fi

# ---- the same bytes --------------------------------------------------------------------------------------
mkdir -p parts/inner
awk 'BEGIN { for (i = 0; i < 30000; i++)
    printf "{\"text\": \"document %d of many: it%ss the %dth, and %d is its square\\n\", \"id\": %d}\n", \
        i, "\x27", i, i * i, i }' >documents.jsonl
head -15000 documents.jsonl | gzip -1 >parts/a.jsonl.gz
tail -15000 documents.jsonl >parts/inner/b.jsonl
gzip -1 -c documents.jsonl >documents.jsonl.gz
vocabulary=(--vocab-size 600)
preprocess one --input documents.jsonl "${vocabulary[@]}" --workers 1 || complain "$(tail -1 one.log)"
for workers in 2 4; do
    if check "$workers workers write the bytes of one"; then
        preprocess "workers$workers" --input documents.jsonl "${vocabulary[@]}" --workers "$workers"
        expect_same_set one "workers$workers"
    fi
done
if check "an archive gives the same bytes"; then
    preprocess archive --input documents.jsonl.gz "${vocabulary[@]}"
    expect_same_set one archive
fi
if check "a folder gives the same bytes"; then
    preprocess folder --input parts "${vocabulary[@]}"
    expect_same_set one folder
fi
if check "a pipe gives the same bytes"; then
    preprocess piped --input - "${vocabulary[@]}" < <(cat documents.jsonl)
    expect_same_set one piped
fi
if check "a byte order mark is left out"; then
    preprocess marked --input - "${vocabulary[@]}" < <(printf '\xef\xbb\xbf' && cat documents.jsonl)
    expect_same_set one marked
fi
if check "an archive through a pipe gives the same bytes"; then
    preprocess unpacked --input - --tokenizer-model one <documents.jsonl.gz
    expect_same_set one unpacked
fi
if check "an archive of zstd gives the same bytes"; then
    if command -v zstd >/dev/null; then
        zstd -q -1 documents.jsonl -o documents.jsonl.zst
        preprocess zstandard --input documents.jsonl.zst "${vocabulary[@]}"
        expect_same_set one zstandard
    fi
fi

# ---- refused ---------------------------------------------------------------------------------------------
if check "an archive that is cut off is named with its byte"; then
    head -c 100000 documents.jsonl.gz >short.jsonl.gz
    expect_end 65 "short.jsonl.gz: byte 100000: the archive ends too early" cut --input short.jsonl.gz \
        "${vocabulary[@]}"
fi
if check "a damaged archive is named with its byte"; then
    { head -c 100000 documents.jsonl.gz; tail -c 50000 documents.jsonl; } >bent.jsonl.gz
    expect_end 65 "bent.jsonl.gz: byte" wrong --input bent.jsonl.gz "${vocabulary[@]}"
fi
if check "standard input is read once"; then
    expect_end 64 "twice" twice --input - - "${vocabulary[@]}" </dev/null
fi
if check "no text is refused"; then
    expect_end 65 "no text" empty --input - "${vocabulary[@]}" </dev/null
fi

# ---- ended -----------------------------------------------------------------------------------------------
# Many times the text, with a tokenizer that is there already: seconds, most of them spent in writing.
for _ in $(seq 15); do cat documents.jsonl; done >large.jsonl
large=(--input large.jsonl --tokenizer-model one --workers 1)
make_whole() { preprocess whole "${large[@]}" || complain "$(tail -1 whole.log)"; }

# start NAME: leaves its process in $pid, with something written.
start() {
    "$trireme" preprocess --output-prefix "$1" --append-eod "${large[@]}" >"$1.log" 2>&1 </dev/null &
    pid=$!
    until_true is_there "$1.bin.tmp"
}

if check "a killed run leaves no data set, and the next one writes it"; then
    need make_whole
    start killed
    kill -KILL "$pid"
    wait "$pid" 2>/dev/null
    is_there killed.bin.tmp || complain "it was over before it could be killed"
    [[ ! -e killed.idx && ! -e killed.bin ]] || complain "a killed run leaves a data set"
    preprocess killed "${large[@]}"
    expect_same_set whole killed
fi

if check "two runs do not write one data set"; then
    need make_whole
    start doubled
    preprocess other "${large[@]}" --output-prefix doubled
    { [[ $? == 73 ]] && grep -q "another run" other.log; } || complain "two runs write one data set: $(tail -1 other.log)"
    wait "$pid"
    expect_same_set whole doubled
fi

for signal in INT TERM; do
    if check "SIG$signal ends a run that leaves nothing"; then
        start stopped
        kill -"$signal" "$pid"
        wait "$pid"
        code=$?
        [[ $code == 130 ]] || complain "SIG$signal: exit $code: $(tail -1 stopped.log)"
        expect_nothing stopped
    fi
done

# Whether the program has a handler for TERM, bit 14 of the mask.
catches_term() {
    local caught
    caught=$(sed -n 's/^SigCgt:\s*//p' "/proc/$(pgrep -P $$ -x trireme)/status" 2>/dev/null)
    [[ -n $caught ]] && ((0x$caught >> 14 & 1))
}
if check "a signal ends a run that waits for input"; then
    sleep 60 | "$trireme" preprocess --input - --output-prefix waiting "${vocabulary[@]}" >waiting.log 2>&1 &
    until_true catches_term
    kill -TERM "$(pgrep -P $$ -x trireme)"
    start=$SECONDS
    until_true grep -q "stopped by a signal" waiting.log
    ((SECONDS - start < 5)) || complain "a signal takes $((SECONDS - start)) s while it waits for input"
    kill "$(pgrep -P $$ -x sleep)" 2>/dev/null
    wait
fi

# ---- no room ---------------------------------------------------------------------------------------------
mkdir small
if check "a full disk is named and left as it was"; then
    if mount -t tmpfs -o size=1m tmpfs small 2>/dev/null; then
        timeout 60 "$trireme" preprocess "${large[@]}" --output-prefix small/set >full.log 2>&1
        code=$?
        { [[ $code == 73 ]] && grep -q "small/set.*tmp: cannot write: No space left on device" full.log; } ||
            complain "a full disk: exit $code: $(tail -1 full.log)"
        compgen -G "small/set.*tmp" >/dev/null && complain "a full disk stays full"
        umount small
    else
        echo "skipped: a tmpfs cannot be mounted here"
    fi
fi
# Where nothing can be mounted, a limit of the shell's: it must be no signal that ends the program.
if check "a file that may not grow is named"; then
    (trap '' XFSZ; ulimit -f 500; exec "$trireme" preprocess --output-prefix limited "${large[@]}") >full.log 2>&1
    code=$?
    { [[ $code == 73 || $code == 74 ]] && grep -q "limited.bin.tmp: cannot write: File too large" full.log; } ||
        complain "a file that cannot grow: exit $code: $(tail -1 full.log)"
    expect_nothing limited
fi

finish
