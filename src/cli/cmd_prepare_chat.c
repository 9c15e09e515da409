// `trireme prepare-chat`: checks its options, runs the job, shows tokens with their mask, prints the summary.
#include "base/cores.h"
#include "cli/verb_parts.h"
#include "config/config.h"
#include "corpus/chat.h"
#include "formats/utf8.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- preview ----------------------------------------------------------------------------------------------

// How trained tokens, and others, are marked.
typedef struct {
    const char *trained, *trained_end, *other, *other_end;
} Marks;

static const Marks COLOURS = {"\033[1;32m", "\033[0m", "\033[2m", "\033[0m"};
static const Marks BRACKETS = {"\xe2\x9f\xa6", "\xe2\x9f\xa7", "", ""}; // U+27E6, U+27E7

static bool is_whole(const Text *text) {
    for (size_t at = 0, length; at < text->size; at += length)
        if (!(length = utf8_length(text->data + at, text->size - at))) return false;
    return true;
}

// Line ends are shown as \n and followed by one.
static void add_shown(const Text *text, Text *out) {
    const char *line = text_string(text), *end = line + text->size, *next;
    for (; (next = memchr(line, '\n', (size_t)(end - line))); line = next + 1) {
        text_add_visible(out, line, (size_t)(next - line));
        text_add(out, "\\n\n");
    }
    text_add_visible(out, line, (size_t)(end - line));
}

// The tokens of one mask, with a dot between them. One that ends within a character stands with those that end it.
static Status add_run(const ChatSample *s, size_t first, size_t end, Text *out) {
    Text text = {0};
    Status status = OK;
    for (size_t i = first; i < end && status == OK; i++) {
        status = tokenizer_decode(s->tokenizer, s->tokens + i, 1, &text);
        if (status != OK || (!is_whole(&text) && i + 1 < end)) continue;
        add_shown(&text, out);
        if (i + 1 < end) text_add(out, "\xc2\xb7"); // U+00B7
        text.size = 0;
    }
    text_free(&text);
    return status;
}

static Status show_sample(void *self, const ChatSample *s) {
    const Marks *marks = self;
    Text out = {0};
    int64_t trained = 0;
    Status status = OK;
    for (size_t i = 0; i < s->count; i++) trained += s->mask[i];
    text_add(&out, "%s:%" PRId64 ": %s%s%zu tokens, %" PRId64 " trained", s->path, s->line,
             s->answer ? s->answer : "", s->answer ? ", " : "", s->count, trained);
    if (s->whole > (int64_t)s->count) text_add(&out, ", truncated from %" PRId64, s->whole);
    text_add(&out, "\n");
    for (size_t first = 0, end; first < s->count && status == OK; first = end) {
        for (end = first + 1; end < s->count && s->mask[end] == s->mask[first];) end++;
        text_add(&out, "%s", s->mask[first] ? marks->trained : marks->other);
        status = add_run(s, first, end, &out);
        text_add(&out, "%s", s->mask[first] ? marks->trained_end : marks->other_end);
    }
    text_add(&out, "\n\n");
    fwrite(out.data, 1, out.size, stdout);
    text_free(&out);
    return status;
}

// ---- the job ------------------------------------------------------------------------------------------------

static Status check_options(const Options *o) {
    if (o->positional.count > 0)
        return fail(ERR_USAGE, "'%s' belongs to no option; inputs are given by --input",
                    o->positional.items[0]);
    if (o->input.count == 0)
        return fail(ERR_USAGE, "prepare-chat needs --input: JSON lines of conversations");
    if (!o->tokenizer_model)
        return fail(ERR_USAGE,
                    "prepare-chat needs --tokenizer-model FOLDER: the model's tokenizer and chat template");
    if (!o->output_prefix && o->preview == 0)
        return fail(
            ERR_USAGE,
            "prepare-chat needs --output-prefix PREFIX, or --preview N to show N conversations alone");
    if (o->preferences && !strcmp(o->too_long, "truncate"))
        return fail(ERR_CONFIG,
                    "--too-long truncate with --preferences: of a truncated answer nobody has said that it "
                    "is better or worse; use --too-long drop");
    if (o->seq_length == INT_UNSET)
        return fail(ERR_CONFIG, "prepare-chat needs --seq-length, the one of the training, such as 2048");
    return OK;
}

