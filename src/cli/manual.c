// Prints what is generated from the tables of verbs and options: manual pages, and completions for three shells.
#include "cli/manual.h"
#include "base/version.h"
#include "supervise/supervise.h"
#include <string.h>

// ---- manual pages -------------------------------------------------------------------------------------

// Exit statuses in ascending order, with their meanings. The page of a verb prints the rows that have this verb.
static const struct {
    Verb verbs;
    int status;
    const char *what;
} statuses[] = {
    {EVERY_VERB, OK, "success"},
    {FOR_CHECKPOINT, ERR_OTHER, "checkpoint diff: the checkpoints differ"},
    {FOR_SUPERVISE, ERR_OTHER, "supervise: the command keeps ending with status 0 while the run is not done"},
    {EVERY_VERB, ERR_USAGE, "wrong command line"},
    {EVERY_VERB, ERR_DATA, "damaged input"},
    {EVERY_VERB, ERR_NO_INPUT, "a file that does not exist"},
    {EVERY_VERB, ERR_UNAVAILABLE, "not available on this machine, or it does not fit"},
    {EVERY_VERB, ERR_BUG, "a bug of trireme"},
    {EVERY_VERB, ERR_OS, "the operating system refused memory, threads or the like"},
    {EVERY_VERB, ERR_CREATE, "a file cannot be created"},
    {EVERY_VERB, ERR_IO, "a file cannot be read or written"},
    {FOR_SELFTEST, ERR_IO, "selftest: after a fault a checkpoint was not whole"},
    {FOR_SUPERVISE, STATUS_REQUEUE,
     "supervise: asked to stop by TERM, HUP, USR1, USR2 or XCPU; start the same command again"},
    {EVERY_VERB, ERR_NUMERIC, "numbers that are not finite"},
    {EVERY_VERB, ERR_PERMISSION, "no permission"},
    {EVERY_VERB, ERR_CONFIG, "options that contradict each other"},
    {EVERY_VERB, ERR_HANG, "ranks that wait for each other"},
    {EVERY_VERB & ~FOR_VERIFY_MACHINE, ERR_REPLICAS, "ranks that must hold the same numbers do not"},
    {FOR_VERIFY_MACHINE, ERR_REPLICAS, "verify-machine: a core computed something wrong"},
    {EVERY_VERB & ~FOR_SUPERVISE, INTERRUPTED, "stopped by a signal"},
    {FOR_TRAIN | FOR_FINETUNE, INTERRUPTED, "train, finetune: the same command goes on"},
    {FOR_SUPERVISE, INTERRUPTED, "supervise: stopped by INT; the same command goes on"},
};

static void add_head(const char *name, const char *summary, Text *out) {
    text_add(out, ".TH \"%s\" 1 \"\" \"%s\"\n.SH NAME\n%s \\- ", name, TRIREME_VERSION, name);
    roff_add(summary, out);
    text_add(out, "\n");
}

static void add_tail(Verb verbs, Text *out) {
    int before = -1;
    text_add(out, ".SH EXIT STATUS\n");
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        if (!(statuses[i].verbs & verbs)) continue;
        if (statuses[i].status == before)
            text_add(out, ".br\n");
        else
            text_add(out, ".TP\n.B %d\n", statuses[i].status);
        before = statuses[i].status;
        roff_add(statuses[i].what, out);
        text_add(out, "\n");
    }
    if (verbs & FOR_SUPERVISE)
        text_add(
            out,
            ".PP\nsupervise: if the run is not done and nobody asked it to stop, supervise ends with the last "
            "status of the command, or with 128 + N if signal N ended the command.\n");
}

void manual_add(const Command *command, Text *out) {
    char name[80];
    snprintf(name, sizeof name, "trireme-%s", command->name);
    add_head(name, command->summary, out);
    options_manual(command->verb, out);
    add_tail(command->verb, out);
    text_add(out, ".SH SEE ALSO\n.BR trireme (1)\n");
}

void manual_add_overview(const Command *commands, int count, Text *out) {
    add_head("trireme", "GPT training with composed tensor, pipeline and data parallelism", out);
    text_add(out, ".SH SYNOPSIS\n.B trireme\n.I verb\n.RI [ arguments ]\n.SH VERBS\n");
    for (int i = 0; i < count; i++) {
        text_add(out, ".TP\n.BR trireme\\-");
        roff_add(commands[i].name, out);
        text_add(out, " (1)\n");
        roff_add(commands[i].summary, out);
        text_add(out, ".\n");
    }
    add_tail(EVERY_VERB, out);
}

// ---- completions ----------------------------------------------------------------------------------------

