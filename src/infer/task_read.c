// Reads data sets of tasks: one table of the shapes that a line may have, and what each becomes.
#include "base/array.h"
#include "infer/task.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- places in a line ---------------------------------------------------------------------------

// The value at a path such as "arguments/0/1": members by name, elements of lists and members of objects by number. So
// lm-evaluation-harness's {"gen_args_0": {"arg_0": ...}} and its older [["...", ...]] are the same. NULL: absent.
static const Json *at(const Json *value, const char *path) {
    while (value && *path) {
        size_t length = strcspn(path, "/");
        char name[32];
        int64_t number;
        CHECK(length < sizeof name, "a path of long names: %s", path);
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        bool counted = parse_int(name, &number) && (value->type == JSON_ARRAY || value->type == JSON_OBJECT);
        if (counted)
            value = number < (int64_t)value->count ? &value->items[number] : NULL;
        else
            value = json_member(value, name);
        path += length + (path[length] == '/');
    }
    return value;
}

// ---- the shapes ---------------------------------------------------------------------------------

// A line has the first shape whose `mark` is there and has the type. A path with * stands for one place for each
// choice.
typedef struct {
    TaskKind kind;
    const char *mark;
    JsonType type;
    const char *text;    // the context, prompt or text; a list: one for each choice
    const char *choices; // of several or one
    const char
        *right; // the number of the right choice, or several; its text; the target or targets of an answer
    const char *until, *most; // stop strings, and the most new tokens
    const char *counted;      // the text whose words and bytes count, where it is another one
    const char *written;      // for messages
} Shape;

static const Shape SHAPES[] = {
    {.kind = TASK_CHOICE,
     .mark = "arguments/1/1",
     .type = JSON_STRING,
     .text = "arguments/*/0",
     .choices = "arguments/*/1",
     .right = "target",
     .written = "lm-evaluation-harness's samples"},
    {.kind = TASK_CONTINUATION,
     .mark = "arguments/0/1",
     .type = JSON_STRING,
     .text = "arguments/0/0",
     .choices = "arguments/*/1"},
    {.kind = TASK_UNTIL,
     .mark = "arguments/0/1",
     .type = JSON_OBJECT,
     .text = "arguments/0/0",
     .right = "target",
     .until = "arguments/0/1/until",
     .most = "arguments/0/1/max_gen_toks"},
    {.kind = TASK_TEXT,
     .mark = "arguments/0/0",
     .type = JSON_STRING,
     .text = "arguments/0/0",
     .counted = "doc/page"}, // of wikitext, whose text is another than the one that is read
    {.kind = TASK_CHOICE,
     .mark = "choices",
     .type = JSON_ARRAY,
     .text = "context",
     .choices = "choices/*",
     .right = "gold",
     .written = "{\"context\", \"choices\", \"gold\"}"},
    {.kind = TASK_CHOICE,
     .mark = "continuations",
     .type = JSON_ARRAY,
     .text = "context",
     .choices = "continuations/*",
     .right = "label",
     .written = "{\"context\", \"continuations\", \"label\"}"},
    {.kind = TASK_CONTINUATION,
     .mark = "continuation",
     .type = JSON_STRING,
     .text = "context",
     .choices = "continuation",
     .written = "{\"context\", \"continuation\"}"},
    {.kind = TASK_UNTIL,
     .mark = "prompt",
     .type = JSON_STRING,
     .text = "prompt",
     .right = "target",
     .until = "until",
     .most = "max_new_tokens",
     .written = "{\"prompt\", \"until\", \"target\"}"},
    {.kind = TASK_TEXT, .mark = "text", .type = JSON_STRING, .text = "text", .written = "{\"text\"}"},
};
enum { NUM_SHAPES = sizeof SHAPES / sizeof *SHAPES, USUAL_NEW_TOKENS = 256, MOST_CHOICES = 1000 };

