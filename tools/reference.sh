#!/usr/bin/env bash
# Prints docs/reference.md: the verbs, and each option once, by section, with the verbs that have it. All of it is what
# the program prints from its own tables (`help --verbs`, `VERB --help-all`).
#   tools/reference.sh PATH/trireme >docs/reference.md
set -euo pipefail
export LC_ALL=C
trireme=$1

cat <<'END'
# Reference

Every verb and every option. `trireme VERB --help` has the usual ones with examples, `man trireme-VERB` all of a verb. Options are Megatron-LM's where it
has them; `--name=value` works too, and in a file of `--config` a line `name: value`. This page is made by `tools/reference.sh` from what the program
prints.

## Verbs

| verb | |
|---|---|
END
for verb in $("$trireme" help --verbs); do
    # shellcheck disable=SC2016 # backquotes of the page
    printf '| `%s` | %s |\n' "$verb" "$("$trireme" "$verb" --help-all | sed -n "1s/^trireme $verb: //p")"
done
# Each option has two lines: its name and what it does, and after blanks alone its type, range, default, other names.
for verb in $("$trireme" help --verbs); do
    "$trireme" "$verb" --help-all | sed "s/^/$verb\t/"
done | awk -F '\t' '
    function flush() {
        if (name == "") return
        key = section "\t" name "\t" help "\t" facts
        if (!(key in verbs)) {
            if (!(section in known)) { known[section] = 1; sections[++num_sections] = section }
            keys[++num_keys] = key
            verbs[key] = verb
        } else {
            verbs[key] = verbs[key] ", " verb
        }
        name = ""
    }
    { line = $2 }
    $1 != verb { flush(); verb = $1; section = ""; next }
    line ~ /^[A-Z]/ { flush(); section = line; next }
    line ~ /^  --/ {
        flush()
        line = substr(line, 3)
        at = match(line, /  +/) # names and help are apart by two blanks, or by one after a long name
        if (!at || RSTART > 45) { at = index(line, " "); at += index(substr(line, at + 1), " ") }
        name = substr(line, 1, at - 1)
        help = substr(line, at)
        sub(/^ +/, "", help)
        facts = ""
        next
    }
    line ~ /^   +[^ ]/ { sub(/^ +/, "", line); facts = line; next }
    { flush() }
    END {
        flush()
        for (s = 1; s <= num_sections; s++) {
            printf "\n## %s\n\n| option | what it does | values | verbs |\n|---|---|---|---|\n", sections[s]
            for (k = 1; k <= num_keys; k++) {
                split(keys[k], part, "\t")
                if (part[1] != sections[s]) continue
                gsub(/\|/, "\\|", part[3])
                gsub(/\|/, "\\|", part[4])
                printf "| `%s` | %s | %s | %s |\n", part[2], part[3], part[4], verbs[keys[k]]
            }
        }
    }'