// A shell's string in single quotes.
static void add_quoted(const char *string, Text *out) {
    text_add(out, "'");
    for (const char *c = string; *c; c++) {
        if (*c == '\'')
            text_add(out, "'\\''");
        else
            text_add_bytes(out, c, 1);
    }
    text_add(out, "'");
}

static void add_choices(const char *choices, Text *out) {
    for (const char *c = choices; *c; c++) text_add(out, "%c", *c == '|' ? ' ' : *c);
}

static void add_verbs(const Command *commands, int count, Text *out) {
    for (int i = 0; i < count; i++) text_add(out, "%s%s", i ? " " : "", commands[i].name);
}

// An option and its values, as cases of bash and zsh.
static void add_bash_name(void *out, const OptionName *o) { text_add(out, " %s", o->name); }
static void add_bash_value(void *out, const OptionName *o) {
    if (!*o->choices && o->is_path) return;
    if (!o->takes_value) return;
    text_add(out, "        %s) words='", o->name);
    add_choices(o->choices, out);
    text_add(out, "'; known=yes ;;\n");
}

static void add_bash_verb(const Command *command, Text *out) {
    Text words = {0};
    options_first_words(command->verb, &words);
    text_add(out, "    %s)\n", command->name);
    if (words.size)
        text_add(out, "        ((COMP_CWORD == 2)) && [[ $word != -* ]] && known=yes words='%s'\n",
                 words.data);
    text_free(&words);
    text_add(out, "        case $before in\n");
    options_names(command->verb, add_bash_value, out);
    text_add(out, "        esac\n        [[ -z $known && $word == -* ]] && known=yes words='");
    options_names(command->verb, add_bash_name, out);
    text_add(out, "' ;;\n");
}

// After `supervise ... --` comes `train` or a launcher, and after `train` its options.
static void add_bash(const Command *commands, int count, Text *out) {
    text_add(
        out,
        "# Completion of trireme for bash, made by `trireme help --completion bash`.\n"
        "_trireme() {\n"
        "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words='' known='' i\n"
        "    local verb=${COMP_WORDS[1]} verbs='");
    add_verbs(commands, count, out);
    text_add(out, "'\n"
                  "    COMPREPLY=()\n"
                  "    if ((COMP_CWORD == 1)); then\n"
                  "        mapfile -t COMPREPLY < <(compgen -W \"help $verbs\" -- \"$word\")\n"
                  "        return\n"
                  "    fi\n"
                  "    if [[ $verb == supervise ]]; then\n"
                  "        for ((i = 2; i < COMP_CWORD; i++)); do\n"
                  "            [[ $verb == launcher && ${COMP_WORDS[i]} == train ]] && verb=train\n"
                  "            [[ $verb == supervise && ${COMP_WORDS[i]} == -- ]] && verb=launcher\n"
                  "        done\n"
                  "        [[ $verb == launcher && $before == -- ]] && known=yes words=train\n"
                  "    fi\n"
                  "    case $verb in\n"
                  "    help)\n"
                  "        case $before in\n"
                  "        help) words=\"$verbs --completion --man --verbs\"; known=yes ;;\n"
                  "        --man) words=$verbs; known=yes ;;\n"
                  "        --completion) words='bash zsh fish'; known=yes ;;\n"
                  "        esac ;;\n");
    for (int i = 0; i < count; i++) add_bash_verb(&commands[i], out);
    text_add(out, "    esac\n"
                  "    [[ -z $known ]] || mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
                  "}\n"
                  "complete -o default -F _trireme trireme\n");
}

static void add_zsh_name(void *out, const OptionName *o) {
    Text text = {0};
    text_add(&text, "%s:%s", o->name, o->help);
    text_add(out, "            ");
    add_quoted(text_string(&text), out);
    text_add(out, "\n");
    text_free(&text);
}

static void add_zsh_value(void *out, const OptionName *o) {
    if (!o->takes_value || (!*o->choices && o->is_path)) return;
    text_add(out, "        %s) compadd -- ", o->name);
    add_choices(o->choices, out);
    text_add(out, "; return ;;\n");
}

static void add_zsh_verb(const Command *command, Text *out) {
    Text words = {0};
    options_first_words(command->verb, &words);
    text_add(out, "    %s)\n", command->name);
    if (words.size)
        text_add(out,
                 "        if ((CURRENT == 3)) && [[ $words[3] != -* ]]; then compadd -- %s; return; fi\n",
                 words.data);
    text_free(&words);
    text_add(out, "        case $words[CURRENT-1] in\n");
    options_names(command->verb, add_zsh_value, out);
    text_add(out, "        esac\n        options=(\n");
    options_names(command->verb, add_zsh_name, out);
    text_add(out, "        ) ;;\n");
}