static const char *const KIND_NAMES[NUM_TASK_KINDS] = {
    [TASK_CHOICE] = "a question with choices",
    [TASK_CONTINUATION] = "one continuation",
    [TASK_TEXT] = "a text",
    [TASK_UNTIL] = "a prompt to be answered",
};

// A file that is read, and the line at which it is.
typedef struct {
    Tasks *tasks;
    Task *task;
    PairEncoder pairs;
    int64_t limit, lines;
    char filter[64]; // of lm-evaluation-harness's first line; lines of others repeat its questions
    const char *where;
    const Shape *shape;
} Reader;

static Status find_shape(Reader *r, const Json *line) {
    for (int i = 0; i < NUM_SHAPES; i++) {
        const Json *mark = at(line, SHAPES[i].mark);
        r->shape = &SHAPES[i];
        if (mark && mark->type == SHAPES[i].type) return OK;
    }
    Text known = {0};
    for (int i = 0; i < NUM_SHAPES; i++)
        if (SHAPES[i].written)
            text_add(&known, "%s%s",
                     !known.size          ? ""
                     : i + 1 < NUM_SHAPES ? ", "
                                          : " or ",
                     SHAPES[i].written);
    Status status = fail(ERR_DATA, "%s: a line of no known shape: write %s", r->where, text_string(&known));
    text_free(&known);
    return status;
}

// The string at a path, of which the first * stands for a number.
static Status string_at(const Reader *r, const Json *line, const char *path, int number,
                        const Json **string) {
    const char *star = strchr(path, '*');
    char exact[64];
    snprintf(exact, sizeof exact, "%.*s%d%s", (int)(star ? star - path : 0), path, number,
             star ? star + 1 : "");
    *string = at(line, star ? exact : path);
    // The texts of choices may be a list, too: one for each.
    if (*string && (*string)->type == JSON_ARRAY)
        *string = number < (int)(*string)->count ? &(*string)->items[number] : NULL;
    if (*string && (*string)->type == JSON_STRING) return OK;
    return fail(ERR_DATA, "%s: \"%s\" is %s: it has to be a string", r->where, star ? exact : path,
                *string ? "no string" : "missing");
}

// ---- choices ------------------------------------------------------------------------------------

static int num_choices(const Shape *shape, const Json *line) {
    const char *star = strchr(shape->choices, '*');
    char list[64];
    if (!star) return 1;
    snprintf(list, sizeof list, "%.*s", (int)(star - shape->choices - 1), shape->choices);
    const Json *choices = at(line, list);
    return choices->count < MOST_CHOICES ? (int)choices->count : MOST_CHOICES;
}

static bool ends_blank(const Json *text) {
    return text->size && strchr(" \t\n\r", text->string[text->size - 1]);
}

// A choice that is written without a blank gets one, unless the context ends with one; "delimiter" is what lies between
// them, if it is something else. Continuations, also those of lm-evaluation-harness, are complete.
static const char *delimiter(const Reader *r, const Json *line, const Json *context, const Json *choice) {
    if (strcmp(r->shape->mark, "choices") != 0) return "";
    const char *written = json_string(json_member(line, "delimiter"));
    if (written) return written;
    return !context->size || ends_blank(context) || (choice->size && strchr(" \t\n\r", choice->string[0]))
               ? ""
               : " ";
}

static Status add_choice(Reader *r, const Json *line, int number) {
    const Json *context, *choice;
    TRY(string_at(r, line, r->shape->text, number, &context));
    TRY(string_at(r, line, r->shape->choices, number, &choice));
    if (!choice->size) return fail(ERR_DATA, "%s: choice %d is empty", r->where, number);
    Text text = {0};
    text_add(&text, "%s", delimiter(r, line, context, choice));
    text_add_bytes(&text, choice->string, choice->size);
    Status status = pair_encoder_add(&r->pairs, context->string, context->size, text.data, text.size);
    text_free(&text);
    return status;
}

