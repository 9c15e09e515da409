// Converts the values of options from text and back.
#include "config/table.h"
#include "layout/kinds.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void *field_of(const Options *options, const OptionInfo *option) {
    return (char *)(uintptr_t)options + option->offset;
}

Status source_status(Source source) { return source.origin == FROM_COMMAND_LINE ? ERR_USAGE : ERR_CONFIG; }

// Returns whether `range`, an interval as in options.def, holds x. An upper end that is left out is infinite.
static bool in_range(const char *range, double x) {
    if (!*range) return true;
    char *end;
    double low = strtod(range + 1, &end), high = INFINITY;
    const char *rest = end + 1;
    if (*rest != ')') high = strtod(rest, &end), rest = end;
    bool above = range[0] == '[' ? x >= low : x > low;
    return above && (*rest == ']' ? x <= high : x < high);
}

static Status out_of_range(const OptionInfo *option, const char *word, Source source) {
    return fail(source_status(source), "%s%s: %s is not allowed here; it must be in %s", source.where,
                source.name, word, option->range);
}

// Reads "1000.0" too, since some whole numbers, such as --loss-scale-window, are real numbers in Megatron-LM.
static bool parse_whole(const char *word, int64_t *value) {
    size_t digits = strspn(word, "0123456789");
    const char *zeros = word + digits + 1;
    char whole[32];
    if (!digits || word[digits] != '.' || !*zeros || zeros[strspn(zeros, "0")]) return parse_int(word, value);
    return snprintf(whole, sizeof whole, "%.*s", (int)digits, word) < (int)sizeof whole &&
           parse_int(whole, value);
}

static bool has_auto(const OptionInfo *option) { return strstr(option->range, "|auto") != NULL; }

static Status set_integer(Options *options, const OptionInfo *option, const char *word, Source source) {
    int64_t value;
    if (has_auto(option) && !strcmp(word, "auto")) {
        CHECK(option->type == LONG, "--%s: auto is for a LONG", option->field);
        *(OptionLong *)field_of(options, option) = INT_AUTO;
        return OK;
    }
    if (!parse_whole(word, &value))
        return fail(source_status(source), "%s%s: '%s' is not a whole number; write one such as 16 or 40M",
                    source.where, source.name, word);
    if (!in_range(option->range, (double)value)) return out_of_range(option, word, source);
    if (option->type == LONG) {
        *(OptionLong *)field_of(options, option) = value;
        return OK;
    }
    if (value < -INT32_MAX || value > INT32_MAX)
        return fail(source_status(source), "%s%s: %s is too large; at most %d is allowed", source.where,
                    source.name, word, INT32_MAX);
    *(OptionInt *)field_of(options, option) = (OptionInt)value;
    return OK;
}

static Status set_real(Options *options, const OptionInfo *option, const char *word, Source source) {
    double value;
    if (!parse_double(word, &value))
        return fail(source_status(source), "%s%s: '%s' is not a number; write one such as 0.1 or 1.5e-4",
                    source.where, source.name, word);
    if (!in_range(option->range, value)) return out_of_range(option, word, source);
    *(OptionReal *)field_of(options, option) = value;
    return OK;
}

bool parse_flag(const char *word, bool *value) {
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(word, words[i])) continue;
        *value = i % 2;
        return true;
    }
    return false;
}

static Status set_flag(Options *options, const OptionInfo *option, const char *word, Source source) {
    bool value;
    if (!parse_flag(word, &value))
        return fail(source_status(source), "%s%s: '%s' is neither true nor false", source.where, source.name,
                    word);
    *(OptionFlag *)field_of(options, option) = value;
    return OK;
}

static bool names_schedule(const OptionInfo *option) { return !strcmp(option->range, "schedule"); }

void option_choices(const OptionInfo *option, Text *out) {
    if (names_schedule(option))
        schedule_kind_names(0, "|", out);
    else
        text_add(out, "%s", option->range);
}

static bool is_choice(const OptionInfo *option, const char *word) {
    if (names_schedule(option)) return schedule_kind(word) != NULL;
    size_t length = strlen(word);
    for (const char *choice = option->range; *choice; choice += strspn(choice, "|")) {
        size_t choice_length = strcspn(choice, "|");
        if (length == choice_length && !memcmp(word, choice, length)) return true;
        choice += choice_length;
    }
    return false;
}

static bool is_free_text(const OptionInfo *option) { return !strncmp(option->range, "text", 4); }