static void add_zsh(const Command *commands, int count, Text *out) {
    text_add(out,
             "#compdef trireme\n# Completion of trireme for zsh, made by `trireme help --completion zsh`.\n"
             "local -a verbs options\n"
             "local verb=$words[2] word\n"
             "verbs=(\n");
    for (int i = 0; i < count; i++) {
        Text text = {0};
        text_add(&text, "%s:%s", commands[i].name, commands[i].summary);
        text_add(out, "    ");
        add_quoted(text_string(&text), out);
        text_add(out, "\n");
        text_free(&text);
    }
    text_add(out, ")\n"
                  "if ((CURRENT == 2)); then\n"
                  "    verbs+=('help:show the common options of a verb')\n"
                  "    _describe verb verbs\n"
                  "    return\n"
                  "fi\n"
                  "if [[ $verb == supervise ]]; then\n"
                  "    for word in $words[3,CURRENT-1]; do\n"
                  "        [[ $verb == launcher && $word == train ]] && verb=train\n"
                  "        [[ $verb == supervise && $word == -- ]] && verb=launcher\n"
                  "    done\n"
                  "    [[ $verb == launcher && $words[CURRENT-1] == -- ]] && compadd -- train\n"
                  "fi\n"
                  "case $verb in\n"
                  "    help)\n"
                  "        case $words[CURRENT-1] in\n"
                  "        help) compadd -- --completion --man --verbs; _describe verb verbs ;;\n"
                  "        --man) _describe verb verbs ;;\n"
                  "        --completion) compadd -- bash zsh fish ;;\n"
                  "        esac\n"
                  "        return ;;\n");
    for (int i = 0; i < count; i++) add_zsh_verb(&commands[i], out);
    text_add(
        out,
        "esac\nif [[ $words[CURRENT] == -* ]]; then\n    _describe -o option options\nelse\n    _files\nfi\n");
}

typedef struct {
    const char *verb;
    Text *out;
} FishVerb;

static void add_fish_name(void *self, const OptionName *o) {
    const FishVerb *verb = self;
    text_add(verb->out, "complete -c trireme -n '__fish_seen_subcommand_from %s' -l %s", verb->verb,
             o->name + 2);
    if (o->takes_value) text_add(verb->out, o->is_path ? " -r -F" : " -x");
    if (*o->choices) {
        text_add(verb->out, " -a '");
        add_choices(o->choices, verb->out);
        text_add(verb->out, "'");
    }
    text_add(verb->out, " -d ");
    // In single quotes fish takes a backslash before a quote.
    text_add(verb->out, "'");
    for (const char *c = o->help; *c; c++) {
        if (*c == '\'' || *c == '\\') text_add(verb->out, "\\");
        text_add_bytes(verb->out, c, 1);
    }
    text_add(verb->out, "'\n");
}

// Fish completes words anywhere; here, as long as none of them is there.
static void add_fish_words(const char *verb, const char *words, Text *out) {
    text_add(
        out,
        "complete -c trireme -n '__fish_seen_subcommand_from %s; and not __fish_seen_subcommand_from %s' "
        "-f -a '%s'\n",
        verb, words, words);
}

static void add_fish(const Command *commands, int count, Text *out) {
    Text verbs = {0};
    text_add(
        out,
        "# Completion of trireme for fish, made by `trireme help --completion fish`.\n"
        "complete -c trireme -n __fish_use_subcommand -f\n"
        "complete -c trireme -n __fish_use_subcommand -f -a help -d 'show the common options of a verb'\n");
    add_verbs(commands, count, &verbs);
    add_fish_words("help", text_string(&verbs), out);
    text_free(&verbs);
    for (int i = 0; i < count; i++) {
        Text words = {0};
        options_first_words(commands[i].verb, &words);
        text_add(out, "complete -c trireme -n __fish_use_subcommand -f -a %s -d ", commands[i].name);
        add_quoted(commands[i].summary, out);
        text_add(out, "\n");
        if (words.size) add_fish_words(commands[i].name, words.data, out);
        text_free(&words);
        options_names(commands[i].verb, add_fish_name, &(FishVerb){commands[i].name, out});
    }
}

Status completion_add(const char *shell, const Command *commands, int count, Text *out) {
    static const struct {
        const char *name;
        void (*add)(const Command *commands, int count, Text *out);
    } shells[] = {{"bash", add_bash}, {"zsh", add_zsh}, {"fish", add_fish}};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(shell, shells[i].name) != 0) continue;
        shells[i].add(commands, count, out);
        return OK;
    }
    return fail(ERR_USAGE, "trireme help --completion %s: there are completions for bash, zsh and fish",
                shell);
}