static Status mark_right(Reader *r, TaskItem *item, int64_t number) {
    if (number < 0 || number >= item->count)
        return fail(ERR_DATA, "%s: \"%s\" is %" PRId64 ", but the choices are 0 to %d", r->where,
                    r->shape->right, number, item->count - 1);
    item->right[number] = true;
    return OK;
}

// The text of a choice, with or without the blank before it. lm-evaluation-harness writes also numbers as strings.
static Status mark_target(Reader *r, const Json *line, TaskItem *item, const Json *target) {
    int64_t number;
    int found = 0;
    bool is_harness = !strcmp(r->shape->right, "target");
    if (is_harness && parse_int(target->string, &number)) return mark_right(r, item, number);
    for (int i = 0; i < item->count; i++) {
        const Json *choice;
        TRY(string_at(r, line, r->shape->choices, i, &choice));
        const char *text = choice->string, *wanted = target->string;
        item->right[i] = !strcmp(text + (*text == ' '), wanted + (*wanted == ' '));
        found += item->right[i];
    }
    if (found == 1) return OK;
    return fail(
        ERR_DATA,
        "%s: \"%s\" is \"%.60s\", which is %s of the choices: write the number of the right one, from 0",
        r->where, r->shape->right, target->string, found ? "several" : "none");
}

static Status mark_choices(Reader *r, const Json *line, TaskItem *item) {
    const Json *right = at(line, r->shape->right);
    Json *parsed = NULL;
    int64_t number;
    item->right = calloc((size_t)item->count, sizeof *item->right);
    CHECK(item->right, "no memory for %d choices", item->count);
    if (right && right->type == JSON_STRING && right->string[0] == '[' &&
        json_parse(&parsed, right->string, right->size, r->where) == OK)
        right = parsed; // several right ones
    Status status = OK;
    if (right && right->type == JSON_STRING) {
        status = mark_target(r, line, item, right);
    } else if (json_int(right, &number)) {
        status = mark_right(r, item, number);
    } else {
        bool list = right && right->type == JSON_ARRAY && right->count;
        for (size_t i = 0; list && status == OK && i < right->count; i++) {
            list = json_int(&right->items[i], &number);
            if (list) status = mark_right(r, item, number);
        }
        if (!list)
            status = fail(ERR_DATA, "%s: \"%s\" is %s: it has to be the number of the right choice, from 0",
                          r->where, r->shape->right, right ? "no whole number" : "missing");
    }
    json_free(parsed);
    return status;
}

static Status read_choices(Reader *r, const Json *line, TaskItem *item) {
    item->count = num_choices(r->shape, line);
    if (!item->count || item->count == MOST_CHOICES)
        return fail(ERR_DATA, "%s: there have to be 1 to %d choices", r->where, MOST_CHOICES - 1);
    if (r->shape->kind == TASK_CHOICE) TRY(mark_choices(r, line, item));
    for (int i = 0; i < item->count; i++) TRY(add_choice(r, line, i));
    r->pairs.out->questions++;
    return OK;
}

// ---- texts --------------------------------------------------------------------------------------

// Words as Python's re.split(r"\s+") counts them: one more than there are runs of blanks.
static int64_t count_words(const Json *text) {
    int64_t words = 1;
    bool blank = false;
    for (size_t i = 0; i < text->size; i++) {
        unsigned char c = (unsigned char)text->string[i];
        bool now = c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
        words += now && !blank;
        blank = now;
    }
    return words;
}

static Status read_text(Reader *r, const Json *line, TaskItem *item) {
    const Json *text, *counted = r->shape->counted ? at(line, r->shape->counted) : NULL;
    TRY(string_at(r, line, r->shape->text, 0, &text));
    if (!counted || counted->type != JSON_STRING) counted = text;
    item->words = count_words(counted);
    item->bytes = (int64_t)counted->size;
    TRY(pair_encoder_add_text(&r->pairs, text->string, text->size));
    item->count = r->pairs.out->count - item->first;
    return OK;
}

