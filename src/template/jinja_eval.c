// Computes the expressions of templates.
#include "template/internal.h"
#include <stddef.h>
#include <string.h>

typedef JinjaRender Render;
typedef JinjaNode Node;
typedef JinjaValue Value;

static Status eval_name(Render *r, const Node *node, Value *out) {
    const Value *found = jinja_lookup(r->scope, node->name);
    if (found)
        *out = *found;
    else if (jinja_has_function(node->name))
        *out = (Value){.type = JINJA_FUNCTION, .string = node->name};
    else
        *out = (Value){.type = JINJA_UNDEFINED, .string = node->name};
    return OK;
}

static Status eval_list(Render *r, JinjaType type, const Node *list, Value *out) {
    size_t count = 0;
    Value *items = NULL;
    for (const Node *n = list; n; n = n->next) count++;
    TRY(jinja_make_list(r, type, count, &items, out));
    for (const Node *n = list; n; n = n->next) TRY(jinja_eval(r, n, items++));
    return OK;
}

static Status eval_dict(Render *r, const Node *node, Value *out) {
    size_t count = 0;
    JinjaPair *pairs = NULL;
    for (const Node *n = node->list; n; n = n->next->next) count++;
    TRY(jinja_take(r, count * sizeof *pairs, &pairs));
    *out = (Value){.type = JINJA_DICT, .pairs = pairs};
    for (const Node *n = node->list; n; n = n->next->next) {
        JinjaPair pair;
        TRY(jinja_eval(r, n, &pair.key));
        TRY(jinja_eval(r, n->next, &pair.value));
        const Value *earlier = jinja_find(out, &pair.key);
        if (earlier)
            ((JinjaPair *)((char *)(uintptr_t)earlier - offsetof(JinjaPair, value)))->value = pair.value;
        else
            pairs[out->size++] = pair;
    }
    return OK;
}

static Status eval_slice(Render *r, const Node *node, Value *out) {
    Value object, bounds[3] = {jinja_none(), jinja_none(), jinja_none()};
    const Node *parts[] = {node->b, node->c, node->d};
    TRY(jinja_eval(r, node->a, &object));
    for (int i = 0; i < 3; i++)
        if (parts[i]) TRY(jinja_eval(r, parts[i], &bounds[i]));
    return jinja_slice(r, &object, bounds, out);
}

Status jinja_eval_arguments(Render *r, const Node *list, JinjaArguments *out) {
    Value *values = NULL;
    const char **names = NULL;
    *out = (JinjaArguments){0};
    for (const Node *n = list; n; n = n->next) out->count++;
    TRY(jinja_take(r, (size_t)out->count * sizeof *values, &values));
    TRY(jinja_take(r, (size_t)out->count * sizeof *names, &names));
    out->values = values;
    out->names = names;
    for (const Node *n = list; n; n = n->next) {
        *names++ = n->name;
        out->positional += !n->name;
        TRY(jinja_eval(r, n->a, values++));
    }
    return OK;
}

static Status eval_call(Render *r, const Node *node, Value *out) {
    Value callee;
    JinjaArguments arguments;
    TRY(jinja_eval(r, node->a, &callee));
    TRY(jinja_eval_arguments(r, node->list, &arguments));
    return jinja_call(r, &callee, &arguments, out);
}

Status jinja_call(Render *r, const Value *callee, const JinjaArguments *arguments, Value *out) {
    switch (callee->type) {
    case JINJA_MACRO: return jinja_call_macro(r, callee, arguments, out);
    case JINJA_FUNCTION: return jinja_function(r, callee->string, arguments, out);
    case JINJA_METHOD: return jinja_method(r, callee->object, callee->string, arguments, out);
    case JINJA_UNDEFINED: return jinja_undefined(r, callee);
    default: return jinja_fail(r, "a value of type %s is called like a function", jinja_type_name(callee));
    }
}

static Status eval_filter(Render *r, const Node *node, Value *out) {
    Value value;
    JinjaArguments arguments;
    TRY(jinja_eval(r, node->a, &value));
    TRY(jinja_eval_arguments(r, node->list, &arguments));
    return jinja_filter(r, node->name, &value, &arguments, out);
}

static Status eval_test(Render *r, const Node *node, Value *out) {
    Value value;
    JinjaArguments arguments;
    bool holds;
    TRY(jinja_eval(r, node->a, &value));
    TRY(jinja_eval_arguments(r, node->list, &arguments));
    TRY(jinja_test(r, node->name, &value, &arguments, &holds));
    *out = jinja_flag(holds);
    return OK;
}

