// Compiles and matches a tokenizer's patterns by PCRE2.
#include "tokenizer/pattern.h"
#include "base/text.h"
#include <stdlib.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct Pattern {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *jit_stack;
};

// PCRE2's \s also matches U+180E, which Unicode's White_Space no longer contains: the property is exact.
static void exact_blanks(Text *out, const char *pattern) {
    for (const char *c = pattern; *c; c++) {
        if (c[0] != '\\' || !c[1]) {
            text_add_bytes(out, c, 1);
        } else {
            if (c[1] == 's' || c[1] == 'S')
                text_add(out, "\\%c{wspace}", c[1] == 's' ? 'p' : 'P');
            else
                text_add_bytes(out, c, 2);
            c++;
        }
    }
}

static pcre2_code *compile(const char *pattern, int *error, size_t *where) {
    return pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, error, where,
                         NULL);
}

static Status open_code(Pattern *p, const char *text) {
    Text exact = {0};
    int error;
    size_t where;
    exact_blanks(&exact, text);
    p->code = compile(text_string(&exact), &error, &where);
    text_free(&exact);
    if (!p->code) p->code = compile(text, &error, &where); // PCRE2 before 10.40
    if (p->code) return OK;
    char message[120];
    pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
    return fail(ERR_DATA, "the pattern \"%.60s\": character %zu: %s", text, where, message);
}

static Status open_match(Pattern *p) {
    p->match = pcre2_match_data_create_from_pattern(p->code, NULL);
    p->context = pcre2_match_context_create(NULL);
    p->jit_stack = pcre2_jit_stack_create(32 << 10, 4 << 20, NULL);
    if (!p->match || !p->context || !p->jit_stack) return fail(ERR_OS, "no memory for a piece scanner");
    pcre2_jit_stack_assign(p->context, NULL, p->jit_stack);
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); // without JIT it is only slower
    return OK;
}

Status pattern_open(Pattern **pattern, const char *text) {
    Pattern *p = *pattern = calloc(1, sizeof *p);
    if (!p) return fail(ERR_OS, "no memory for a piece scanner");
    Status status = open_code(p, text);
    if (status == OK) status = open_match(p);
    if (status == OK) return OK;
    pattern_close(p);
    *pattern = NULL;
    return status;
}

void pattern_close(Pattern *pattern) {
    if (!pattern) return;
    pcre2_match_data_free(pattern->match);
    pcre2_code_free(pattern->code);
    pcre2_match_context_free(pattern->context);
    pcre2_jit_stack_free(pattern->jit_stack);
    free(pattern);
}

static int match(const Pattern *p, const char *text, size_t bytes, size_t from, uint32_t options) {
    return pcre2_match(p->code, (PCRE2_SPTR)text, bytes, from, options, p->match, p->context);
}

// The text has been validated, so PCRE2 need not check it. When compiled code runs out of stack, the interpreter
// matches again.
static int match_valid(const Pattern *p, const char *text, size_t bytes, size_t from) {
    enum { OPTIONS = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY };
    int matched = match(p, text, bytes, from, OPTIONS);
    if (matched == PCRE2_ERROR_JIT_STACKLIMIT) matched = match(p, text, bytes, from, OPTIONS | PCRE2_NO_JIT);
    return matched;
}

int pattern_find(const Pattern *pattern, const char *text, size_t bytes, size_t from, size_t *start,
                 size_t *end) {
    int matched = match_valid(pattern, text, bytes, from);
    *start = matched > 0 ? pcre2_get_ovector_pointer(pattern->match)[0] : from;
    *end = matched > 0 ? pcre2_get_ovector_pointer(pattern->match)[1] : bytes;
    return matched > 0 || matched == PCRE2_ERROR_NOMATCH ? 0 : matched;
}

int pattern_find_group(const Pattern *pattern, const char *text, size_t bytes, size_t from, size_t *start,
                       size_t *end, size_t *next) {
    int matched = match_valid(pattern, text, bytes, from);
    if (matched <= 0) return matched == PCRE2_ERROR_NOMATCH ? 0 : matched;
    const size_t *places = pcre2_get_ovector_pointer(pattern->match);
    uint32_t groups = 0;
    pcre2_pattern_info(pattern->code, PCRE2_INFO_CAPTURECOUNT, &groups);
    *start = places[0];
    *end = groups ? places[0] : places[1];
    *next = places[1];
    for (int i = 1; i < matched && *start == *end; i++)
        if (places[2 * i] != PCRE2_UNSET && places[2 * i + 1] > places[2 * i])
            *start = places[2 * i], *end = places[2 * i + 1];
    return 1;
}

Status pattern_fail(int error) {
    char message[120];
    pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
    return fail(ERR_DATA, "the pattern cannot be matched: PCRE2: %s", message);
}