// ---- prompts ------------------------------------------------------------------------------------

// Copies a string, or the strings of a list, that are not empty, to *list; `room` moves behind their bytes.
static Status copy_strings(const Reader *r, const char *path, const Json *value, const char **list,
                           int *count, char **room) {
    bool several = value && value->type == JSON_ARRAY;
    size_t number = several ? value->count : value && value->type != JSON_NULL;
    for (size_t i = 0; i < number; i++) {
        const Json *one = several ? &value->items[i] : value;
        if (one->type != JSON_STRING || strlen(one->string) != one->size)
            return fail(ERR_DATA, "%s: \"%s\" has to be a string without NUL, or a list of them", r->where,
                        path);
        if (!one->size && !strcmp(path, r->shape->until)) continue;
        list[(*count)++] = memcpy(*room, one->string, one->size + 1);
        *room += one->size + 1;
    }
    return OK;
}

// The number and the bytes of the strings of a value.
static void measure_strings(const Json *value, size_t *number, size_t *bytes) {
    bool several = value && value->type == JSON_ARRAY;
    size_t count = several ? value->count : value != NULL;
    for (size_t i = 0; i < count; i++) *bytes += (several ? &value->items[i] : value)->size + 1;
    *number += count;
}

static Status read_stops_and_targets(Reader *r, const Json *line, TaskItem *item) {
    const Json *until = at(line, r->shape->until), *targets = at(line, r->shape->right);
    size_t number = 0, bytes = 0;
    measure_strings(until, &number, &bytes);
    measure_strings(targets, &number, &bytes);
    // The pointers lie before the strings.
    item->strings = malloc(number * sizeof(char *) + bytes + 1);
    CHECK(item->strings, "no memory for %zu strings", number);
    char *room = item->strings + number * sizeof(char *);
    item->stops = (const char **)(void *)item->strings;
    TRY(copy_strings(r, r->shape->until, until, item->stops, &item->num_stops, &room));
    item->targets = item->stops + item->num_stops;
    TRY(copy_strings(r, r->shape->right, targets, item->targets, &item->num_targets, &room));
    if (item->num_targets) return OK;
    return fail(ERR_DATA, "%s: \"%s\" is missing: it has to be the right answer, or a list of them", r->where,
                r->shape->right);
}

// A prompt that leaves no room for the answer loses its beginning.
static Status fit_prompt(Reader *r, TaskItem *item) {
    int room = r->pairs.positions - item->max_new_tokens;
    if (room < 1)
        return fail(ERR_DATA, "%s: %d new tokens leave no room for a prompt: the model sees %d tokens",
                    r->where, item->max_new_tokens, r->pairs.positions);
    if (item->prompt.count > (size_t)room) {
        memmove(item->prompt.ids, item->prompt.ids + (item->prompt.count - (size_t)room),
                (size_t)room * sizeof *item->prompt.ids);
        item->prompt.count = (size_t)room;
        r->task->num_cut++;
    }
    int tokens = (int)item->prompt.count, all = tokens + item->max_new_tokens - 1;
    if (tokens > r->tasks->longest_prompt) r->tasks->longest_prompt = tokens;
    if (all > r->tasks->longest_answered) r->tasks->longest_answered = all;
    return OK;
}

static Status read_prompt(Reader *r, const Json *line, TaskItem *item) {
    const Json *prompt, *most = at(line, r->shape->most);
    int64_t number = USUAL_NEW_TOKENS;
    TRY(string_at(r, line, r->shape->text, 0, &prompt));
    if (most && most->type != JSON_NULL && (!json_int(most, &number) || number < 1 || number > 1 << 20))
        return fail(ERR_DATA, "%s: \"%s\" has to be a whole number from 1 to %d", r->where, r->shape->most,
                    1 << 20);
    item->max_new_tokens = (int)number;
    TRY(read_stops_and_targets(r, line, item));
    TRY(pair_encoder_prompt(&r->pairs, prompt->string, prompt->size, &item->prompt));
    return fit_prompt(r, item);
}

