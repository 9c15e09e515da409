#!/usr/bin/env bash
# The documentation does what it says. The commands of the pages that are read with a terminal beside them (blocks of
# ```sh) run as they stand, in their order; on all pages each command that begins with the program has a verb and options
# that exist; pictures are what their commands draw; links lead to files and headings that are there; the reference is
# what the program's tables print.
# Usage: book.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/cases.sh
source "${BASH_SOURCE%/*}/cases.sh" "$@"
root=$(realpath "${TRIREME_BOOK:-$here/..}") # TRIREME_BOOK: where it is installed
mkdir bin mytext
ln -s "$trireme" bin/trireme
export PATH=$PWD/bin:$PATH
for verb in $(trireme help --verbs); do trireme "$verb" --help-all >"mytext/$verb.txt"; done

# blocks PAGE: its commands, where this machine has what they need.
blocks() {
    awk '/^```sh$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$1" >all.sh
    if command -v mpirun >/dev/null && trireme --version | grep -q "mpi ("; then cat all.sh; else grep -v ^mpirun all.sh; fi
}
for page in start train plan cluster recover watch schedules bits generate evaluate; do
    check "the commands of $page.md run" || continue
    mkdir "$page"
    ln -s ../mytext "$root/measured" "$page"
    blocks "$root/docs/$page.md" >commands.sh
    (($(grep -c trireme commands.sh) > 4)) || complain "there are no commands"
    (cd "$page" && timeout -k 5 400 bash -exuo pipefail ../commands.sh) >log 2>&1 </dev/null ||
        complain "status $? after: $(grep '^+' log | tail -1) $(tail -3 log)"
    wait
done

if check "the pictures of schedules.md are what its commands draw"; then
    mkdir pictures
    blocks "$root/docs/schedules.md" | grep -e --svg >draw.sh
    (cd pictures && bash -euo pipefail ../draw.sh) >log 2>&1 || complain "$(tail -3 log)"
    grep -oE '[^(]+\.svg\)$' "$root/docs/schedules.md" | tr -d ')' | sort >shown
    (($(wc -l <shown) > 4)) || complain "the page has no pictures"
    diff <(ls pictures) shown >log || complain "the page shows others than it draws: $(cat log)"
    for picture in pictures/*; do
        cmp "$picture" "$root/docs/${picture#*/}" >log 2>&1 ||
            complain "docs/${picture#*/} is older than the command above it, which draws it anew in docs/: $(cat log)"
    done
fi

# commands_of FILE: the program's commands in blocks and in `code`, a line each, without comments.
commands_of() {
    # shellcheck disable=SC2016 # backquotes of the pages
    sed -e ':join' -e '/\\$/{N;s/\\\n/ /;b join' -e '}' "$1" | grep -oE '(^|`|    |-- |&& )(build/)?trireme [^`]*' |
        sed -E 's/^(`|-- |&& | )*//; s/ +#.*//; s/[^ ]*<TAB>.*//; s/[|>&].*//'
}
if check "every verb and option on a page exists"; then
    for verb in $(trireme help --verbs); do
        # A flag that is on has a negative form, and every name a form with "_".
        sed -n 's/^ *\(--[a-z].*\)/\1/p; s/.*also \(--.*\)/\1/p; s/.*; \(--no-[a-z0-9-]*\) turns.*/\1/p' "mytext/$verb.txt" |
            grep -oE -- '--[a-z0-9-]+' | sort -u >"$verb.options"
    done
    for file in "$root"/README.md "$root"/docs/*.md "$root"/examples/README.md; do
        [[ $file != */reference.md ]] || continue
        commands_of "$file" | while read -r _ verb words; do
            [[ $verb =~ ^[a-z][a-z-]*$ && $verb != help ]] || continue
            [[ -s $verb.options ]] || { complain "${file##*/}: no verb is named $verb: $verb $words" && continue; }
            # `supervise` and a launcher stand before another command.
            words=" $words"
            [[ $verb != supervise ]] || words=${words%% -- *}
            grep -oE -- ' --[a-z][a-z0-9_-]+' <<<"$words" | while read -r option; do
                grep -qxF -- "${option//_/-}" "$verb.options" || [[ $option =~ ^--(help|help-all|version)$ ]] ||
                    complain "${file##*/}: $verb has no option $option: $words"
                echo "$option" >>counted
            done
        done
    done
    (($(wc -l <counted) > 200)) || complain "only $(wc -l <counted) options were found"
fi

# anchor: GitHub's name of each heading on standard input.
anchor() { sed -nE 's/^#+ +//p' | tr 'A-Z ' 'a-z-' | sed -E 's/[^a-z0-9_-]//g'; }
if check "links lead somewhere"; then
    for file in "$root"/*.md "$root"/docs/*.md "$root"/examples/*.md; do
        grep -oE '\]\([^) ]+\)' "$file" | sed -E 's/^\]\(//; s/\)$//' | grep -vE '^(https?|mailto):' | while read -r link; do
            target=${link%%#*}
            path=${file%/*}/$target
            [[ -n $target ]] || path=$file
            [[ -e $path ]] || { complain "${file##*/}: $link does not exist" && continue; }
            [[ $link != *"#"* ]] || anchor <"$path" | grep -qxF -- "${link#*#}" || complain "${file##*/}: $link has no such heading"
        done
    done
fi
if check "the reference is made from the tables"; then
    "$root/tools/reference.sh" "$trireme" >reference.md || complain "it cannot be made"
    diff "$root/docs/reference.md" reference.md >log ||
        complain "docs/reference.md is not of this program; tools/reference.sh $trireme >docs/reference.md makes it: $(head -3 log)"
fi
if check "the page of what was measured has the words of its source"; then
    grep -v '^{{' "$root/tools/performance.md" | grep -vxF -f "$root/docs/performance.md" >log &&
        complain "docs/performance.md is older than tools/performance.md; ./run bench page makes it: $(head -3 log)"
fi
finish