// Refuses control characters, because words become parts of messages, file names and the saved configuration. Free
// text may have several lines.
static Status check_word(const OptionInfo *option, const char *word, Source source) {
    if (is_free_text(option)) return OK;
    if (!*word) return fail(source_status(source), "%s%s: the value is empty", source.where, source.name);
    for (const char *c = word; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            return fail(source_status(source), "%s%s: the value has a control character at byte %d",
                        source.where, source.name, (int)(c - word));
    return OK;
}

enum { MAX_CHOICES = 32 };

// Splits "a|b" at the bars, in place.
static int split_choices(char *choices, const char *names[MAX_CHOICES]) {
    int count = 0;
    for (char *rest = choices, *name; (name = strsep(&rest, "|")) && count < MAX_CHOICES;)
        names[count++] = name;
    return count;
}

// The choice that was meant: one that differs in capitals alone, or the nearest; NULL: none is near.
static const char *nearest_choice(const char *word, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (!strcasecmp(word, names[i])) return names[i];
    return text_nearest(word, names, count);
}

static Status unknown_choice(const OptionInfo *option, const char *word, Source source) {
    Text choices = {0}, split = {0};
    const char *names[MAX_CHOICES];
    option_choices(option, &choices);
    text_add(&split, "%s", text_string(&choices));
    const char *nearest = nearest_choice(word, names, split_choices(split.data, names));
    Status status = fail(source_status(source), "%s%s: '%s' is not known; choose from %s%s%s%s", source.where,
                         source.name, word, text_string(&choices), nearest ? "; did you mean " : "",
                         nearest ? nearest : "", nearest ? "?" : "");
    text_free(&choices);
    text_free(&split);
    return status;
}

static Status set_word(Options *options, const OptionInfo *option, const char *word, Source source) {
    if (*option->range && !is_free_text(option) && !is_choice(option, word))
        return unknown_choice(option, word, source);
    *(OptionWord *)field_of(options, option) = options_string(options, word);
    return OK;
}

// Returns whether the words are added to those that the command line has given before.
static bool is_repeated(const Options *options, const OptionInfo *option, Source source) {
    return strstr(option->range, "repeat") && source.origin == FROM_COMMAND_LINE &&
           options->store->origins[option - option_table] == FROM_COMMAND_LINE;
}

static Status set_list(Options *options, const OptionInfo *option, const char *const *words, int num_words,
                       Source source) {
    OptionList *field = field_of(options, option);
    int before = is_repeated(options, option, source) ? field->count : 0;
    StringList list = {options_block(options, (size_t)(before + num_words) * sizeof *list.items),
                       before + num_words};
    for (int i = 0; i < before; i++) list.items[i] = field->items[i];
    for (int i = 0; i < num_words; i++) list.items[before + i] = options_string(options, words[i]);
    *field = list;
    return OK;
}

Status value_set(Options *options, const OptionInfo *option, const char *const *words, int num_words,
                 Source source) {
    for (int i = 0; i < num_words; i++) TRY(check_word(option, words[i], source));
    if (option->type == FLAG) return set_flag(options, option, num_words ? words[0] : "true", source);
    if (num_words == 0) return fail(source_status(source), "%s%s needs a value", source.where, source.name);
    if (option->type == LIST) return set_list(options, option, words, num_words, source);
    if (num_words > 1)
        return fail(source_status(source), "%s%s takes one value, not %d", source.where, source.name,
                    num_words);
    switch (option->type) {
    case INT:
    case LONG: return set_integer(options, option, words[0], source);
    case REAL: return set_real(options, option, words[0], source);
    default: return set_word(options, option, words[0], source);
    }
}

static void value_unset(Options *options, const OptionInfo *option) {
    void *field = field_of(options, option);
    switch (option->type) {
    case INT: *(OptionInt *)field = INT_UNSET; break;
    case LONG: *(OptionLong *)field = INT_UNSET; break;
    case REAL: *(OptionReal *)field = NAN; break;
    case FLAG: *(OptionFlag *)field = false; break;
    case WORD: *(OptionWord *)field = NULL; break;
    case LIST: *(OptionList *)field = (StringList){0}; break;
    }
}

void value_set_default(Options *options, const OptionInfo *option) {
    value_unset(options, option);
    if (!*option->default_value) return;
    Status status =
        value_set(options, option, &option->default_value, 1, (Source){FROM_DEFAULT, "", option->field, 0});
    CHECK(status == OK, "default of %s: %s", option->field, fail_message());
}

bool value_is_set(const Options *options, const OptionInfo *option) {
    const void *field = field_of(options, option);
    switch (option->type) {
    case INT: return *(const OptionInt *)field != INT_UNSET;
    case LONG: return *(const OptionLong *)field != INT_UNSET;
    case REAL: return !isnan(*(const OptionReal *)field);
    case FLAG: return true;
    case WORD: return *(const OptionWord *)field != NULL;
    case LIST: return ((const OptionList *)field)->count > 0;
    }
    return false;
}

// Adds the fewest digits that read back as the same double, always with a point or an exponent, as Python does.
static void print_real(double value, Text *out) {
    char digits[32];
    for (int precision = 6; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value) break;
    }
    text_add(out, "%s%s", digits, strpbrk(digits, ".e") ? "" : ".0");
}

static void print_long(int64_t value, bool may_be_auto, Text *out) {
    if (may_be_auto && value == INT_AUTO)
        text_add(out, "auto");
    else
        text_add(out, "%lld", (long long)value);
}

void value_print(const Options *options, const OptionInfo *option, Text *out) {
    if (!value_is_set(options, option)) return;
    const void *field = field_of(options, option);
    switch (option->type) {
    case INT: text_add(out, "%d", *(const OptionInt *)field); break;
    case LONG: print_long(*(const OptionLong *)field, has_auto(option), out); break;
    case REAL: print_real(*(const OptionReal *)field, out); break;
    case FLAG: text_add(out, "%s", *(const OptionFlag *)field ? "true" : "false"); break;
    case WORD: text_add(out, "%s", *(const OptionWord *)field); break;
    case LIST:
        for (int i = 0; i < ((const OptionList *)field)->count; i++)
            text_add(out, "%s%s", i ? " " : "", ((const OptionList *)field)->items[i]);
        break;
    }
}