static Status eval_unary(Render *r, const Node *node, Value *out) {
    Value value, zero = jinja_integer(0);
    TRY(jinja_eval(r, node->a, &value));
    return jinja_binary(r, node->sign, &zero, &value, out);
}

static Status eval_comparison(Render *r, const Node *node, Value *out) {
    Value left, right;
    bool holds = true;
    TRY(jinja_eval(r, node->a, &left));
    for (const Node *n = node->list; n && holds; n = n->next, left = right) {
        TRY(jinja_eval(r, n->a, &right));
        TRY(jinja_compare(r, n->sign, &left, &right, &holds));
    }
    *out = jinja_flag(holds);
    return OK;
}

static Status eval_condition(Render *r, const Node *node, Value *out) {
    Value value;
    TRY(jinja_eval(r, node->b, &value));
    if (jinja_truth(&value)) return jinja_eval(r, node->a, out);
    if (node->c) return jinja_eval(r, node->c, out);
    *out = (Value){.type = JINJA_UNDEFINED, .string = "the value of an 'if' without 'else'"};
    return OK;
}

static Status eval_concat(Render *r, const Node *node, Value *out) {
    Text text = {0};
    Status status = OK;
    for (const Node *n = node->list; n && status == OK; n = n->next) {
        Value value;
        status = jinja_eval(r, n, &value);
        if (status == OK) status = jinja_add_str(r, &value, &text);
    }
    if (status == OK) status = jinja_make_string(r, &text, out);
    text_free(&text);
    return status;
}

static Status eval_binary(Render *r, const Node *node, Value *out) {
    Value a, b;
    TRY(jinja_eval(r, node->a, &a));
    TRY(jinja_eval(r, node->b, &b));
    return jinja_binary(r, node->sign, &a, &b, out);
}

static Status eval_item(Render *r, const Node *node, Value *out) {
    Value object, key;
    TRY(jinja_eval(r, node->a, &object));
    if (node->kind == JINJA_ATTRIBUTE) return jinja_attribute(r, &object, node->name, out);
    TRY(jinja_eval(r, node->b, &key));
    return jinja_item(r, &object, &key, out);
}

// `a and b` is a where a is false, else b; `or` the other way.
static Status eval_logic(Render *r, const Node *node, Value *out) {
    TRY(jinja_eval(r, node->a, out));
    if (jinja_truth(out) != (node->kind == JINJA_AND)) return OK;
    return jinja_eval(r, node->b, out);
}

static Status eval_not(Render *r, const Node *node, Value *out) {
    Value value;
    TRY(jinja_eval(r, node->a, &value));
    *out = jinja_flag(!jinja_truth(&value));
    return OK;
}

static Status eval_one(Render *r, const Node *node, Value *out) {
    switch (node->kind) {
    case JINJA_CONSTANT: *out = node->value; return OK;
    case JINJA_BODY: *out = *r->body; return OK;
    case JINJA_NAME: return eval_name(r, node, out);
    case JINJA_MAKE_LIST: return eval_list(r, JINJA_LIST, node->list, out);
    case JINJA_MAKE_TUPLE: return eval_list(r, JINJA_TUPLE, node->list, out);
    case JINJA_MAKE_DICT: return eval_dict(r, node, out);
    case JINJA_ATTRIBUTE:
    case JINJA_ITEM: return eval_item(r, node, out);
    case JINJA_SLICE: return eval_slice(r, node, out);
    case JINJA_CALL: return eval_call(r, node, out);
    case JINJA_FILTER: return eval_filter(r, node, out);
    case JINJA_TEST: return eval_test(r, node, out);
    case JINJA_NOT: return eval_not(r, node, out);
    case JINJA_UNARY: return eval_unary(r, node, out);
    case JINJA_BINARY: return eval_binary(r, node, out);
    case JINJA_COMPARE: return eval_comparison(r, node, out);
    case JINJA_AND:
    case JINJA_OR: return eval_logic(r, node, out);
    case JINJA_CONDITION: return eval_condition(r, node, out);
    case JINJA_CONCAT: return eval_concat(r, node, out);
    default: CHECK(false, "expression %d", (int)node->kind);
    }
}

Status jinja_eval(Render *r, const Node *node, Value *out) {
    TRY(jinja_enter(r));
    TRY(jinja_step(r));
    TRY(eval_one(r, node, out));
    r->depth--;
    return OK;
}
