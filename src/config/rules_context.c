// The rules of context parallelism: which sequences can be cut, and what a run with cut sequences cannot have.
#include "config/rules.h"
#include <string.h>

// Returns the least multiple of `unit` that is at least `value`.
static int up_to_multiple(int value, int unit) { return (value + unit - 1) / unit * unit; }

static Status refuse(const Options *o, const char *option, const char *why) {
    return fail(ERR_CONFIG,
                "--context-parallel-size %d and %s cannot be set at the same time: %s; leave out one of them",
                o->context_parallel_size, option, why);
}

// Whether c ranks can have equal shares of a sequence, and whether each can have as many heads.
static bool length_fits(const Options *o, int c) {
    int s = o->seq_length, t = o->shape.sequence_parallel ? o->shape.tp : 1;
    return c == 1 || (s % (2 * c) == 0 && s / c % t == 0);
}

static bool heads_fit(const Options *o, int c) { return o->shape.query_groups / o->shape.tp % c == 0; }

static Status check_context_length(const Options *o) {
    int c = o->shape.cp, s = o->seq_length, t = o->shape.sequence_parallel ? o->shape.tp : 1, fits = c;
    int unit = t > 1 && t % 2 ? 2 * c * t : t > 1 ? c * t : 2 * c;
    if (length_fits(o, c)) return OK;
    while (!length_fits(o, fits)) fits--;
    return fail(
        ERR_CONFIG,
        "--context-parallel-size %d%s: --seq-length %d is not divisible by %d, so that ranks cannot have equal "
        "shares: use --seq-length %d, or --context-parallel-size %d",
        c, t > 1 ? " with --sequence-parallel" : "", s, unit, up_to_multiple(s, unit), fits);
}

static Status check_context_heads(const Options *o) {
    int c = o->shape.cp, t = o->shape.tp, fits = c;
    if (strcmp(o->cp_comm_type, "a2a") != 0 || heads_fit(o, c)) return OK;
    while (!heads_fit(o, fits) || !length_fits(o, fits)) fits--;
    return fail(
        ERR_CONFIG,
        "--cp-comm-type a2a: %d groups of heads over --tensor-model-parallel-size %d are not divisible "
        "by --context-parallel-size %d: use --context-parallel-size %d, or --cp-comm-type all_gather",
        o->shape.query_groups, t, c, fits);
}

Status check_context_parallel(Options *o) {
    enum { MOST = 2048 }; // MAX_CONTEXT_RANKS of layout/sequence.h
    if (o->shape.cp == 1) return OK;
    if (o->shape.cp > MOST)
        return fail(ERR_CONFIG, "--context-parallel-size %d: at most %d ranks can share a sequence",
                    o->shape.cp, MOST);
    TRY(check_context_length(o));
    TRY(check_context_heads(o));
    if (!strcmp(o->cp_comm_type, "p2p") && o->shape.keep_probabilities)
        return fail(
            ERR_CONFIG,
            "--cp-comm-type p2p joins parts of the softmax, and --attention-backend unfused stores the whole: "
            "leave out one of them");
    if (o->shape.virtual_data)
        return refuse(o, "--virtual-data-parallel", "its sums would depend on the data parallel size");
    if (o->fp4_format)
        return refuse(o, "--fp4-format",
                      "its gradients are rounded at random by their place in the sequence");
    return OK;
}
