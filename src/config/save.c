// Writes options as text: the saved configuration, the list that ranks compare, and the lines of the log.
#include "config/table.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *origin_name(Origin origin) {
    static const char *const names[] = {"default", "model", "checkpoint", "file", "command line", "derived"};
    return names[origin];
}

// Adds a word in double quotes, so that YAML reads it as text.
static void add_quoted(const char *word, Text *out) {
    text_add(out, "\"");
    for (const char *c = word; *c; c++) text_add(out, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    text_add(out, "\"");
}

static void add_yaml_value(const Options *options, const OptionInfo *option, Text *out) {
    const void *field = (const char *)options + option->offset;
    if (option->type == WORD) {
        add_quoted(*(const OptionWord *)field, out);
    } else if (option->type == LIST) {
        const OptionList *list = field;
        text_add(out, "[");
        for (int i = 0; i < list->count; i++) {
            if (i) text_add(out, ", ");
            add_quoted(list->items[i], out);
        }
        text_add(out, "]");
    } else {
        value_print(options, option, out);
    }
}

// Writes an option that neither the user nor the checkpoint of --load has chosen as a comment: its value follows from
// the others, and differs on another grid or with another --model.
static void save_option(const Options *options, const OptionInfo *option, Text *out) {
    Origin origin = options->store->origins[option - option_table];
    if (!value_is_set(options, option)) {
        text_add(out, "# %s: unset\n", option->field);
        return;
    }
    bool chosen = origin == FROM_CHECKPOINT || origin == FROM_FILE || origin == FROM_COMMAND_LINE;
    text_add(out, "%s%s: ", chosen ? "" : "# ", option->field);
    add_yaml_value(options, option, out);
    text_add(out, "  # %s\n", origin_name(origin));
}

void options_save(const Options *options, Verb verb, Text *out) {
    text_add(out,
             "# Every option of this run and where its value is from. Read back with --config, which takes\n"
             "# what was chosen and works out the comments again.\n");
    const char *section = "";
    for (const OptionInfo *option = option_table; option < option_table + NUM_OPTIONS; option++) {
        if (!(option->verbs & verb) || (option->verbs & COMMAND_LINE_ONLY)) continue;
        if (strcmp(section, option->section)) text_add(out, "\n# %s\n", option->section);
        section = option->section;
        save_option(options, option, out);
    }
}

// Adds a value, which may have several lines, on one line.
static void add_on_one_line(const char *value, Text *out) {
    for (const char *c = value; *c; c++) text_add(out, (unsigned char)*c < ' ' ? "\\x%02x" : "%c", *c);
}

bool options_given(const Options *options, const char *field) {
    Origin origin = options_origin(options, field);
    return origin == FROM_FILE || origin == FROM_COMMAND_LINE;
}

static void add_words(const Options *options, const OptionInfo *option, CommandWords *out) {
    const void *field = (const char *)options + option->offset;
    int name = (int)strcspn(option->spellings, " ");
    bool off = option->type == FLAG && !*(const OptionFlag *)field;
    words_add(out, "--%s%.*s", off ? "no-" : "", name, option->spellings);
    if (option->type == FLAG) return;
    if (option->type == LIST) {
        const OptionList *list = field;
        for (int i = 0; i < list->count; i++) words_add(out, "%s", list->items[i]);
        return;
    }
    Text value = {0};
    value_print(options, option, &value);
    words_add(out, "%s", text_string(&value));
    text_free(&value);
}

static bool is_among(const char *field, const char *const *fields) {
    while (*fields && strcmp(field, *fields) != 0) fields++;
    return *fields != NULL;
}

void options_words(const Options *options, Verb verb, const char *const *without, CommandWords *out) {
    for (const OptionInfo *option = option_table; option < option_table + NUM_OPTIONS; option++) {
        if (!(option->verbs & verb) || (option->verbs & COMMAND_LINE_ONLY)) continue;
        if (!options_given(options, option->field) || !value_is_set(options, option)) continue;
        if (!is_among(option->field, without)) add_words(options, option, out);
    }
}

void options_list(const Options *options, Text *out) {
    Verb verb = options->store->verb;
    text_add(out, "the verb\t%s\n", verb_name(verb));
    for (const OptionInfo *option = option_table; option < option_table + NUM_OPTIONS; option++) {
        if (!(option->verbs & verb) || (option->verbs & MAY_DIFFER)) continue;
        Text value = {0};
        value_print(options, option, &value);
        text_add(out, "--%.*s\t", (int)strcspn(option->spellings, " "), option->spellings);
        add_on_one_line(value_is_set(options, option) ? text_string(&value) : "unset", out);
        text_add(out, "\n");
        text_free(&value);
    }
}

// Adds the value as Python prints it, since scripts search logs of Megatron-LM for such values.
static void add_python_value(const Options *options, const OptionInfo *option, Text *out) {
    const void *field = (const char *)options + option->offset;
    if (!value_is_set(options, option)) {
        text_add(out, "None");
    } else if (option->type == FLAG) {
        text_add(out, "%s", *(const OptionFlag *)field ? "True" : "False");
    } else if (option->type == LIST) {
        const OptionList *list = field;
        for (int i = 0; i < list->count; i++) text_add(out, "%s'%s'", i ? ", " : "[", list->items[i]);
        text_add(out, "]");
    } else {
        value_print(options, option, out);
    }
}

static int by_field(const void *a, const void *b) {
    return strcasecmp((*(const OptionInfo *const *)a)->field, (*(const OptionInfo *const *)b)->field);
}

void options_print(const Options *options, Verb verb, Text *out) {
    static const char line[] = "------------------------";
    static const char dots[] = "................................................";
    const OptionInfo *sorted[NUM_OPTIONS];
    size_t count = 0;
    for (const OptionInfo *option = option_table; option < option_table + NUM_OPTIONS; option++)
        if ((option->verbs & verb) && !(option->verbs & COMMAND_LINE_ONLY)) sorted[count++] = option;
    qsort(sorted, count, sizeof sorted[0], by_field);
    text_add(out, "%s arguments %s\n", line, line);
    for (size_t i = 0; i < count; i++) {
        int num_dots = 48 - (int)strlen(sorted[i]->field);
        text_add(out, "  %s %.*s ", sorted[i]->field, num_dots > 0 ? num_dots : 0, dots);
        add_python_value(options, sorted[i], out);
        text_add(out, "\n");
    }
    text_add(out, "%.20s end of arguments %.21s\n", line, line);
}
