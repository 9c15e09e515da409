#!/usr/bin/env bash
# What is generated from the tables of verbs and options: manual pages that troff takes without a warning, and
# completions that the shells complete with.
# Usage: manual.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/cases.sh
source "${BASH_SOURCE%/*}/cases.sh" "$@"

mapfile -t verbs < <("$trireme" help --verbs)
((${#verbs[@]} > 15)) || complain "there are ${#verbs[@]} verbs"

if check "every verb has a manual page with all of its options"; then
    for verb in "${verbs[@]}"; do
        "$trireme" help --man "$verb" >page.1 || complain "no page of $verb"
        options=$("$trireme" "$verb" --help-all | grep -c '^  --')
        found=$(sed -n '/^\.SH OPTIONS/,$p' page.1 | grep -c '^\.B \\-\\-')
        [[ $options == "$found" && $options != 0 ]] || complain "$verb: $found of $options options are on its page"
    done
    "$trireme" help --man >page.1
    for verb in "${verbs[@]}"; do grep -q "trireme..${verb//-/..} (1)" page.1 || complain "$verb is not in the page trireme(1)"; done
fi
# The usage of a verb in its full help, a line for each form: what follows "trireme VERB".
forms() { "$trireme" "$1" --help-all | sed -n "/^usage:/,/^\$/s/^[u ][s ][a ][g ][e ][: ] trireme $1 \?//p"; }
# The same in its manual page.
synopsis() { sed -n '/^\.SH SYNOPSIS/,/^\.SH EXAMPLES/{/^\./d;s/\\f.//g;s/\\-/-/g;'"s/^trireme $1 \?//p}"; }
if check "usage and synopsis have the words that a verb needs, and no others"; then
    for verb in "${verbs[@]}"; do
        forms "$verb" >usage
        "$trireme" help --man "$verb" | synopsis "$verb" | diff usage - >log || complain "$verb: its page: $(cat log)"
        [[ -s usage ]] || complain "$verb has no usage"
        # Without words a verb that needs some refuses the command line, and one that takes none does with a word.
        stray=(stray)
        ! grep -qvE '^(\[options\]|--.*|)$' usage || stray=()
        "$trireme" "$verb" "${stray[@]}" >log 2>&1 </dev/null
        status=$?
        [[ $status == 64 ]] || complain "$verb ${stray[*]}, of usage '$(head -1 usage)': status $status, $(tail -1 log)"
    done
    for row in "watch:RUN [options]" "report:RUN ... --html FILE [options]" "checkpoint:diff PATH PATH" \
        "supervise:[options] -- COMMAND [ARGUMENT ...]"; do
        forms "${row%%:*}" | grep -qxF -- "${row#*:}" || complain "${row%%:*} lacks the form ${row#*:}"
    done
    for action in list inspect verify diff reshard; do
        "$trireme" checkpoint "$action" 2>&1 | sed -n 's/.*usage: trireme checkpoint //p'
    done >messages
    forms checkpoint | diff - messages >log || complain "messages of checkpoint: $(cat log)"
fi
if check "a page has the exit statuses of its verb"; then
    status_of() { sed -n "/^\.SH EXIT STATUS/,/^\.SH SEE/{/^\.B $1\$/,/^\.TP/p}" page.1; }
    for row in "1:checkpoint diff:checkpoint" "1:supervise:supervise" "75:supervise:supervise" \
        "80:a core computed:verify-machine" "130:the same command goes on:train" "74:not whole:selftest"; do
        IFS=: read -r status words verb <<<"$row"
        for page in "$verb" ""; do
            "$trireme" help --man ${page:+"$page"} >page.1
            status_of "$status" | grep -q "$words" || complain "trireme${page:+-$page}: $status is not '$words'"
        done
        "$trireme" help --man watch >page.1
        ! status_of "$status" | grep "$words" || complain "trireme-watch has $status '$words'"
    done
fi
if check "an option that several verbs have is described for each"; then
    for verb in plan goodput report; do
        "$trireme" help --man "$verb" | grep -A1 '^\.B \\-\\-html' | grep -q "${verb/#plan/of the plan}" || complain "$verb: --html is described for others"
    done
fi
if check "troff takes the pages without a warning"; then
    if command -v groff >/dev/null; then
        for verb in "" "${verbs[@]}"; do
            # shellcheck disable=SC2086 # no verb is no word
            "$trireme" help --man $verb | groff -man -Tutf8 -ww 2>&1 >/dev/null | grep -v "cannot adjust line" | head -3 >warnings
            [[ ! -s warnings ]] || complain "$verb: $(cat warnings)"
        done
    fi
fi

# completes SHELL WORDS WANTED: a line of these words, whose last one is begun, is completed to what is wanted.
bash_completes() {
    local COMP_WORDS COMP_CWORD COMPREPLY
    read -ra COMP_WORDS <<<"$1 ."
    unset 'COMP_WORDS[-1]'
    [[ $1 == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _trireme
    [[ " ${COMPREPLY[*]} " == *" $2 "* ]] || complain "bash: '$1' becomes ${COMPREPLY[*]:0:5}, not $2"
    [[ -z $(printf '%s\n' "${COMPREPLY[@]}" | sort | uniq -d) ]] || complain "bash: '$1' becomes twice the same: ${COMPREPLY[*]:0:5}"
}
if check "bash completes verbs, options and values"; then
    "$trireme" help --completion bash >completion.bash
    # shellcheck disable=SC1091
    source ./completion.bash || complain "bash does not take it"
    bash_completes "trireme pre" preprocess
    bash_completes "trireme train --num-l" --num-layers
    bash_completes "trireme train --t" --tp
    bash_completes "trireme train --device c" check
    bash_completes "trireme plan --no" --no-bias-gelu-fusion
    bash_completes "trireme export --to " gguf
    for verb in "${verbs[@]}"; do bash_completes "trireme $verb --h" --help-all; done
    for verb in "${verbs[@]}"; do bash_completes "trireme help ${verb:0:3}" "$verb"; done
    bash_completes "trireme help --" --man
    bash_completes "trireme help --man sch" schedule
    bash_completes "trireme help --completion " fish
    bash_completes "trireme memory --model " gpt3-175b
    bash_completes "trireme supervise -- " train
    bash_completes "trireme supervise --elastic off -- mpirun -n 2 trireme train --num-l" --num-layers
    bash_completes "trireme supervise --ela" --elastic
    bash_completes "trireme supervise -- train --model gpt2" gpt2-124m
    while read -r name _; do bash_completes "trireme train --model ${name::2}" "$name"; done < <("$trireme" models | tail -n +2)
    COMP_WORDS=(trireme train --load x) COMP_CWORD=3
    _trireme
    [[ ${#COMPREPLY[@]} == 0 ]] || complain "bash: a path is completed to ${COMPREPLY[*]}"
fi
if check "the words that a verb takes first are completed, and are those that it knows"; then
    "$trireme" help --completion bash >completion.bash
    # shellcheck disable=SC1091
    source ./completion.bash || complain "bash does not take it"
    for row in "checkpoint:list inspect verify diff reshard" "data:inspect verify sample" "tokenizer:train encode decode inspect"; do
        verb=${row%%:*} words=${row#*:}
        bash_completes "trireme $verb " "$words"
        for word in $words; do
            "$trireme" "$verb" "$word" >known 2>&1 </dev/null
            grep -qE "$verb $word: (did|unknown|there)|$verb $word is not known" known && complain "$(cat known)"
        done
        bash_completes "trireme $verb ${words##* } --help" --help
    done
    "$trireme" checkpoint lisst >known 2>&1
    grep -q "checkpoint lisst: did you mean list" known || complain "$(cat known)"
fi
if check "fish completes verbs, options and values"; then
    if command -v fish >/dev/null; then
        "$trireme" help --completion fish >trireme.fish
        for row in "trireme pre:preprocess" "trireme train --num-l:--num-layers" "trireme train --device c:check" \
            "trireme help sche:schedule" "trireme checkpoint resh:reshard" "trireme train --model gpt3-17:gpt3-175b"; do
            HOME=$PWD fish -c "source trireme.fish; complete -C '${row%:*}'" 2>&1 | grep "^${row#*:}" >/dev/null ||
                complain "fish: '${row%:*}' does not become ${row#*:}"
        done
    fi
fi
if check "zsh takes its completion"; then
    if command -v zsh >/dev/null; then
        "$trireme" help --completion zsh >_trireme
        zsh -n _trireme 2>warnings || complain "zsh: $(cat warnings)"
        HOME=$PWD zsh -fc 'fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -d dump; print ${_comps[trireme]}' |
            grep -x _trireme >/dev/null || complain "zsh does not find the completion of trireme"
    fi
fi
# What zsh's completion would offer, one a line: its own functions are replaced by ones that print.
cat >offered.zsh <<'END'
compadd() { print -l -- "${@:#--}" }
_describe() { print -l -- "${(@)${(@P)argv[-1]}%%:*}" }
_files() { print FILES }
line() { local -a words=("$@"); local CURRENT=$#words; source ./_trireme }
line "${(@)${(s: :)1}#_}"
END
if check "zsh completes verbs, their words, options and values"; then
    if command -v zsh >/dev/null; then
        "$trireme" help --completion zsh >_trireme
        # "_" stands for an empty last word.
        for row in "trireme _:preprocess" "trireme _:help" "trireme help _:plan" "trireme help --completion _:zsh" \
            "trireme checkpoint _:reshard" "trireme checkpoint list _:FILES" "trireme train --n:--num-layers" \
            "trireme train --model _:gpt3-175b" "trireme supervise -- _:train" "trireme supervise -- train --n:--num-layers" \
            "trireme supervise --e:--elastic" "trireme checkpoint --h:--help"; do
            zsh -f offered.zsh "${row%:*}" >offered 2>&1
            grep -x -- "${row##*:}" offered >/dev/null || complain "zsh: '${row%:*}' becomes $(head -5 offered), not ${row##*:}"
            [[ -z $(sort offered | uniq -d) ]] || complain "zsh: '${row%:*}' becomes twice the same: $(sort offered | uniq -d | head -3)"
        done
    fi
fi
check "another shell is refused" true
"$trireme" help --completion csh >refused 2>&1
[[ $? == 64 && $(cat refused) == *"bash, zsh and fish"* ]] || complain "$(cat refused)"
finish
