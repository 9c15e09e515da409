// Parses the statements of templates.
#include "template/internal.h"
#include <stdlib.h>
#include <string.h>

typedef JinjaParser Parser;
typedef JinjaNode Node;

// Parses statements up to a tag that begins with one of these words, which are separated by blanks; it is left at
// that word.
static Status parse_body(Parser *p, const char *ends, const Node *of, Node **list);

static bool at_word_of(const Parser *p, const char *words) {
    const JinjaToken *t = p->token;
    for (const char *word = words; t->kind == JINJA_WORD && *word;) {
        size_t size = strcspn(word, " ");
        if (size == t->size && !memcmp(word, t->text, size)) return true;
        word += size + (word[size] == ' ');
    }
    return false;
}

static Status end_tag(Parser *p) {
    if (p->token->kind != JINJA_BLOCK_END)
        return jinja_refuse(
            p, "the tag goes on where it could end: is an operator missing, or a part not supported?");
    p->token++;
    return OK;
}

static Status end_with(Parser *p, const char *word) {
    if (!jinja_skip_word(p, word)) return jinja_refuse(p, "{%% %s %%} is expected", word);
    return end_tag(p);
}

// ---- one statement each -------------------------------------------------------------------------------------

static Status parse_if(Parser *p, Node *node) {
    node->kind = JINJA_IF;
    for (Node **end = &node->list;; end = &(*end)->next) {
        *end = jinja_node(p, JINJA_BRANCH);
        TRY(jinja_parse_expressions(p, true, &(*end)->a));
        TRY(end_tag(p));
        TRY(parse_body(p, "elif else endif", node, &(*end)->body));
        if (jinja_skip_word(p, "elif")) continue;
        if (jinja_skip_word(p, "else")) {
            Node *last = (*end)->next = jinja_node(p, JINJA_BRANCH);
            TRY(end_tag(p));
            TRY(parse_body(p, "endif", node, &last->body));
        }
        return end_with(p, "endif");
    }
}

// One name, or several: a, b or (a, b); of a namespace ns.a
static Status parse_target(Parser *p, bool with_member, Node **target) {
    bool parenthesis = jinja_skip_sign(p, "(");
    Node *tuple = jinja_node(p, JINJA_MAKE_TUPLE), **end = &tuple->list;
    do {
        *end = jinja_node(p, JINJA_NAME);
        TRY(jinja_take_name(p, &(*end)->name));
        if (with_member && jinja_at_sign(p, ".")) {
            Node *member = jinja_node(p, JINJA_ATTRIBUTE);
            p->token++;
            TRY(jinja_take_name(p, &member->name));
            member->a = *end;
            *end = member;
        }
        end = &(*end)->next;
    } while (jinja_skip_sign(p, ",") && !jinja_at_sign(p, ")"));
    *target = tuple->list->next ? tuple : tuple->list;
    return parenthesis ? jinja_expect_sign(p, ")") : OK;
}

static Status parse_for(Parser *p, Node *node) {
    node->kind = JINJA_FOR;
    TRY(parse_target(p, false, &node->target));
    if (!jinja_skip_word(p, "in")) return jinja_refuse(p, "'in' is expected: {%% for x in list %%}");
    TRY(jinja_parse_expressions(p, false, &node->a));
    if (jinja_skip_word(p, "if")) TRY(jinja_parse_expression(p, true, &node->b));
    if (jinja_at_word(p, "recursive")) return jinja_refuse(p, "recursive loops are not supported");
    TRY(end_tag(p));
    TRY(parse_body(p, "else endfor", node, &node->body));
    if (jinja_skip_word(p, "else")) {
        TRY(end_tag(p));
        TRY(parse_body(p, "endfor", node, &node->list));
    }
    return end_with(p, "endfor");
}

// The filters of the text of a block, applied to the node JINJA_BODY.
static Status parse_block_filters(Parser *p, bool first, Node **filters) {
    *filters = jinja_node(p, JINJA_BODY);
    if (first) TRY(jinja_parse_filter(p, filters));
    return jinja_parse_filters(p, filters);
}

static Status parse_set(Parser *p, Node *node) {
    node->kind = JINJA_SET;
    TRY(parse_target(p, true, &node->target));
    if (jinja_skip_sign(p, "=")) {
        TRY(jinja_parse_expressions(p, true, &node->a));
        return end_tag(p);
    }
    node->kind = JINJA_SET_BLOCK;
    TRY(parse_block_filters(p, false, &node->a));
    TRY(end_tag(p));
    TRY(parse_body(p, "endset", node, &node->body));
    return end_with(p, "endset");
}

static Status parse_macro(Parser *p, Node *node) {
    node->kind = JINJA_DEFINE;
    TRY(jinja_take_name(p, &node->name));
    TRY(jinja_expect_sign(p, "("));
    for (Node **end = &node->list; !jinja_at_sign(p, ")"); end = &(*end)->next) {
        *end = jinja_node(p, JINJA_ARGUMENT);
        TRY(jinja_take_name(p, &(*end)->name));
        if (jinja_skip_sign(p, "=")) TRY(jinja_parse_expression(p, true, &(*end)->a));
        if (!jinja_skip_sign(p, ",") && !jinja_at_sign(p, ")")) break;
    }
    TRY(jinja_expect_sign(p, ")"));
    TRY(end_tag(p));
    TRY(parse_body(p, "endmacro", node, &node->body));
    if (jinja_skip_word(p, "endmacro") && p->token->kind == JINJA_WORD) p->token++; // its name may follow
    return end_tag(p);
}

