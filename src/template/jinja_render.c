// Renders templates: runs their statements.
#include "base/array.h"
#include "template/internal.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef JinjaRender Render;
typedef JinjaNode Node;
typedef JinjaValue Value;

Status jinja_fail(const Render *r, const char *fmt, ...) {
    char what[700];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return fail(ERR_DATA, "%s:%d: %s", r->template->what, r->line, what);
}

Status jinja_take(Render *r, size_t bytes, void *address) {
    if (bytes > JINJA_MAX_MEMORY_BYTES || r->pool.used > JINJA_MAX_MEMORY_BYTES - bytes)
        return jinja_fail(r, "the template takes more than 32 MiB for its values");
    void *block = jinja_pool_take(&r->pool, bytes);
    memcpy(address, &block, sizeof block);
    return OK;
}

Status jinja_work(Render *r, size_t bytes) {
    enum { BYTES_A_STEP = 64 };
    r->steps += 1 + (int64_t)(bytes / BYTES_A_STEP);
    return r->steps <= JINJA_MAX_STEPS
               ? OK
               : jinja_fail(r, "the template takes more than 262144 steps: does it end?");
}

Status jinja_step(Render *r) { return jinja_work(r, 0); }

static Status check_output(const Render *r) {
    return r->out->size <= JINJA_MAX_OUTPUT_BYTES ? OK : jinja_fail(r, "the template writes more than 8 MiB");
}

// ---- names -------------------------------------------------------------------------------------------------

const Value *jinja_lookup(const JinjaScope *scope, const char *name) {
    for (; scope; scope = scope->parent)
        for (const JinjaBinding *b = scope->bindings; b; b = b->next)
            if (!strcmp(b->name, name)) return &b->value;
    return NULL;
}

void jinja_assign(Render *r, JinjaScope *scope, const char *name, const Value *value) {
    JinjaBinding *b = scope->bindings;
    while (b && strcmp(b->name, name) != 0) b = b->next;
    if (!b) {
        b = jinja_pool_take(&r->pool, sizeof *b);
        *b = (JinjaBinding){.name = name, .next = scope->bindings};
        scope->bindings = b;
    }
    b->value = *value;
}

static Status assign_member(Render *r, const Node *target, const Value *value) {
    const Value *space = jinja_lookup(r->scope, target->a->name);
    if (!space || space->type != JINJA_NAMESPACE)
        return jinja_fail(r,
                          "%s.%s cannot be set: %s is no namespace, which {%% set %s = namespace() %%} makes",
                          target->a->name, target->name, target->a->name, target->a->name);
    jinja_assign(r, space->space, target->name, value);
    return OK;
}

static Status assign(Render *r, const Node *target, const Value *value) {
    if (target->kind == JINJA_ATTRIBUTE) return assign_member(r, target, value);
    if (target->kind == JINJA_NAME) {
        jinja_assign(r, r->scope, target->name, value);
        return OK;
    }
    Value elements;
    size_t at = 0;
    TRY(jinja_elements(r, value, &elements));
    for (const Node *n = target->list; n; n = n->next, at++)
        if (at < elements.size) TRY(assign(r, n, &elements.items[at]));
    return at == elements.size ? OK : jinja_fail(r, "%zu values for %zu names", elements.size, at);
}

static Status enter(Render *r, JinjaScope *parent, JinjaScope **before) {
    JinjaScope *scope = NULL;
    TRY(jinja_take(r, sizeof *scope, &scope));
    scope->parent = parent;
    *before = r->scope;
    r->scope = scope;
    return OK;
}

// ---- blocks whose text is a value ---------------------------------------------------------------------------

// Runs statements in a scope of their own; what they write becomes a string.
static Status capture(Render *r, const Node *body, JinjaScope *parent, Value *out) {
    Text text = {0}, *outer = r->out;
    JinjaScope *scope = NULL;
    JinjaFlow flow = r->flow;
    TRY(enter(r, parent, &scope));
    r->out = &text;
    Status status = jinja_exec(r, body);
    if (status == OK) status = jinja_make_string(r, &text, out);
    r->out = outer;
    r->scope = scope;
    r->flow = flow;
    text_free(&text);
    return status;
}

