// Prints the options of a verb for manual pages, and lists their names for completions.
#include "config/table.h"
#include <string.h>

// Text of a manual page: a backslash and a leading dot or quote would be commands of troff, "-" would become a hyphen.
void roff_add(const char *string, Text *out) {
    for (const char *c = string; *c; c++) {
        bool begins_line = c == string || c[-1] == '\n';
        if (begins_line && (*c == '.' || *c == '\'')) text_add(out, "\\&");
        if (*c == '\\')
            text_add(out, "\\e");
        else if (*c == '-')
            text_add(out, "\\-");
        else
            text_add_bytes(out, c, 1);
    }
}

static void add_names(const OptionInfo *option, Text *out) {
    text_add(out, ".TP\n.B ");
    for (const char *name = option->spellings; *name;) {
        size_t size = strcspn(name, " ");
        text_add(out, "%s\\-\\-", name == option->spellings ? "" : ", ");
        for (size_t i = 0; i < size; i++) text_add(out, name[i] == '-' ? "\\-" : "%c", name[i]);
        name += size + strspn(name + size, " ");
    }
    if (*option->value) text_add(out, " \\fI%s\\fR", option->value);
    text_add(out, "\n");
}

static void add_option(const OptionInfo *option, Text *out) {
    Text facts = {0};
    add_names(option, out);
    roff_add(option->help, out);
    text_add(out, ".\n");
    bool on = option->type == FLAG && *option->default_value;
    bool ranges = *option->range && strcmp(option->range, "text") != 0 && !strstr(option->range, "repeat");
    if (strstr(option->range, "repeat")) text_add(&facts, "It may be given several times. ");
    if (ranges) {
        text_add(&facts, option->type == WORD ? "One of " : "In ");
        option_choices(option, &facts);
        text_add(&facts, ". ");
    }
    if (on)
        text_add(&facts, "On; --no-%.*s turns it off.", (int)strcspn(option->spellings, " "),
                 option->spellings);
    else if (*option->default_value)
        text_add(&facts, "Default: %s.", option->default_value);
    roff_add(text_string(&facts), out);
    text_add(out, facts.size ? "\n" : "");
    text_free(&facts);
}

// Words in capitals stand for others and are in italics, as the values of options are.
static void add_words(const char *words, Text *out) {
    for (size_t size; *words; words += size) {
        char word[80];
        size = strspn(words, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
        bool stands = size > 0;
        if (!size) size = strcspn(words, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
        snprintf(word, sizeof word, "%.*s", (int)size, words);
        if (stands) text_add(out, "\\fI");
        roff_add(word, out);
        if (stands) text_add(out, "\\fR");
    }
}

static void add_synopsis(Verb verb, Text *out) {
    Text words = {0};
    text_add(out, ".SH SYNOPSIS\n");
    for (int i = 0; verb_form(verb, i, &words); i++) {
        text_add(out, "%s\\fBtrireme ", i ? ".br\n" : "");
        roff_add(verb_name(verb), out);
        text_add(out, "\\fR%s", words.size ? " " : "");
        add_words(text_string(&words), out);
        text_add(out, "\n");
        text_free(&words);
    }
}

void options_manual(Verb verb, Text *out) {
    const char *section = "";
    add_synopsis(verb, out);
    text_add(out, ".SH EXAMPLES\n.nf\n");
    roff_add(verb_examples(verb), out);
    text_add(out, ".fi\n.SH OPTIONS\n");
    for (const OptionInfo *option = option_table; option < option_table + NUM_OPTIONS; option++) {
        if (!(option->verbs & verb)) continue;
        if (strcmp(section, option->section) != 0) text_add(out, ".SS %s\n", option->section);
        section = option->section;
        add_option(option, out);
    }
}

// Adds the words that an option takes, "a|b", where it takes no other ones. Whether it does so.
static bool add_choices(const OptionInfo *option, Text *out) {
    if (option == &option_table[OPT_model]) {
        for (int i = 0; i < num_model_presets; i++)
            text_add(out, "%s%s", i ? "|" : "", model_presets[i].name);
        return true;
    }
    bool chooses = option->type == WORD && *option->range && strncmp(option->range, "text", 4) != 0;
    if (chooses) option_choices(option, out);
    return chooses;
}

static void see_names(const OptionInfo *option, SeeOption *see, void *self) {
    char text[80];
    Text choices = {0};
    bool chooses = add_choices(option, &choices);
    bool is_path = (option->type == WORD || option->type == LIST) && !chooses;
    OptionName name = {text, option->help, text_string(&choices), option->type != FLAG, is_path};
    for (const char *spelling = option->spellings; *spelling;) {
        size_t size = strcspn(spelling, " ");
        snprintf(text, sizeof text, "--%.*s", (int)size, spelling);
        see(self, &name);
        spelling += size + strspn(spelling + size, " ");
    }
    if (option->type == FLAG && *option->default_value) {
        snprintf(text, sizeof text, "--no-%.*s", (int)strcspn(option->spellings, " "), option->spellings);
        see(self, &name);
    }
    text_free(&choices);
}

void options_names(Verb verb, SeeOption *see, void *self) {
    for (const OptionInfo *option = option_table; option < option_table + NUM_OPTIONS; option++)
        if (option->verbs & verb) see_names(option, see, self);
}