static Status parse_filtered(Parser *p, Node *node) {
    node->kind = JINJA_FILTERED;
    TRY(parse_block_filters(p, true, &node->a));
    TRY(end_tag(p));
    TRY(parse_body(p, "endfilter", node, &node->body));
    return end_with(p, "endfilter");
}

static Status parse_generation(Parser *p, Node *node) {
    node->kind = JINJA_GENERATION;
    p->template->marks_generation = true;
    TRY(end_tag(p));
    TRY(parse_body(p, "endgeneration", node, &node->body));
    return end_with(p, "endgeneration");
}

static Status parse_break(Parser *p, Node *node) {
    node->kind = JINJA_BREAK;
    return end_tag(p);
}

static Status parse_continue(Parser *p, Node *node) {
    node->kind = JINJA_CONTINUE;
    return end_tag(p);
}

static const struct {
    const char *word;
    Status (*parse)(Parser *p, Node *node);
} STATEMENTS[] = {
    {"if", parse_if},       {"for", parse_for},           {"set", parse_set},
    {"macro", parse_macro}, {"filter", parse_filtered},   {"generation", parse_generation},
    {"break", parse_break}, {"continue", parse_continue},
};

static Status parse_statement(Parser *p, Node **node) {
    for (size_t i = 0; i < sizeof STATEMENTS / sizeof *STATEMENTS; i++) {
        if (!jinja_at_word(p, STATEMENTS[i].word)) continue;
        *node = jinja_node(p, JINJA_TEXT);
        p->token++;
        return STATEMENTS[i].parse(p, *node);
    }
    const JinjaToken *t = p->token;
    if (t->kind != JINJA_WORD)
        return jinja_refuse(p, "{%% is followed by no word: if, for or set is expected");
    bool ends = t->size > 3 && !memcmp(t->text, "end", 3);
    return jinja_refuse(p, "{%% %.*s %%} %s", (int)(t->size < 40 ? t->size : 40), t->text,
                        ends || jinja_at_word(p, "else") || jinja_at_word(p, "elif")
                            ? "ends something that was not begun"
                            : "is not supported: if, for, set, macro, filter, raw and generation are");
}

// ---- bodies -------------------------------------------------------------------------------------------------

static Status parse_print(Parser *p, Node **node) {
    *node = jinja_node(p, JINJA_SHOW);
    p->token++;
    TRY(jinja_parse_expressions(p, true, &(*node)->a));
    if (p->token->kind != JINJA_PRINT_END)
        return jinja_refuse(p, "the expression goes on where it could end: is an operator missing?");
    p->token++;
    return OK;
}

static void parse_text(Parser *p, Node **node) {
    *node = jinja_node(p, JINJA_TEXT);
    (*node)->value = jinja_string(p->token->text, p->token->size);
    p->token++;
}

static Status unfinished(Parser *p, const char *ends, const Node *of) {
    if (!of) return OK;
    const char *last = strrchr(ends, ' ');
    return jinja_refuse(p, "{%% %s %%} is missing: line %d begins what it ends", last ? last + 1 : ends,
                        of->line);
}

static Status parse_body(Parser *p, const char *ends, const Node *of, Node **list) {
    if (++p->depth > JINJA_MAX_DEPTH)
        return jinja_refuse(p, "more than %d tags within each other", JINJA_MAX_DEPTH);
    for (Node **end = list; p->token->kind != JINJA_END; end = &(*end)->next) {
        if (p->token->kind == JINJA_DATA) {
            parse_text(p, end);
        } else if (p->token->kind == JINJA_PRINT_BEGIN) {
            TRY(parse_print(p, end));
        } else {
            p->token++;
            if (at_word_of(p, ends)) {
                p->depth--;
                return OK;
            }
            TRY(parse_statement(p, end));
        }
    }
    p->depth--;
    return unfinished(p, ends, of);
}

Status jinja_parse(JinjaTemplate **out, const char *text, size_t size, const char *what) {
    JinjaTemplate *t = *out = calloc(1, sizeof *t);
    if (t) t->what = strdup(what);
    CHECK(t && t->what, "no memory for a template");
    Status status = jinja_lex(t, text, size);
    Parser parser = {.template = t, .token = t->tokens.tokens};
    if (status == OK) status = parse_body(&parser, "", NULL, &t->body);
    free(t->tokens.tokens);
    t->tokens = (JinjaTokens){0};
    if (status == OK) return OK;
    jinja_free(t);
    *out = NULL;
    return status;
}

void jinja_free(JinjaTemplate *t) {
    if (!t) return;
    jinja_pool_free(&t->pool);
    free(t->what);
    free(t);
}

bool jinja_marks_generation(const JinjaTemplate *template) { return template->marks_generation; }

bool jinja_reads(const JinjaTemplate *template, const char *name) {
    const JinjaBinding *b = template->names;
    while (b && strcmp(b->name, name) != 0) b = b->next;
    return b != NULL;
}
