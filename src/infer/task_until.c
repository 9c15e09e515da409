// Generates the answers of prompts, and compares them with their targets after the filters that the user asks for.
#include "infer/task.h"
#include "tokenizer/pattern.h"
#include <ctype.h>
#include <limits.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include <wctype.h>

// ---- filters ------------------------------------------------------------------------------------

typedef struct Filter Filter;

// A filter: changes a text in place. `both`: the targets, too.
typedef struct {
    const char *name;
    bool both, takes_pattern;
    Status (*apply)(const Filter *filter, Text *text);
} FilterKind;

struct Filter {
    const FilterKind *kind;
    Pattern *pattern;
};

struct TaskFilters {
    Filter *items;
    int count;
};

// Replaces the text by a part of it.
static void keep_part(Text *text, size_t start, size_t end) {
    if (!text->data) return;
    memmove(text->data, text->data + start, end - start);
    text->size = end - start;
    text->data[text->size] = 0;
}

static Status strip(const Filter *filter, Text *text) {
    (void)filter;
    size_t start = 0, end = text->size;
    while (start < end && is_python_blank(text->data[start])) start++;
    while (end > start && is_python_blank(text->data[end - 1])) end--;
    keep_part(text, start, end);
    return OK;
}

// Changes letters one by one, as Unicode's simple mappings do; without the C library's C.UTF-8 those of ASCII alone.
static Status change_case(Text *text, wint_t (*change)(wint_t)) {
    locale_t unicode = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    locale_t before = unicode ? uselocale(unicode) : (locale_t)0;
    Text changed = {0};
    mbstate_t read = {0}, written = {0};
    for (size_t i = 0, bytes; i < text->size; i += bytes) {
        wchar_t c;
        char out[MB_LEN_MAX];
        bytes = mbrtowc(&c, text->data + i, text->size - i, &read);
        bool known = bytes > 0 && bytes <= text->size - i;
        size_t length = known ? wcrtomb(out, (wchar_t)change((wint_t)c), &written) : (size_t)-1;
        if (!known) bytes = 1, read = (mbstate_t){0};
        if (length > sizeof out)
            text_add_bytes(&changed, text->data + i, bytes);
        else
            text_add_bytes(&changed, out, length);
    }
    if (unicode) uselocale(before);
    if (unicode) freelocale(unicode);
    text_free(text);
    *text = changed;
    return OK;
}

static Status lowercase(const Filter *filter, Text *text) {
    (void)filter;
    return change_case(text, towlower);
}

static Status uppercase(const Filter *filter, Text *text) {
    (void)filter;
    return change_case(text, towupper);
}

static void leave_out(Text *text, int (*these)(int)) {
    size_t kept = 0;
    for (size_t i = 0; i < text->size; i++)
        if (!these((unsigned char)text->data[i])) text->data[kept++] = text->data[i];
    if (text->data) text->data[text->size = kept] = 0;
}

static Status no_punctuation(const Filter *filter, Text *text) {
    (void)filter;
    leave_out(text, ispunct);
    return OK;
}

static Status no_digits(const Filter *filter, Text *text) {
    (void)filter;
    leave_out(text, isdigit);
    return OK;
}

// Patterns need valid UTF-8. The text of a TextStream is.
static Status match(const Filter *filter, Text *text, bool last) {
    size_t start = 0, end = 0, from = 0;
    bool found = false;
    while (from <= text->size && (last || !found)) {
        size_t first, behind;
        int error =
            pattern_find_group(filter->pattern, text_string(text), text->size, from, &first, &behind, &from);
        if (error < 0) return pattern_fail(error);
        if (!error) break;
        found = true;
        start = first, end = behind;
    }
    if (end > start) {
        keep_part(text, start, end);
        return strip(filter, text);
    }
    text->size = 0;
    text_add(text, "[invalid]");
    return OK;
}

static Status first_match(const Filter *filter, Text *text) { return match(filter, text, false); }
static Status last_match(const Filter *filter, Text *text) { return match(filter, text, true); }

static const FilterKind FILTERS[] = {
    {"strip", false, false, strip},
    {"lowercase", false, false, lowercase},
    {"uppercase", false, false, uppercase},
    {"first", false, true, first_match},
    {"last", false, true, last_match},
    {"ignore-case", true, false, lowercase},
    {"ignore-punctuation", true, false, no_punctuation},
    {"ignore-numbers", true, false, no_digits},
};
enum { NUM_FILTERS = sizeof FILTERS / sizeof *FILTERS };

