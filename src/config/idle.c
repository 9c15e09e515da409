// Tells the user of options that have no effect: by one table (idle.def), and by the kind of --schedule.
#include "config/rules.h"
#include "layout/kinds.h"
#include <string.h>

typedef struct {
    const char *options, *conditions, *why;
} IdleRow;

static const IdleRow rows[] = {
#define IDLE(options, conditions, why) {options, conditions, why},
#include "config/idle.def"
#undef IDLE
};

// A condition of a row, such as NAME=!VALUE|VALUE.
typedef struct {
    int index; // of the option NAME
    bool other;
    const char *values; // in the row
    size_t length;
} Condition;

// The option of the name that begins here and ends with a blank, '=' or the text.
static int option_at(const char *text) {
    char name[80];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text, " ="), text);
    const OptionInfo *option = meaning_of(EVERY_VERB, name).option;
    CHECK(option, "idle.def has an option that is none: %s", name);
    return (int)(option - option_table);
}

static Condition condition_at(const char *text) {
    Condition c = {.index = option_at(text)};
    c.values = text + strcspn(text, "=") + 1;
    c.other = *c.values == '!';
    c.values += c.other;
    c.length = strcspn(c.values, " ");
    return c;
}

// Where the next word begins.
static const char *next_word(const char *text) {
    text += strcspn(text, " ");
    return text + strspn(text, " ");
}

static bool is_among(const char *word, const char *values, size_t length) {
    size_t size = strlen(word);
    for (const char *end = values + length;; values++) {
        size_t one = strcspn(values, "| ");
        if (one > (size_t)(end - values)) one = (size_t)(end - values);
        if (one == size && !memcmp(word, values, size)) return true;
        values += one;
        if (values >= end) return false;
    }
}

static bool holds(const Options *o, Condition c) {
    Text value = {0};
    value_print(o, &option_table[c.index], &value);
    bool among = is_among(text_string(&value), c.values, c.length);
    text_free(&value);
    return among != c.other;
}

// A condition counts for a verb that has its option.
static bool is_known(const Options *o, int index) { return option_table[index].verbs & o->store->verb; }

// Returns whether no condition of a row holds; false where the verb knows none.
static bool is_idle(const Options *o, const IdleRow *row) {
    bool known = false;
    for (const char *c = row->conditions; *c; c = next_word(c)) {
        Condition condition = condition_at(c);
        if (!is_known(o, condition.index)) continue;
        if (holds(o, condition)) return false;
        known = true;
    }
    return known;
}

static void add_name(int index, Text *out) {
    const char *spellings = option_table[index].spellings;
    text_add(out, "--%.*s", (int)strcspn(spellings, " "), spellings);
}

// Says where the option has an effect: "it is for --trace or --optimizer muon".
static void explain(const Options *o, const IdleRow *row, Text *out) {
    const char *before = "it is ";
    if (*row->why) text_add(out, "%s", row->why);
    for (const char *c = row->conditions; *c && !*row->why; c = next_word(c)) {
        Condition condition = condition_at(c);
        if (!is_known(o, condition.index)) continue;
        bool flag = option_table[condition.index].type == FLAG, any = condition.length == 0;
        bool without = flag && condition.values[0] == 'f', other = !flag && !any && condition.other;
        text_add(out, "%s%s", before, without ? "not for " : "for ");
        add_name(condition.index, out);
        if (!flag && !any)
            text_add(out, "%s %.*s", other ? " other than" : "", (int)condition.length, condition.values);
        before = " or ";
    }
}

static void note_option(Options *o, int index, const char *why) {
    Text name = {0};
    add_name(index, &name);
    if (option_given(o, index)) note_idle(o, name.data, why);
    text_free(&name);
}

// `told`: options of which the user has been told; one reason is enough.
static void note_row(Options *o, const IdleRow *row, bool told[NUM_OPTIONS]) {
    Text why = {0};
    explain(o, row, &why);
    for (const char *name = row->options; *name; name = next_word(name)) {
        int index = option_at(name);
        if (is_known(o, index) && !told[index]) note_option(o, index, text_string(&why));
        told[index] = true;
    }
    text_free(&why);
}

void options_note_idle(Options *o) {
    bool told[NUM_OPTIONS] = {0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (is_idle(o, &rows[i])) note_row(o, &rows[i], told);
}

void note_idle_settings(Options *o) {
    static const struct {
        int index;
        ScheduleSetting setting;
    } settings[] = {{OPT_schedule_times, SETTING_TIMES},
                    {OPT_schedule_stash_limit, SETTING_STASH_LIMIT},
                    {OPT_microbatch_group_size_per_virtual_pipeline_stage, SETTING_GROUP}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        Text why = {0};
        text_add(&why, "it is for --schedule ");
        schedule_kind_names(settings[i].setting, " or ", &why);
        if (!(schedule_kind(o->schedule)->settings & settings[i].setting))
            note_option(o, settings[i].index, text_string(&why));
        text_free(&why);
    }
}