static Status run_captured(Render *r, const Node *node, Value *value) {
    Value text;
    const Value *outer = r->body;
    TRY(capture(r, node->body, r->scope, &text));
    r->body = &text;
    Status status = jinja_eval(r, node->a, value);
    r->body = outer;
    return status;
}

static Status run_set_block(Render *r, const Node *node) {
    Value value;
    TRY(run_captured(r, node, &value));
    return assign(r, node->target, &value);
}

static Status run_filtered(Render *r, const Node *node) {
    Value value;
    TRY(run_captured(r, node, &value));
    return jinja_add_str(r, &value, r->out);
}

static Status bind_parameter(Render *r, const Node *parameter, const JinjaArguments *given, int position) {
    Value value = {.type = JINJA_UNDEFINED, .string = parameter->name};
    bool found = position < given->positional;
    if (found) value = given->values[position];
    for (int i = given->positional; i < given->count && !found; i++) {
        if (strcmp(given->names[i], parameter->name) != 0) continue;
        value = given->values[i];
        found = true;
    }
    if (!found && parameter->a) TRY(jinja_eval(r, parameter->a, &value));
    jinja_assign(r, r->scope, parameter->name, &value);
    return OK;
}

static Status check_names(Render *r, const Node *macro, const JinjaArguments *given) {
    int parameters = 0;
    for (const Node *n = macro->list; n; n = n->next) parameters++;
    if (given->positional > parameters)
        return jinja_fail(r, "the macro %s takes %d arguments, not %d", macro->name, parameters,
                          given->positional);
    for (int i = given->positional; i < given->count; i++) {
        const Node *n = macro->list;
        while (n && strcmp(n->name, given->names[i]) != 0) n = n->next;
        if (!n) return jinja_fail(r, "the macro %s has no parameter %s", macro->name, given->names[i]);
    }
    return OK;
}

Status jinja_call_macro(Render *r, const Value *callee, const JinjaArguments *given, Value *out) {
    const Node *macro = callee->macro;
    JinjaScope *before;
    int line = r->line, position = 0;
    TRY(check_names(r, macro, given));
    TRY(enter(r, callee->scope, &before));
    for (const Node *n = macro->list; n; n = n->next) TRY(bind_parameter(r, n, given, position++));
    TRY(capture(r, macro->body, r->scope, out));
    r->scope = before;
    r->line = line;
    return OK;
}

// ---- statements ---------------------------------------------------------------------------------------------

static Status run_if(Render *r, const Node *node) {
    for (const Node *branch = node->list; branch; branch = branch->next) {
        Value value = jinja_flag(true);
        if (branch->a) TRY(jinja_eval(r, branch->a, &value));
        if (jinja_truth(&value)) return jinja_exec(r, branch->body);
    }
    return OK;
}

// Leaves only the elements for which the condition of the loop holds.
static Status keep_elements(Render *r, const Node *node, Value *elements) {
    Value *kept = NULL, value;
    size_t count = 0;
    JinjaScope *before;
    if (!node->b) return OK;
    TRY(jinja_take(r, elements->size * sizeof *kept, &kept));
    for (size_t i = 0; i < elements->size; i++) {
        TRY(enter(r, r->scope, &before));
        TRY(assign(r, node->target, &elements->items[i]));
        TRY(jinja_eval(r, node->b, &value));
        r->scope = before;
        if (jinja_truth(&value)) kept[count++] = elements->items[i];
    }
    elements->items = kept;
    elements->size = count;
    return OK;
}

static Status run_for(Render *r, const Node *node) {
    Value sequence, elements;
    TRY(jinja_eval(r, node->a, &sequence));
    TRY(jinja_elements(r, &sequence, &elements));
    TRY(keep_elements(r, node, &elements));
    if (!elements.size) return jinja_exec(r, node->list);
    JinjaLoop *loop = NULL;
    JinjaScope *before;
    TRY(jinja_take(r, sizeof *loop, &loop));
    *loop = (JinjaLoop){.items = elements.items, .count = elements.size};
    for (; loop->at < loop->count; loop->at++) {
        TRY(jinja_step(r));
        TRY(enter(r, r->scope, &before));
        TRY(assign(r, node->target, &loop->items[loop->at]));
        jinja_assign(r, r->scope, "loop", &(Value){.type = JINJA_LOOP, .loop = loop});
        TRY(jinja_exec(r, node->body));
        r->scope = before;
        bool breaks = r->flow == JINJA_BREAKS;
        r->flow = JINJA_RUNS;
        if (breaks) break;
    }
    return OK;
}