static Status open_filter(Filter *filter, const char *word) {
    const char *names[NUM_FILTERS], *equals = strchr(word, '=');
    char name[40];
    snprintf(name, sizeof name, "%.*s", (int)(equals ? equals - word : (ptrdiff_t)strlen(word)), word);
    for (int i = 0; i < NUM_FILTERS; i++) {
        names[i] = FILTERS[i].name;
        if (!strcmp(name, names[i])) filter->kind = &FILTERS[i];
    }
    const char *nearest = text_nearest(name, names, NUM_FILTERS);
    if (!filter->kind)
        return fail(
            ERR_USAGE,
            "--filter %.60s is not known%s%s%s; choose from strip, lowercase, uppercase, first=REGEX, "
            "last=REGEX, ignore-case, ignore-punctuation, ignore-numbers",
            word, nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
    if (filter->kind->takes_pattern != (equals && equals[1]))
        return fail(ERR_USAGE, "--filter %s %s", name,
                    filter->kind->takes_pattern ? "needs a regular expression: write it as first=REGEX"
                                                : "takes no value");
    if (!equals) return OK;
    Status status = pattern_open(&filter->pattern, equals + 1);
    if (status == OK) return OK;
    char why[300];
    snprintf(why, sizeof why, "%s", fail_message());
    return fail(status == ERR_DATA ? ERR_USAGE : status, "--filter %.60s: %s", word, why);
}

Status task_filters_open(TaskFilters **filters, const char *const *words, int count) {
    TaskFilters *f = *filters = calloc(1, sizeof *f);
    CHECK(f, "no memory for filters");
    f->items = calloc((size_t)count + 1, sizeof *f->items);
    CHECK(f->items, "no memory for filters");
    Status status = OK;
    for (; status == OK && f->count < count; f->count++)
        status = open_filter(&f->items[f->count], words[f->count]);
    if (status == OK) return OK;
    task_filters_close(f);
    *filters = NULL;
    return status;
}

void task_filters_close(TaskFilters *f) {
    if (!f) return;
    for (int i = 0; i < f->count; i++) pattern_close(f->items[i].pattern);
    free(f->items);
    free(f);
}

static Status apply_all(const TaskFilters *f, Text *text, bool target) {
    for (int i = 0; i < f->count; i++)
        if (!target || f->items[i].kind->both) TRY(f->items[i].kind->apply(&f->items[i], text));
    return OK;
}

Status task_filters_apply(TaskFilters *f, TaskItem *item) {
    text_free(&item->filtered);
    text_add_bytes(&item->filtered, text_string(&item->answer), item->answer.size);
    TRY(apply_all(f, &item->filtered, false));
    item->matches = false;
    for (int i = 0; i < item->num_targets; i++) {
        Text target = {0};
        text_add(&target, "%s", item->targets[i]);
        Status status = apply_all(f, &target, true);
        if (!strcmp(text_string(&target), text_string(&item->filtered))) item->matches = true;
        text_free(&target);
        TRY(status);
    }
    return OK;
}

// ---- answers ------------------------------------------------------------------------------------

// Prompts of the same length lie side by side, long ones first.
static int longest_first(const void *a, const void *b) {
    const TaskItem *x = *(TaskItem *const *)a, *y = *(TaskItem *const *)b;
    if (x->prompt.count != y->prompt.count) return x->prompt.count > y->prompt.count ? -1 : 1;
    return x < y ? -1 : x > y;
}

static TaskItem **prompts_of(const Tasks *tasks, int *count) {
    int all = 0;
    for (int t = 0; t < tasks->count; t++)
        if (tasks->tasks[t].kind == TASK_UNTIL) all += tasks->tasks[t].count;
    TaskItem **items = malloc((size_t)all * sizeof(TaskItem *) + 1);
    CHECK(items, "no memory for %d prompts", all);
    *count = 0;
    for (int t = 0; t < tasks->count; t++)
        for (int i = 0; tasks->tasks[t].kind == TASK_UNTIL && i < tasks->tasks[t].count; i++)
            items[(*count)++] = &tasks->tasks[t].items[i];
    qsort(items, (size_t)all, sizeof *items, longest_first);
    return items;
}

static void keep_piece(void *self, int sample, const char *text, size_t size) {
    TaskItem *const *batch = self;
    if (batch[sample]) text_add_bytes(&batch[sample]->answer, text, size);
}

// Answers `count` prompts. Rows without a prompt of their own repeat the last one for a token.
static Status answer_batch(const TokenModel *model, GenerateSpec spec, TaskItem **items, int count,
                           TaskItem **batch, SampleSpec *samples) {
    for (int b = 0; b < model->batch; b++) {
        const TaskItem *item = items[b < count ? b : count - 1];
        batch[b] = b < count ? items[b] : NULL;
        samples[b] = (SampleSpec){.prompt = item->prompt.ids,
                                  .prompt_tokens = (int)item->prompt.count,
                                  .max_new_tokens = b < count ? item->max_new_tokens : 1,
                                  .stops = item->stops,
                                  .num_stops = item->num_stops};
    }
    spec.samples = samples, spec.self = batch;
    GenerateReport report;
    TRY(token_model_generate(model, &spec, &report));
    return report.num_endings[END_SIGNAL] ? fail(INTERRUPTED, "stopped by a signal") : OK;
}

Status tasks_generate(const TokenModel *model, const Tokenizer *tokenizer, const TokenList *ends,
                      Tasks *tasks, void (*done)(void *self, int count)) {
    int count;
    size_t rows = (size_t)model->batch;
    TaskItem **items = prompts_of(tasks, &count), **batch = malloc(rows * sizeof(TaskItem *));
    SampleSpec *samples = malloc(rows * sizeof *samples);
    CHECK(batch && samples, "no memory for a batch of %d prompts", model->batch);
    GenerateSpec spec = {.tokenizer = tokenizer,
                         .ends = ends->ids,
                         .num_ends = ends->count,
                         .sampling = {.top_p = 1},
                         .give = keep_piece};
    Status status = OK;
    for (int i = 0, n; status == OK && i < count; i += n) {
        n = count - i < model->batch ? count - i : model->batch;
        status = answer_batch(model, spec, items + i, n, batch, samples);
        if (status == OK && done) done(model->self, n);
    }
    free(items);
    free(batch);
    free(samples);
    return status;
}