// ---- files --------------------------------------------------------------------------------------

static Status (*const READERS[NUM_TASK_KINDS])(Reader *, const Json *, TaskItem *) = {
    [TASK_CHOICE] = read_choices,
    [TASK_CONTINUATION] = read_choices,
    [TASK_TEXT] = read_text,
    [TASK_UNTIL] = read_prompt,
};

// lm-evaluation-harness writes a question once for each filter of its answers.
static bool repeats(Reader *r, const Json *line) {
    const char *filter = json_string(json_member(line, "filter"));
    if (!filter) return false;
    if (!r->lines) snprintf(r->filter, sizeof r->filter, "%s", filter);
    return strncmp(filter, r->filter, sizeof r->filter - 1) != 0;
}

static Status take_line(void *self, const Json *line, const char *where) {
    Reader *r = self;
    r->where = r->pairs.where = where;
    if (r->limit && r->lines == r->limit) return OK;
    if (repeats(r, line)) {
        r->task->left_out++;
        return OK;
    }
    TRY(find_shape(r, line));
    if (!r->lines) r->task->kind = r->shape->kind;
    if (r->shape->kind != r->task->kind)
        return fail(ERR_DATA, "%s: %s, but the lines before are %s: give each kind a file of its own", where,
                    KIND_NAMES[r->shape->kind], KIND_NAMES[r->task->kind]);
    array_grow(&r->task->items, sizeof *r->task->items, (size_t)r->task->count + 1, &r->task->capacity);
    TaskItem *item = &r->task->items[r->task->count++];
    *item = (TaskItem){.line = strtoll(strrchr(where, ':') + 1, NULL, 10), .first = r->pairs.out->count};
    r->lines++;
    return READERS[r->shape->kind](r, line, item);
}

// "samples_hellaswag_2026-01-31T12-00-00.000000.jsonl" is called hellaswag.
static char *task_name(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t length = strlen(name);
    if (length > 6 && !strcmp(name + length - 6, ".jsonl")) length -= 6;
    if (!strncmp(name, "samples_", 8) && length > 8) {
        name += 8, length -= 8;
        for (size_t i = 1; i + 11 < length; i++)
            if (name[i] == '_' && name[i + 5] == '-' && name[i + 8] == '-' && name[i + 11] == 'T') length = i;
    }
    return strndup(name, length);
}

Status task_add(Tasks *tasks, const char *path, const char *text, size_t size, int64_t limit,
                const Tokenizer *tokenizer, int positions) {
    array_grow(&tasks->tasks, sizeof *tasks->tasks, (size_t)tasks->count + 1, &tasks->capacity);
    Task *task = &tasks->tasks[tasks->count++];
    *task = (Task){.path = strdup(path), .name = task_name(path)};
    CHECK(task->path && task->name, "no memory for a file name");
    Reader reader = {.tasks = tasks, .task = task, .limit = limit};
    TRY(pair_encoder_open(&reader.pairs, &tasks->continuations, tokenizer, positions));
    Status status = json_lines_read(text, size, path, take_line, &reader);
    pair_encoder_close(&reader.pairs);
    TRY(status);
    return task->count ? OK : fail(ERR_DATA, "%s: it is empty: there is nothing to evaluate", path);
}

static void free_item(TaskItem *item) {
    token_list_free(&item->prompt);
    text_free(&item->answer);
    text_free(&item->filtered);
    free(item->right);
    free(item->strings);
}

void tasks_free(Tasks *tasks) {
    for (int t = 0; t < tasks->count; t++) {
        Task *task = &tasks->tasks[t];
        for (int i = 0; i < task->count; i++) free_item(&task->items[i]);
        free(task->items);
        free(task->path);
        free(task->name);
    }
    free(tasks->tasks);
    continuations_free(&tasks->continuations);
    *tasks = (Tasks){0};
}