static Status run_set(Render *r, const Node *node) {
    Value value;
    TRY(jinja_eval(r, node->a, &value));
    return assign(r, node->target, &value);
}

static Status run_generation(Render *r, const Node *node) {
    JinjaOutput *o = r->output;
    if (r->out != &o->text)
        return jinja_fail(
            r, "{%% generation %%} runs within a macro, a {%% set %%} or a {%% filter %%} block, where its "
               "place in the text is unknown: put it outside");
    JinjaScope *before;
    size_t start = o->text.size;
    TRY(enter(r, r->scope, &before));
    TRY(jinja_exec(r, node->body));
    r->scope = before;
    if (o->text.size == start) return OK;
    array_grow(&o->spans, sizeof *o->spans, o->num_spans + 1, &o->capacity);
    bool within = o->num_spans && o->spans[o->num_spans - 1].start >= start;
    if (within) return jinja_fail(r, "{%% generation %%} blocks within each other: one is enough");
    o->spans[o->num_spans++] = (JinjaSpan){start, o->text.size};
    return OK;
}

static Status run_one(Render *r, const Node *node) {
    Value value;
    switch (node->kind) {
    case JINJA_TEXT: text_add_bytes(r->out, node->value.string, node->value.size); return OK;
    case JINJA_SHOW: TRY(jinja_eval(r, node->a, &value)); return jinja_add_str(r, &value, r->out);
    case JINJA_IF: return run_if(r, node);
    case JINJA_FOR: return run_for(r, node);
    case JINJA_SET: return run_set(r, node);
    case JINJA_SET_BLOCK: return run_set_block(r, node);
    case JINJA_FILTERED: return run_filtered(r, node);
    case JINJA_GENERATION: return run_generation(r, node);
    case JINJA_BREAK: r->flow = JINJA_BREAKS; return OK;
    case JINJA_CONTINUE: r->flow = JINJA_CONTINUES; return OK;
    case JINJA_DEFINE:
        value = (Value){.type = JINJA_MACRO, .macro = node, .scope = r->scope};
        jinja_assign(r, r->scope, node->name, &value);
        return OK;
    default: CHECK(false, "statement %d", (int)node->kind);
    }
}

Status jinja_enter(Render *r) {
    enum { MAX_DEPTH = 8 * JINJA_MAX_DEPTH };
    if (++r->depth > MAX_DEPTH)
        return jinja_fail(r, "macros or values are nested too deeply: does a macro call itself?");
    return OK;
}

Status jinja_exec(Render *r, const Node *list) {
    TRY(jinja_enter(r));
    for (const Node *node = list; node && r->flow == JINJA_RUNS; node = node->next) {
        r->line = node->line;
        TRY(jinja_step(r));
        TRY(run_one(r, node));
        TRY(check_output(r));
    }
    r->depth--;
    return OK;
}

// ---- the whole template -------------------------------------------------------------------------------------

static Status bind_variables(Render *r, const JinjaVariable *variables, int count) {
    for (int i = 0; i < count; i++) {
        Value value = jinja_none();
        if (variables[i].value) TRY(jinja_of_json(r, variables[i].value, &value));
        jinja_assign(r, r->scope, variables[i].name, &value);
    }
    return OK;
}

Status jinja_render(const JinjaTemplate *template, const JinjaVariable *variables, int num_variables,
                    time_t now, JinjaOutput *output) {
    JinjaScope top = {0};
    Render r = {
        .template = template, .line = 1, .now = now, .scope = &top, .out = &output->text, .output = output};
    output->text.size = output->num_spans = 0;
    Status status = bind_variables(&r, variables, num_variables);
    if (status == OK) status = jinja_exec(&r, template->body);
    jinja_pool_free(&r.pool);
    output->steps = r.steps;
    return status;
}

void jinja_output_free(JinjaOutput *output) {
    text_free(&output->text);
    free(output->spans);
    *output = (JinjaOutput){0};
}