static double percent(int64_t part, int64_t whole) {
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

static void print_summary(const ChatJob *job, const ChatSummary *s) {
    if (!job->output_prefix) return;
    const char *what = job->preferences ? "pair" : "conversation";
    printf("%s: %" PRId64 " %ss, %" PRId64 " tokens, %" PRId64 " trained (%.1f %%), vocabulary %d\n",
           job->output_prefix, s->conversations, what, s->tokens, s->trained, percent(s->trained, s->tokens),
           s->vocab_size);
    printf("  %" PRId64 " samples of %d + 1 tokens, %.1f %% full; the longest %s has %" PRId64 " tokens\n",
           s->samples, job->seq_length, percent(s->tokens, s->samples * ((int64_t)job->seq_length + 1)), what,
           s->longest);
    if (s->truncated) printf("  truncated %" PRId64 " conversations\n", s->truncated);
    if (s->other_files)
        printf("  left out files of the folder that are no JSON lines: %" PRId64 "\n", s->other_files);
    if (s->dropped) printf("  dropped %" PRId64 " %ss that are too long\n", s->dropped, what);
    if (s->bad_lines) printf("  left out %" PRId64 " bad lines\n", s->bad_lines);
    printf("%s", text_string(&s->left_out));
}

static Status print_template(const Options *o) {
    Text names = {0};
    const char *source = o->chat_template ? chat_template_source(o->chat_template, &names) : NULL;
    if (!o->chat_template) (void)chat_template_source("", &names);
    Status status =
        source ? OK
               : fail(ERR_USAGE, "--print-template shows a built-in template: --chat-template is one of %s",
                      text_string(&names));
    if (source) fputs(source, stdout);
    text_free(&names);
    return status;
}

ChatJob chat_job_of(const Options *o) {
    return (ChatJob){
        .inputs = o->input.items,
        .num_inputs = o->input.count,
        .output_prefix = o->output_prefix,
        .tokenizer_path = o->tokenizer_model,
        .template = o->chat_template,
        .seq_length = o->seq_length,
        .preferences = o->preferences,
        .pack = o->pack,
        .last_answer_only = !strcmp(o->train_on, "last"),
        .too_long = !strcmp(o->too_long, "truncate") ? CHAT_TRUNCATE
                    : !strcmp(o->too_long, "drop")   ? CHAT_DROP
                                                     : CHAT_REFUSE,
        .skip_bad_lines = o->skip_bad_lines,
        .workers = o->workers == INT_UNSET ? cores_limit(MAX_USUAL_WORKERS) : o->workers,
        .max_bytes = o->max_bytes == INT_UNSET ? 0 : o->max_bytes,
        .progress = o->output_prefix ? stderr : NULL,
        .plain = o->plain,
        .stopped = stop_on_signals(),
    };
}

Status cmd_prepare_chat(Options *o) {
    tell_notes(o);
    if (o->print_template) return print_template(o);
    TRY(check_options(o));
    if (o->output_prefix) TRY(check_new_data_set(o, ""));
    bool colours = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
    Marks marks = colours ? COLOURS : BRACKETS;
    ChatJob job = chat_job_of(o);
    job.show = o->preview ? show_sample : NULL;
    job.self = &marks;
    job.num_shown = o->preview;
    ChatSummary summary;
    Status status = chat_prepare(&job, &summary);
    if (status == OK) print_summary(&job, &summary);
    text_free(&summary.left_out);
    return status;
}
